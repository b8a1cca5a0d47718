package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// manager is the real one, as a process of its own.
type manager struct {
	program    string
	kubeconfig string
	logFile    string
	pprof      string // where it serves its profiles
	command    *exec.Cmd
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
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + c.env.ControlPlane.APIServer.SecureServing.HostPort(), CertificateAuthorityData: c.config.CAData}
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
	log, err := os.OpenFile(m.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the manager's log: %w", err)
	}
	defer log.Close()
	m.command = exec.Command(m.program, "manager", "--namespace="+namespace, "--agent-image=none", "--webhook-port=0",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--pprof-bind-address="+m.pprof)
	m.command.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig)
	m.command.Stdout, m.command.Stderr = log, log
	if err := m.command.Start(); err != nil {
		return fmt.Errorf("start the manager: %w", err)
	}
	return nil
}

// kill kills it, if it runs, as the kernel does for want of memory.
func (m *manager) kill() error {
	if m.command == nil {
		return nil
	}
	err := m.command.Process.Kill()
	_ = m.command.Wait() // that it was killed
	m.command = nil
	if err != nil {
		return fmt.Errorf("kill the manager: %w", err)
	}
	return nil
}

func (m *manager) pid() int { return m.command.Process.Pid }

// managerSays is the end of the manager's log as an error.
func (r *run) managerSays() error {
	content, err := os.ReadFile(r.manager.logFile)
	if err != nil {
		return fmt.Errorf("read the manager's log: %w", err)
	}
	const most = 2000
	return fmt.Errorf("the manager's log ends: %s", content[max(0, len(content)-most):])
}
