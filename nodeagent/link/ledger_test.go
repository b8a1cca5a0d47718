package link

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// old is a kernel that keeps no tags, with the ledger of that file.
func old(t *testing.T, path string) *Netlink {
	t.Helper()
	ledger, err := OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(ledger)
	if err != nil {
		t.Fatal(err)
	}
	n.add = func(l netlink.Link, a *netlink.Addr) error {
		a.Protocol = 0
		return n.handle.AddrAdd(l, a)
	}
	return n
}

// whose is the addresses on eth0, each with whose it is.
func whose(t *testing.T, n *Netlink) map[string]bool {
	t.Helper()
	ours := map[string]bool{}
	for _, a := range addresses(t, n, "eth0") {
		ours[a.Prefix.String()] = a.Ours
	}
	return ours
}

func on(prefix string) plan.Address {
	return plan.Address{Interface: "eth0", Prefix: netip.MustParsePrefix(prefix), Valid: 100 * time.Second, Preferred: 100 * time.Second}
}

func TestLedger(t *testing.T) {
	pair(t)
	path := filepath.Join(t.TempDir(), "addresses.json")
	n := old(t, path)
	expect := func(what string, want map[string]bool) {
		t.Helper()
		if diff := cmp.Diff(want, whose(t, n)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	add := func(prefixes ...string) {
		t.Helper()
		for _, p := range prefixes {
			if err := n.Add(on(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	add("192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64")
	expect("added", map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true})

	// Another process knows them again, also by another name of the interface, which
	// older kernels give only to one that is down: it has no IPv6 addresses then.
	n = old(t, path)
	expect("after a restart", map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true})
	for _, change := range []string{"eth0 down", "eth0 name eth9", "eth9 name eth0", "eth0 up"} {
		nstest.Run(t, "ip link set %s", change)
	}
	n = old(t, path)
	expect("renamed", map[string]bool{"192.0.2.1/24": true, "192.0.2.2/24": true, "192.0.2.11/24": false})
	add("192.0.2.3/24", "2001:db8::1/64")

	// What was removed, by us or by others, and put there by others is theirs.
	if err := n.Remove(on("192.0.2.1/24")); err != nil {
		t.Fatal(err)
	}
	nstest.Run(t, "ip addr del 192.0.2.2/24 dev eth0")
	whose(t, n) // looks in between, as the agent does at each change
	nstest.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	nstest.Run(t, "ip addr add 192.0.2.2/24 dev eth0")
	want := map[string]bool{"192.0.2.1/24": false, "192.0.2.2/24": false, "192.0.2.3/24": true, "192.0.2.11/24": false, "2001:db8::1/64": true}
	expect("put there again", want)

	// What cannot be added is not ours for that.
	if err := n.Add(on("192.0.2.2/24")); err == nil {
		t.Error("added twice")
	}
	if err := n.Add(on("192.0.2.3/24")); err == nil {
		t.Error("added twice")
	}
	expect("not added", want)
	n = old(t, path)
	expect("in the end", want)
}

// An address that could not be noted is not added.
func TestLedgerNotWritten(t *testing.T) {
	pair(t)
	n := old(t, filepath.Join(t.TempDir(), "none", "addresses.json"))
	if err := n.Add(on("192.0.2.1/24")); err == nil || !strings.Contains(err.Error(), "add 192.0.2.1/24 to eth0: note which addresses are ours") {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]bool{}, whose(t, n)); diff != "" {
		t.Error(diff)
	}
}

func TestOpenLedger(t *testing.T) {
	boot, err := os.ReadFile(bootID)
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
			l, err := OpenLedger(path)
			if (err != nil) != c.fails || len(l.entries) != c.want {
				t.Errorf("%v, %v", l.entries, err)
			}
		})
	}
}
