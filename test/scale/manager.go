package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/test/measure"
)

// restartDelay is how long after its end the manager is started again. The kubelet
// does so, too.
const restartDelay = time.Second

// manager runs PureLB's manager as a process of its own, and starts another when that
// one ends.
type manager struct {
	program    string
	kubeconfig string
	logFile    string
	pprof      string   // address at which the manager serves its profiles
	args, env  []string // beside those that every manager has

	mu       sync.Mutex
	command  *exec.Cmd     // the present process; nil while none is to run
	ended    chan struct{} // closed when the present process has ended
	endedCPU time.Duration // processor time of all processes that have ended
	losses   int           // how many processes ended although nobody killed them
}

// newManager prepares a manager that has the manager's own rights. It keeps its files
// in folder.
func newManager(ctx context.Context, c *cluster, o options, folder string) (*manager, error) {
	token, err := c.createToken(ctx, managerAccount, nil)
	if err != nil {
		return nil, err
	}
	m := &manager{
		program: o.program, pprof: o.pprof, args: o.managerArgs, env: o.managerEnv,
		kubeconfig: filepath.Join(folder, "kubeconfig"), logFile: filepath.Join(folder, "manager.log"),
	}
	if err := c.writeKubeconfig(m.kubeconfig, token); err != nil {
		return nil, err
	}
	return m, nil
}

// start starts the manager.
func (m *manager) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.startLocked()
}

// startLocked starts the manager while the caller holds mu.
func (m *manager) startLocked() error {
	log, err := os.OpenFile(m.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the manager's log: %w", err)
	}
	defer log.Close()
	command := exec.Command(m.program,
		append([]string{"manager", "--namespace=" + namespace, "--agent-image=none", "--webhook-port=0",
			"--metrics-bind-address=0", "--health-probe-bind-address=0", "--pprof-bind-address=" + m.pprof}, m.args...)...)
	command.Env = append(append(os.Environ(), "KUBECONFIG="+m.kubeconfig), m.env...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	m.command, m.ended = command, make(chan struct{})
	go m.restartAfterEnd(command, m.ended)
	return nil
}

// restartAfterEnd waits until a process ends and, unless kill ended it, starts another.
func (m *manager) restartAfterEnd(command *exec.Cmd, ended chan struct{}) {
	_ = command.Wait() // how it ended does not matter
	m.mu.Lock()
	m.endedCPU += command.ProcessState.UserTime() + command.ProcessState.SystemTime()
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
		// The program has started before with the same arguments. If it does not now,
		// the wait for the manager's next act times out and says so.
		_ = m.startLocked()
	}
}

// kill kills the manager, as the kernel does for want of memory, and waits for its end.
func (m *manager) kill() error {
	m.mu.Lock()
	command, ended := m.command, m.ended
	m.command = nil
	m.mu.Unlock()
	if command == nil {
		return nil
	}
	select {
	case <-ended: // restartAfterEnd has not started the next process yet
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

// pid returns the id of the present process.
func (m *manager) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.command.Process.Pid
}

// readCPU returns the processor time of all of the manager's processes, and how many
// ended although nobody killed them.
func (m *manager) readCPU() (time.Duration, int) {
	m.mu.Lock()
	ended, losses := m.endedCPU, m.losses
	m.mu.Unlock()
	now, err := measure.CPUTime(m.pid())
	if err != nil {
		return ended, losses // the next process has not started yet
	}
	return ended + now, losses
}

// logTail returns the end of the manager's log as an error.
func (m *manager) logTail() error {
	content, err := os.ReadFile(m.logFile)
	if err != nil {
		return fmt.Errorf("read the manager's log: %w", err)
	}
	const most = 2000
	return fmt.Errorf("the manager's log ends: %s", content[max(0, len(content)-most):])
}
