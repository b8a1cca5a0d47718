// Package nstest runs a package's tests in a network namespace of their own.
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

const inside = "PURELB_TEST_NETNS"

// Main is the body of a TestMain: it runs the test binary once more, in a new
// network namespace, and returns its exit status. Without root it uses a user
// namespace as well. Where neither is allowed the tests fail: what they would
// show is not shown.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		return m.Run()
	}
	cmd := again(os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
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

// again is the test binary once more, in a new network namespace.
func again(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// Alone runs one test of a package whose others have no network namespace of their
// own, as Main does all of one, beside others of its kind. A test begins with it, and
// returns if it returns false: then it has been run.
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	t.Parallel()
	// The thread that starts it has to live as long (prctl(2), PR_SET_PDEATHSIG).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := again("-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network namespace of its own, which needs root or user namespaces: %v", err)
	}
	return false
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

// Do calls a function in a thread that is there, and in which it has to do all
// that is to be done there.
func (n Neighbour) Do(t testing.TB, do func() error) {
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
	// Not /proc/self, which is the first thread's.
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = home.Close() }()
	enter(fmt.Sprintf("/proc/%d/ns/net", n.pid))
	defer enter(fmt.Sprintf("/proc/self/fd/%d", home.Fd()))
	if err := do(); err != nil {
		t.Errorf("in the neighbour's namespace: %v", err)
	}
}
