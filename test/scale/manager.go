package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// restartDelay is after how long a manager that has ended is started again, as
// the kubelet does.
const restartDelay = time.Second

// manager is the real one, as a process of its own, which is started again when
// it ends.
type manager struct {
	program    string
	kubeconfig string
	logFile    string
	pprof      string // where it serves its profiles

	mu      sync.Mutex
	command *exec.Cmd // nil if it is not to run
	ended   chan struct{}
	past    time.Duration // processor time of those that have ended
	losses  int           // how often it ended of its own
}

// newManager prepares one that runs with the manager's own rights; folder is for
// its files.
func newManager(ctx context.Context, c *cluster, program, folder, pprof string) (*manager, error) {
	token, err := c.token(ctx, managerAccount, nil)
	if err != nil {
		return nil, err
	}
	m := &manager{
		program: program, pprof: pprof,
		kubeconfig: filepath.Join(folder, "kubeconfig"), logFile: filepath.Join(folder, "manager.log"),
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, m.kubeconfig); err != nil {
		return nil, fmt.Errorf("write the manager's kubeconfig: %w", err)
	}
	return m, nil
}

// start starts it.
func (m *manager) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.startLocked()
}

func (m *manager) startLocked() error {
	log, err := os.OpenFile(m.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the manager's log: %w", err)
	}
	defer log.Close()
	command := exec.Command(m.program, "manager", "--namespace="+namespace, "--agent-image=none", "--webhook-port=0",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--pprof-bind-address="+m.pprof)
	command.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	m.command, m.ended = command, make(chan struct{})
	go m.watch(command, m.ended)
	return nil
}

// watch waits until a process ends and, unless it was to, starts another.
func (m *manager) watch(command *exec.Cmd, ended chan struct{}) {
	_ = command.Wait() // how it ended does not matter
	m.mu.Lock()
	m.past += command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	lost := m.command == command
	if lost {
		m.losses++
	}
	m.mu.Unlock()
	close(ended)
	if !lost {
		return
	}
	time.Sleep(restartDelay)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.command == command {
		// It started before, with the same arguments. If it does not now, what
		// is waited for does not come, and that is said.
		_ = m.startLocked()
	}
}

// kill kills it, as the kernel does for want of memory, and waits for its end.
func (m *manager) kill() error {
	m.mu.Lock()
	command, ended := m.command, m.ended
	m.command = nil
	m.mu.Unlock()
	if command == nil {
		return nil
	}
	select {
	case <-ended: // is between two processes
		return nil
	default:
	}
	err := command.Process.Kill()
	<-ended
	if err != nil {
		return fmt.Errorf("kill the manager: %w", err)
	}
	return nil
}

// pid of the process that runs now.
func (m *manager) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.command.Process.Pid
}

// cpu is the processor time of all of its processes, and how often one ended of
// its own.
func (m *manager) cpu() (time.Duration, int) {
	m.mu.Lock()
	past, losses := m.past, m.losses
	m.mu.Unlock()
	now, err := cpuTime(m.pid())
	if err != nil {
		return past, losses // is between two processes
	}
	return past + now, losses
}

// managerSays is the end of the manager's log as an error.
func (r *run) managerSays() error {
	content, err := os.ReadFile(r.manager.logFile)
	if err != nil {
		return fmt.Errorf("read the manager's log: %w", err)
	}
	const most = 2000
	return fmt.Errorf("the manager's log ends: %s", content[max(0, len(content)-most):])
}
