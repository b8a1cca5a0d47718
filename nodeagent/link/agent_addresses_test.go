package link

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// TestAgentAddresses has another program list the agent's addresses, on kernels that keep tags and on those
// that do not.
func TestAgentAddresses(t *testing.T) {
	for _, row := range []struct {
		name string
		open func(*testing.T, string) *Netlink
	}{
		{"with tags", func(t *testing.T, _ string) *Netlink {
			n, err := Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}},
		{"without tags", openWithoutTags},
	} {
		t.Run(row.name, func(t *testing.T) {
			addVethPair(t)
			path := filepath.Join(t.TempDir(), OwnershipFileName)
			agent := row.open(t, path)
			reader, err := OpenReader(path)
			if err != nil {
				t.Fatal(err)
			}
			expect := func(iface string, want ...string) {
				t.Helper()
				got, err := reader.AgentAddresses(iface)
				if err != nil {
					t.Fatal(err)
				}
				var texts []string
				for _, p := range got {
					texts = append(texts, p.String())
				}
				if diff := cmp.Diff(want, texts); diff != "" {
					t.Errorf("addresses on %s (-want +got):\n%s", iface, diff)
				}
			}
			expect("eth0")
			expect("none")
			nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
			other := addressOnEth0("192.0.2.3/24")
			other.Interface = "eth1"
			for _, prefix := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
				if err := agent.Add(addressOnEth0(prefix)); err != nil {
					t.Fatal(err)
				}
			}
			if err := agent.Add(other); err != nil {
				t.Fatal(err)
			}
			if agent.ownershipFile != nil {
				expect("eth0") // the agent has not written its record yet
				text, err := agent.ownershipFile.Content()
				if err == nil {
					err = file.Replace(path, text)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			expect("eth0", "192.0.2.1/24", "2001:db8::1/64")
			if err := agent.Remove(addressOnEth0("192.0.2.1/24")); err != nil {
				t.Fatal(err)
			}
			expect("eth0", "2001:db8::1/64")
		})
	}
}

// TestFaultOwnershipFileUnreadable has a file that is damaged: it is an error, and not that the agent has no
// addresses.
func TestFaultOwnershipFileUnreadable(t *testing.T) {
	addVethPair(t)
	path := filepath.Join(t.TempDir(), OwnershipFileName)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	tagged := addressOnEth0("192.0.2.1/24")
	if err := reader.Add(tagged); err != nil {
		t.Fatal(err)
	}
	own, err := reader.AgentAddresses("eth0")
	if err != nil || !slices.Equal(own, []netip.Prefix{tagged.Prefix}) {
		t.Errorf("addresses that all have tags: %v, %v", own, err)
	}
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	if own, err := reader.AgentAddresses("eth0"); err == nil {
		t.Errorf("no error, but %v", own)
	}
}
