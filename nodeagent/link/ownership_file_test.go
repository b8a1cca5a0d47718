package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// openWithoutTags opens a Netlink that behaves as a kernel that keeps no tags, with the
// ownership file at a path.
func openWithoutTags(t *testing.T, path string) *Netlink {
	t.Helper()
	ownership, err := OpenOwnershipFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(ownership)
	if err != nil {
		t.Fatal(err)
	}
	n.addrAdd = func(l netlink.Link, a *netlink.Addr) error {
		a.Protocol = 0
		return n.handle.AddrAdd(l, a)
	}
	return n
}

// restartWithoutTags writes the record to its file, as the agent does, and opens another Netlink.
func restartWithoutTags(t *testing.T, n *Netlink) *Netlink {
	t.Helper()
	text, err := n.ownershipFile.Content()
	if err == nil {
		err = file.Replace(n.ownershipFile.Path(), text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return openWithoutTags(t, n.ownershipFile.Path())
}

// isOursByPrefix returns the addresses on eth0, and whether each is the agent's.
func isOursByPrefix(t *testing.T, n *Netlink) map[string]bool {
	t.Helper()
	ours := map[string]bool{}
	for _, a := range addressesOn(t, n, "eth0") {
		ours[a.Prefix.String()] = a.IsOurs
	}
	return ours
}

func addressOnEth0(prefix string) plan.Address {
	return plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: 100 * time.Second, Preferred: 100 * time.Second,
	}
}

func TestOwnershipFile(t *testing.T) {
	addVethPair(t)
	n := openWithoutTags(t, filepath.Join(t.TempDir(), "addresses.json"))
	expect := func(what string, want map[string]bool) {
		t.Helper()
		if diff := cmp.Diff(want, isOursByPrefix(t, n)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	add := func(prefixes ...string) {
		t.Helper()
		for _, p := range prefixes {
			if err := n.Add(addressOnEth0(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	add("192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64")
	expect(
		"after Add",
		map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true},
	)

	// Another process recognises the addresses, also after the interface was renamed. Older
	// kernels rename only an interface that is down, and which so has lost its IPv6 addresses.
	n = restartWithoutTags(t, n)
	expect(
		"after a restart",
		map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true},
	)
	for _, change := range []string{"eth0 down", "eth0 name eth9", "eth9 name eth0", "eth0 up"} {
		nstest.Run(t, "ip link set %s", change)
	}
	n = restartWithoutTags(t, n)
	expect(
		"after the interface was renamed",
		map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false},
	)
	add("192.0.2.3/24", "2001:db8::1/64")

	// An address that was removed, by the agent or by another program, and that another
	// program then adds, is that program's.
	if err := n.Remove(addressOnEth0("192.0.2.1/24")); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "ip addr del 192.0.2.2/24 dev eth0")
	isOursByPrefix(t, n) // lists in between, as the agent does after each change
	nstest.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	nstest.Run(t, "ip addr add 192.0.2.2/24 dev eth0")
	want := map[string]bool{
		"192.0.2.1/24": false, "192.0.2.2/24": false, "192.0.2.3/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true,
	}
	expect("added by another program", want)

	// An address that cannot be added does not become the agent's.
	if err := n.Add(addressOnEth0("192.0.2.2/24")); err == nil {
		t.Error("an address was added twice")
	}
	if err := n.Add(addressOnEth0("192.0.2.3/24")); err == nil {
		t.Error("an address was added twice")
	}
	expect("after Add failed", want)
	n = restartWithoutTags(t, n)
	expect("after a second restart", want)
}

// A disk that hangs or is full stops neither Add nor Remove, and the record is right meanwhile.
func TestFaultDiskWithoutTags(t *testing.T) {
	for name, breakDisk := range map[string]func(dir string) error{
		// to open it waits for a reader
		"it hangs":         func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "addresses.json.new"), 0o600) },
		"it takes no file": func(dir string) error { return os.Remove(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			addVethPair(t)
			dir := filepath.Join(t.TempDir(), "disk")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			n := openWithoutTags(t, filepath.Join(dir, "addresses.json"))
			if err := breakDisk(dir); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				done <- errors.Join(
					n.Add(addressOnEth0("192.0.2.1/24")), n.Add(addressOnEth0("192.0.2.2/24")),
					n.Remove(addressOnEth0("192.0.2.1/24")))
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("the agent waits for the disk")
			}
			if diff := cmp.Diff(map[string]bool{"192.0.2.2/24": true}, isOursByPrefix(t, n)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOpenOwnershipFile(t *testing.T) {
	boot, err := os.ReadFile(bootIDPath)
	if err != nil {
		t.Fatal(err)
	}
	form := `{"boot": %q, "addresses": [{"interface": 2, "address": "192.0.2.1/24"}]}`
	for name, c := range map[string]struct {
		text  string
		want  int
		fails bool
	}{
		"of this boot":    {fmt.Sprintf(form, strings.TrimSpace(string(boot))), 1, false},
		"of another boot": {fmt.Sprintf(form, "another"), 0, false},
		"garbage":         {"{", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "addresses.json")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := OpenOwnershipFile(path)
			if (err != nil) != c.fails || len(f.recorded) != c.want {
				t.Errorf("%v, %v", f.recorded, err)
			}
		})
	}
}
