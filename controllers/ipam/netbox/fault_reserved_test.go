package netbox_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// holdingCluster is a cluster in which one Service holds one address, or none does.
type holdingCluster struct {
	emptyCluster

	mu    sync.Mutex
	held  netip.Addr
	owner ipam.Owner
}

func (c *holdingCluster) hold(a netip.Addr, owner ipam.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.owner = a, owner
}

func (c *holdingCluster) Holders(context.Context, string) (map[netip.Addr][]ipam.Owner, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held.IsValid() {
		return nil, nil //nolint:nilnil // an empty map
	}
	return map[netip.Addr][]ipam.Owner{c.held: {c.owner}}, nil
}

func (c *holdingCluster) IsInUse(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held == a
}

// Somebody writes into NetBox that an address of the tenant, which a Service has, is a server's.
// The comparison reports that, and leaves the record alone: when the Service goes, the address
// is not reserved, and no other Service gets it. This test shows the row "somebody writes that an
// address reserved for the tenant, which a Service has, is a server's" of docs/trust.md.
func TestFaultReservedGivenAway(t *testing.T) {
	w := newFake(t, fake.V46, fake.TokenV2)
	g := NewWithT(t)
	config, _ := tenantFixture(w)
	web, next := ipamtest.NewOwner("web", 0), ipamtest.NewOwner("next", 1)
	a := w.allocate(w.connect(config, ipamtest.Installation), request("web"))
	id := idOf(w.recordAt(a))
	w.send(
		http.MethodPatch, fmt.Sprintf("%s%d/", addresses, id),
		object{"description": "server 17", "dns_name": "server17.example"},
	).want(w, http.StatusOK)

	cluster := &holdingCluster{emptyCluster: emptyCluster{w.token}}
	cluster.hold(a, web)
	b := w.startBrokerOf(cluster)
	b.Configure("group", config)
	g.Eventually(func() map[netip.Addr]string { return b.Observation("group").Differences }).WithTimeout(30 * time.Second).
		Should(
			HaveKeyWithValue(a, fmt.Sprintf("%s is recorded in NetBox %s already: id %d", a, w.base, id)))

	cluster.hold(netip.Addr{}, ipam.Owner{})
	asked := make(chan struct{}, 1)
	w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("address") == a.String() {
			select {
			case asked <- struct{}{}:
			default:
			}
		}
		return false
	}, nil)
	b.QueueRelease("group", a)
	g.Eventually(asked).WithTimeout(30 * time.Second).Should(Receive())
	wanted := allocation.IPAMRequest{Group: "group", Family: allocation.IPv4}
	b.SetRequests(next, []allocation.IPAMRequest{wanted}) // it is asked for when the release has ended
	g.Eventually(func() allocation.Offer { return b.Offers(next.UID)[wanted] }).WithTimeout(30 * time.Second).
		Should(Equal(allocation.Offer{Address: w.addr(6)}))
	if got := w.recordAt(a); got["description"] != "server 17" || got["dns_name"] != "server17.example" ||
		at(got, "status.value") != "active" {
		t.Errorf("the server's record: %v", got)
	}
}

// Somebody writes into the record of an address reserved for the tenant just before a release reserves
// the address again. Since NetBox 4.6 that is not lost: the release looks once more. This test shows the
// row "somebody writes into the record of an address reserved for the tenant while its Service goes" of
// docs/trust.md.
func TestFaultWrittenWhileReleased(t *testing.T) {
	for name, row := range map[string]struct{ written, description, status string }{
		"the address is a server's": {"server 17", "server 17", "active"},
		"a description":             {"MARK | of rack 4", "of rack 4", "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFake(t, fake.V46, fake.TokenV2)
			config, _ := tenantFixture(w)
			s := w.connect(config, ipamtest.Installation)
			a := w.allocate(s, request("web"))
			record := w.recordAt(a)
			written := strings.Replace(row.written, "MARK", fmt.Sprint(record["description"]), 1)
			var isWritten atomic.Bool
			w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPatch && isWritten.CompareAndSwap(false, true) {
					w.send(http.MethodPatch, fmt.Sprintf("%s%d/", addresses, idOf(record)), object{"description": written}).want(
						w, http.StatusOK,
					)
				}
				return false
			}, nil)
			if err := s.Release(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			if got := w.recordAt(a); got["description"] != row.description || at(got, "status.value") != row.status {
				t.Errorf("%v, %v", got["description"], at(got, "status.value"))
			}
		})
	}
}

// Another manager, which leads now, gives an address to a Service that asks for it, just before a release of the old
// leader reaches NetBox. Since NetBox 4.6 the record stays that Service's. This test shows the row "a manager that
// leads no more releases an address that the next one gives to a Service" of docs/trust.md.
func TestFaultTakenWhileReleased(t *testing.T) {
	for name, fixture := range map[string]func(*world) (*allocation.Netbox, netip.Addr){
		"of a prefix": prefixFixture, "of a tenant": tenantFixture,
	} {
		t.Run(name, func(t *testing.T) {
			w := newFake(t, fake.V46, fake.TokenV2)
			config, _ := fixture(w)
			old, leader := w.connect(config, ipamtest.Installation), w.connect(config, ipamtest.Installation)
			a := w.allocate(old, request("web"))
			var isTaken atomic.Bool
			w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet && isTaken.CompareAndSwap(false, true) {
					w.allocate(leader, requestOf("api", a))
				}
				return false
			}, nil)
			if err := old.Release(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			mark := ipamtest.NewOwner("api", 0).Mark(ipamtest.Installation)
			if got := w.recordAt(a); !isTaken.Load() || !strings.HasPrefix(fmt.Sprint(got["description"]), mark) ||
				at(got, "status.value") != "active" {
				t.Errorf("taken %v: %v", isTaken.Load(), got)
			}
		})
	}
}
