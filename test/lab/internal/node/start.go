package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
	"github.com/purelb/purelb-operator/test/lab/internal/netns"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// Start moves this process into the control group of the node, and from there
// starts process 1 of the node, which is this same program with initArgs.
func Start(c Config, initArgs ...string) error {
	if err := cgroup.Join(c.Hierarchies, c.Name); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(c.Logs, c.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.Name, err)
	}
	defer log.Close()

	command := exec.Command(self, initArgs...)
	command.Stdout, command.Stderr = log, log
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
	}
	if err := netns.Do(c.Namespace, command.Start); err != nil {
		return fmt.Errorf("start process 1 of %s: %w", c.Name, err)
	}
	record, err := process.RecordOf(command.Process.Pid)
	if err == nil {
		err = record.Write(c.PIDFile)
	}
	if err != nil {
		_ = command.Process.Kill()
		return err
	}
	return nil
}
