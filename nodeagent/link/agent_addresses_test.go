package link

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

// TestAgentAddressesListed replaces what a Reader has listed, as if the kernel had been watched for long, and looks
// whether the Reader lists again.
func TestAgentAddressesListed(t *testing.T) {
	const listed, remembered = "192.0.2.1/24", "192.0.2.9/24"
	for _, row := range []struct {
		name    string
		tagged  bool
		happens func(r *Reader)
		want    string
	}{
		{"nothing", true, func(*Reader) {}, remembered},
		{"the kernel keeps no tags", false, func(*Reader) {}, listed},
		{"nothing for a while", true, func(r *Reader) { r.last.at = r.last.at.Add(-listAgainAfter) }, listed},
		{"a change", true, func(r *Reader) { r.known.markStale() }, listed},
		{"a change shortly before the listing", true, func(r *Reader) {
			r.known.changedAt = r.last.at.Add(-quietTime / 2)
		}, listed},
		{"the kernel is not watched any more", true, func(r *Reader) { r.known.setWatched(false) }, listed},
		{"the kernel is watched anew", true, func(r *Reader) { r.known.setWatched(true) }, listed},
		{"it is about another interface", true, func(r *Reader) { r.last.iface = "eth1" }, listed},
	} {
		t.Run(row.name, func(t *testing.T) {
			addVethPair(t)
			path := filepath.Join(t.TempDir(), OwnershipFileName)
			reader, err := OpenReader(path)
			if err != nil {
				t.Fatal(err)
			}
			if row.tagged {
				err = reader.Add(addressOnEth0(listed))
			} else {
				agent := openWithoutTags(t, path)
				err = agent.Add(addressOnEth0(listed))
				text, contentErr := agent.ownershipFile.Content()
				err = errors.Join(err, contentErr, file.Replace(path, text))
			}
			if err != nil {
				t.Fatal(err)
			}
			reader.known.isWatched, reader.known.changedAt = true, time.Now().Add(-time.Hour)
			expect := func(want string) {
				t.Helper()
				got, err := reader.AgentAddresses("eth0")
				if err != nil || !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix(want)}) {
					t.Errorf("addresses: %v, %v; want %s", got, err, want)
				}
			}
			expect(listed)
			reader.last.addresses = []netip.Prefix{netip.MustParsePrefix(remembered)}
			row.happens(reader)
			expect(row.want)
		})
	}
}

// TestAgentAddressesWatched has an address added while the kernel is watched: it is not what was listed before.
func TestAgentAddressesWatched(t *testing.T) {
	agent := addVethPair(t)
	reader, err := OpenReader(filepath.Join(t.TempDir(), OwnershipFileName))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- reader.Watch(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	becomes := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not in time: " + what)
			}
		}
	}
	becomes("the kernel is watched", func() bool { return reader.known.isQuiet(time.Now()) })
	reader.known.mu.Lock()
	reader.known.changedAt = time.Now().Add(-time.Hour)
	reader.known.mu.Unlock()
	reader.last = agentListing{iface: "eth0", at: time.Now()}
	if err := agent.Add(addressOnEth0("192.0.2.1/24")); err != nil {
		t.Fatal(err)
	}
	becomes("the address is listed", func() bool {
		own, err := reader.AgentAddresses("eth0")
		return err == nil && len(own) == 1
	})
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
