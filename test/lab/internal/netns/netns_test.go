package netns

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// TestDo needs root, and fails without it: a test that quietly does nothing
// would say that the lab works where it cannot.
func TestDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes a network namespace: run it as root")
	}
	name := fmt.Sprintf("lab-test-%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })

	want, err := ID(name)
	if err != nil || want == 0 {
		t.Fatalf("ID(%s) = %d, %v", name, want, err)
	}
	// Not OfProcess: the process has the namespace of its first thread, which Do may have
	// used, and which the runtime keeps but runs nothing on any more.
	outside, err := inode("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var inside uint64
	if err := Do(name, func() error {
		inside, err = inode("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if inside != want || inside == outside {
		t.Errorf("inside Do the namespace is %d, want %d (outside: %d)", inside, want, outside)
	}
	if after, _ := inode("/proc/thread-self/ns/net"); after != outside {
		t.Errorf("after Do the namespace is %d, want %d", after, outside)
	}

	if err := SetSysctl(name, "net.ipv4.conf.default.arp_ignore", "1"); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile("/proc/sys/net/ipv4/conf/default/arp_ignore"); string(text) == "1\n" {
		t.Error("the machine's own sysctl has changed")
	}
}

func TestIDOfMissing(t *testing.T) {
	if id, err := ID("lab-test-no-such"); id != 0 || err != nil {
		t.Errorf("ID = %d, %v; want 0, nil", id, err)
	}
}

func TestSysctlPath(t *testing.T) {
	if got, err := sysctlPath("net.ipv4.ip_forward"); err != nil || got != "/proc/sys/net/ipv4/ip_forward" {
		t.Errorf("sysctlPath = %q, %v", got, err)
	}
	if _, err := sysctlPath("vm.overcommit_memory"); err == nil {
		t.Error("a sysctl of the whole machine was accepted")
	}
}
