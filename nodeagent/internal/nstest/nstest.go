// Package nstest runs tests in network namespaces of their own: Main all tests of a package,
// RunInOwnNamespace a single test. A Neighbour is one more namespace, to which a test connects
// links.
package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideVariable is the environment variable that is set in the test binary that runs in its
// own namespace.
const insideVariable = "PURELB_TEST_NETNS"

// Main is the body of a TestMain: it runs the test binary once more, in a new network
// namespace, and returns its exit status. Without root it makes a user namespace, too. Where
// neither is allowed the tests fail instead of being skipped.
func Main(m *testing.M) int {
	if os.Getenv(insideVariable) != "" {
		return m.Run()
	}
	cmd := TestBinary(os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintf(
			os.Stderr, "FAIL: these tests need a network namespace of their own, so root or user namespaces: %v\n", err,
		)
		return 1
	}
	return 0
}

// TestBinary returns a command that runs the test binary in a new network namespace. The kernel kills it when the
// thread ends that has started it.
func TestBinary(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// RunInOwnNamespace reports whether the test runs in a network namespace of its own. If not, it
// runs the test there, in parallel with other such tests, and the test returns. It is for
// packages of which only some tests need a namespace.
func RunInOwnNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideVariable) != "" {
		return true
	}
	t.Parallel()
	// The kernel kills the process when the thread ends that has started it (prctl(2),
	// PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := TestBinary("-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network namespace of its own, which needs root or user namespaces: %v", err)
	}
	t.Logf("%s", out) // what failed there stands last, as in other tests
	return false
}

// Run runs a command, whose words are separated by spaces, and returns its output. The test
// fails if the command does.
func Run(t testing.TB, format string, args ...any) string {
	t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

// Neighbour is another network namespace. A process that sleeps there keeps the namespace.
type Neighbour struct {
	pid int
}

// NewNeighbour makes a network namespace that exists as long as the test.
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

// PID returns the process that keeps the namespace.
func (n Neighbour) PID() int { return n.pid }

// MoveLink moves a link into the namespace.
func (n Neighbour) MoveLink(t testing.TB, link string) {
	t.Helper()
	Run(t, "ip link set %s netns %d", link, n.pid)
}

// Run runs a command in the namespace.
func (n Neighbour) Run(t testing.TB, format string, args ...any) string {
	t.Helper()
	return Run(t, "nsenter --net=/proc/%d/ns/net -- %s", n.pid, fmt.Sprintf(format, args...))
}

// Call calls a function in a thread that is in the namespace. The function must start no
// goroutines, which would run in other threads.
func (n Neighbour) Call(t testing.TB, function func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	enter := func(path string) {
		t.Helper()
		file, err := os.Open(path)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Fatalf("enter a network namespace: %v", err)
		}
	}
	// /proc/self would be the process's first thread.
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = home.Close() }()
	enter(fmt.Sprintf("/proc/%d/ns/net", n.pid))
	defer enter(fmt.Sprintf("/proc/self/fd/%d", home.Fd()))
	if err := function(); err != nil {
		t.Errorf("in the neighbour's namespace: %v", err)
	}
}
