// Package nstest runs a package's tests in a network namespace of their own.
package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const inside = "PURELB_TEST_NETNS"

// Main is the body of a TestMain: it runs the test binary once more, in a new
// network namespace, and returns its exit status. Without root it uses a user
// namespace as well. Where neither is allowed the tests fail: what they would
// show is not shown.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "FAIL: these tests need a network namespace of their own, so root or user namespaces: %v\n", err)
		return 1
	}
	return 0
}

// Run runs a command, its words separated by spaces, and returns what it
// prints.
func Run(t testing.TB, format string, args ...any) string {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

// Neighbour is another network namespace.
type Neighbour struct {
	pid int
}

// NewNeighbour makes one, which lives as long as the test.
func NewNeighbour(t testing.TB) Neighbour {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return Neighbour{pid: cmd.Process.Pid}
}

// Take moves a link there.
func (n Neighbour) Take(t testing.TB, link string) {
	t.Helper()
	Run(t, "ip link set %s netns %d", link, n.pid)
}

// Run runs a command there.
func (n Neighbour) Run(t testing.TB, format string, args ...any) string {
	t.Helper()
	return Run(t, "nsenter --net=/proc/%d/ns/net -- %s", n.pid, fmt.Sprintf(format, args...))
}
