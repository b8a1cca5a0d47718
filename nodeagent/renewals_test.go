package nodeagent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// slowKernel takes a while for each renewal.
type slowKernel struct {
	*linktest.Kernel
	took time.Duration
}

// Renew renews an address after the while.
func (k slowKernel) Renew(a plan.Address) error {
	time.Sleep(k.took)
	return k.Kernel.Renew(a)
}

// putMany gives the kernel Local addresses of ours, and returns their entries. Their lifetimes end in
// another order, and after 150 s at the earliest.
func putMany(k *linktest.Kernel, count int) []purelbv1.AnnouncedAddress {
	entries := make([]purelbv1.AnnouncedAddress, count)
	for i := range entries {
		address := fmt.Sprintf("198.18.%d.%d", i/250, i%250)
		entries[i] = local(address)
		lifetime := time.Duration(150+i*7%50) * time.Second
		k.Put(plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix(address + "/32"), IsOurs: true,
			Valid: lifetime, Preferred: lifetime,
			NoPrefixRoute: true,
		})
	}
	return entries
}

// A sync renews lifetimes for a second at the most, first those that end first, and asks for the next
// sync, which goes on.
func TestManyRenewals(t *testing.T) {
	const took = 10 * time.Millisecond
	for name, tc := range map[string]struct {
		count   int
		objects func(entries []purelbv1.AnnouncedAddress) apiObjects
	}{
		"desired": {5000 / slowness, func(entries []purelbv1.AnnouncedAddress) apiObjects {
			return apiObjects{
				lbNodeAgent: settings(), announcements: []purelbv1.Announcement{*announcementOf("node1", entries...)},
			}
		}},
		"kept, as the API server is away": {1000, func([]purelbv1.AnnouncedAddress) apiObjects {
			return apiObjects{
				lbNodeAgent: settings(), announcements: []purelbv1.Announcement{*announcementOf("node1")}, isFromCheckpoint: true,
			}
		}},
		"kept, as nothing is known": {1000, func([]purelbv1.AnnouncedAddress) apiObjects { return apiObjects{} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, settings())
				w.Kernel = slowKernel{w.kernel, took}
				objects := tc.objects(putMany(w.kernel, tc.count))
				endOf := map[string]time.Duration{}
				observed, _ := w.kernel.Observe()
				for _, a := range observed.Addresses {
					endOf[fmt.Sprintf("Renew %s eth0", a.Prefix)] = a.Valid
				}
				var calls []string
				syncs, isMore := 0, true
				for ; isMore; syncs++ {
					began := time.Now()
					if _, err := w.sync(t.Context(), objects, true); err != nil {
						t.Fatal(err)
					}
					if d := time.Since(began); d > renewalBudget {
						t.Fatalf("a sync took %s", d)
					}
					calls = append(calls, w.kernel.TakeCalls()...)
					select {
					case <-w.wake:
					default:
						isMore = false
					}
				}
				w.expect("syncs", int((time.Duration(tc.count)*took+renewalBudget-1)/renewalBudget), syncs)
				w.expect("renewals", tc.count, len(calls))
				if !slices.IsSortedFunc(calls, func(a, b string) int { return int(endOf[a] - endOf[b]) }) {
					t.Error("a lifetime that ended later was renewed before one that ended earlier")
				}
				w.expect("different renewals", tc.count, len(slices.Compact(slices.Sorted(slices.Values(calls)))))
			})
		})
	}
}

// An agent whose kernel takes a minute to renew all lifetimes renews its Lease, and adds and withdraws
// addresses meanwhile. No address expires. This test shows the row "it is so busy that its kernel takes
// minutes to renew the lifetimes of thousands of addresses" of docs/trust.md.
func TestFaultSlowRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, settings(), announcementOf("node1"))
		p.deaf = true
		p.faulty.Kernel = slowKernel{p.kernel, 400 * time.Millisecond}
		entries := putMany(p.kernel, 150)
		p.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = entries })
		p.start()
		defer p.stop()
		time.Sleep(5 * time.Second) // it lists, and syncs, before it renews for the first time
		for second := range 60 {
			p.isWell(fmt.Sprintf("after %d s", second))
			switch second {
			case 30:
				p.change(
					"node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = append(entries[1:], local("192.0.2.1", takeover)) },
				)
			case 32:
				p.expect("has the address that was added", true, p.holds("192.0.2.1"))
				p.expect("has the address that was withdrawn", false, p.holds("198.18.0.0"))
			}
			time.Sleep(time.Second)
		}
		time.Sleep(6 * time.Minute)
		p.isWell("in the end")
		changes := slices.DeleteFunc(p.kernel.TakeCalls(), func(call string) bool { return strings.HasPrefix(call, "Renew") })
		p.expect("changes but renewals", []string{"Remove 198.18.0.0/32 eth0", "Add 192.0.2.1/32 eth0"}, changes)
	})
}
