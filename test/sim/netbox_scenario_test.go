package sim

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/netbox"
)

// playWithNetBox plays something in a cluster with a NetBox that has been compared with it, by the laws that
// histories have, once for each of some seeds, and so with either version of NetBox.
func playWithNetBox(t *testing.T, do func(t *testing.T, h *History)) {
	t.Helper()
	playScenarioIn(t, 2, NewNetBoxCluster, do)
}

// createOf creates a Service of each ServiceGroup that NetBox has addresses for.
func (h *History) createOf(families ...corev1.IPFamily) {
	for _, group := range []string{GroupNetBox, GroupTenant} {
		h.create(Service{Group: group, Families: families})
	}
}

// addressesOf returns the addresses that Services have, by their names.
func (h *History) addressesOf(t *testing.T) map[string][]netip.Addr {
	t.Helper()
	all := map[string][]netip.Addr{}
	for _, s := range h.services {
		addrs, err := h.Addresses(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		all[s.Name] = addrs
	}
	return all
}

// expectAddresses fails unless each Service has an address of each of its families, and all that had some before
// have the same.
func (h *History) expectAddresses(t *testing.T, before map[string][]netip.Addr) {
	t.Helper()
	now := h.addressesOf(t)
	for _, s := range h.services {
		if len(now[s.Name]) != len(s.Families) {
			t.Errorf("%s has the addresses %v", s.Name, now[s.Name])
		}
		if had := before[s.Name]; len(had) > 0 && !slices.Equal(had, now[s.Name]) {
			t.Errorf("%s had %v, and has %v", s.Name, had, now[s.Name])
		}
	}
}

// whyWaiting returns the reason of a Service's condition Allocated.
func (h *History) whyWaiting(t *testing.T, s *service) string {
	t.Helper()
	svc := &corev1.Service{}
	if err := h.Admin.Get(t.Context(), client.ObjectKey{Namespace: Tenants, Name: s.Name}, svc); err != nil {
		t.Fatal(err)
	}
	allocated := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	if allocated == nil {
		return ""
	}
	return allocated.Reason
}

// expectRecords fails unless NetBox has so many records of the cluster's.
func (h *History) expectRecords(t *testing.T, count int) {
	t.Helper()
	ours := slices.DeleteFunc(h.NetBox.Server.Addresses(), func(r netbox.Address) bool { return !h.netbox.isOurs(&r) })
	if len(ours) != count {
		t.Errorf("NetBox has %d records of the cluster's, not %d: %v", len(ours), count, ours)
	}
}

// A manager dies when NetBox has done what it asked for, before it is told: in each request of an allocation and of a
// release. The next one goes on with what is recorded, and no address is recorded twice.
func TestManagerDiesInNetBoxRequest(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		const requests = 2 // a record is created, and completed
		for range requests {
			h.netbox.isFatal = true
			h.createOf(corev1.IPv4Protocol)
			h.Run(20 * time.Second)
			if h.netbox.isFatal {
				t.Error("no manager has died")
			}
		}
		h.expectAddresses(t, nil)
		h.expectRecords(t, 2*requests)
		for len(h.services) > 0 {
			h.netbox.isFatal = true
			h.deleteService()
			h.Run(20 * time.Second)
		}
	})
}

// The record of a Service that is gone goes soon, and not only with a comparison.
func TestNetBoxRecordGoesSoon(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		h.createOf(corev1.IPv4Protocol, corev1.IPv6Protocol)
		h.Run(10 * time.Second)
		h.expectAddresses(t, nil)
		h.expectRecords(t, 4)
		for len(h.services) > 0 {
			h.deleteService()
		}
		h.Run(10 * time.Second)
		h.expectRecords(t, 0)
	})
}

// While NetBox is away Services keep their addresses, and new ones wait and say why. They have theirs soon after it is
// back.
func TestNetBoxAway(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		h.createOf(corev1.IPv4Protocol)
		h.Run(10 * time.Second)
		n := h.NetBox
		for _, isAway := range []*bool{&n.IsDown, &n.IsCut, &n.Hangs, &n.IsBroken} {
			before := h.addressesOf(t)
			*isAway = true
			h.createOf(corev1.IPv6Protocol)
			h.Run(5 * time.Minute)
			for _, s := range h.services[len(before):] {
				if why := h.whyWaiting(t, s); why != v1.ReasonIPAMUnavailable {
					t.Errorf("%s waits because of %q", s.Name, why)
				}
			}
			*isAway = false
			h.Run(30 * time.Second)
			h.expectAddresses(t, before)
		}
	})
}

// Another user of the prefixes takes all that is free. Services wait, and say so, until that one gives some back.
func TestNetBoxExhausted(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		var taken []int64
		for number := range byte(14) {
			addr := netip.PrefixFrom(addressOf(netboxPrefixes[0], number+1), netboxPrefixes[0].Bits())
			h.NetBox.write(people, func() {
				taken = append(taken, h.NetBox.Server.Create("ip-addresses", map[string]any{"address": addr.String()}))
			})
		}
		h.create(Service{Group: GroupNetBox, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
		h.Run(30 * time.Second)
		if why := h.whyWaiting(t, h.services[0]); why != v1.ReasonExhausted {
			t.Errorf("the Service waits because of %q", why)
		}
		h.NetBox.write(people, func() { h.NetBox.Server.Delete(taken[5]) })
		h.Run(3 * time.Minute)
		h.expectAddresses(t, map[string][]netip.Addr{"s1": {netip.MustParseAddr("203.0.113.6")}})
	})
}

// Answers of NetBox get lost for some minutes, in which users create and delete Services.
func TestNetBoxLosesAnswers(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		h.NetBox.LosesAnswers = true
		for range 5 {
			h.createOf(corev1.IPv4Protocol, corev1.IPv6Protocol)
			h.Run(h.Between(0, time.Minute))
			h.deleteService()
			h.deleteService()
		}
		h.createOf(corev1.IPv4Protocol)
		h.NetBox.LosesAnswers = false
		h.Run(3 * time.Minute)
		h.expectAddresses(t, nil)
	})
}

// A leader is paused when it is about to record an address, another one records one for the Service, and the first one
// goes on with its request. The Service keeps what it has, and what is recorded besides goes.
func TestLeaderPausedInNetBoxRequest(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		m := h.leader(t).Manager
		m.pausesAtNetBox = func(r *http.Request) bool { return r.Method != http.MethodGet }
		h.createOf(corev1.IPv4Protocol)
		h.Run(10 * time.Second)
		if !m.isPaused() {
			t.Fatal("the leader asks for nothing")
		}
		h.expectAddresses(t, nil)
		before := h.addressesOf(t)
		m.Resume()
		h.Run(10 * time.Second)
		h.expectAddresses(t, before)
	})
}

// A leader is paused when it is about to release the address of a Service that is gone, another one gives that address
// to a Service that asks for it, and the first one goes on with its request. The Service keeps the record.
func TestLeaderPausedInNetBoxRelease(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		if h.NetBox.Server.Version == netbox.V44 { // which has no conditional changes
			return
		}
		for _, group := range []string{GroupNetBox, GroupTenant} {
			wanted := Service{Group: group, Families: []corev1.IPFamily{corev1.IPv4Protocol}}
			h.create(wanted)
			h.Run(10 * time.Second)
			wanted.Address = h.addressesOf(t)[h.services[0].Name][0]
			m := h.leader(t).Manager
			m.pausesAtNetBox = func(r *http.Request) bool { return r.Method != http.MethodGet }
			h.deleteService()
			h.Run(time.Second)
			if !m.isPaused() {
				t.Fatal("the leader releases nothing")
			}
			h.create(wanted)
			h.Run(10 * time.Second)
			h.expectAddresses(t, nil)
			before := h.addressesOf(t)
			m.Resume()
			h.Run(10 * time.Second)
			h.expectAddresses(t, before)
			h.deleteService()
			h.Run(10 * time.Second)
		}
	})
}

// A person deletes the record of an address that a Service has. It is made again or, if somebody else has taken the
// address meanwhile, the ServiceGroup says so, and the Service keeps it. When that one is deleted, the record of
// somebody else stays.
func TestNetBoxRecordDeleted(t *testing.T) {
	playWithNetBox(t, func(t *testing.T, h *History) {
		for range 2 {
			h.create(Service{Group: GroupNetBox, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
		}
		h.Run(10 * time.Second)
		before := h.addressesOf(t)
		for i, s := range h.services {
			for _, r := range recordsOf(before[s.Name][0], h.NetBox.Server.Addresses()) {
				h.NetBox.write(people, func() {
					h.NetBox.Server.Delete(r.ID)
					if i == 1 {
						h.NetBox.Server.Create("ip-addresses", map[string]any{"address": r.Address.String()})
					}
				})
			}
		}
		h.Run(11 * time.Minute)
		h.expectAddresses(t, before)
		h.expectRecords(t, 1)
		group := &v1.ServiceGroup{}
		if err := h.Admin.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: GroupNetBox}, group); err != nil {
			t.Fatal(err)
		}
		if !meta.IsStatusConditionTrue(group.Status.Conditions, v1.ConditionDrift) {
			t.Errorf("the ServiceGroup does not say that it differs: %v", fmt.Sprint(group.Status.Conditions))
		}
		for len(h.services) > 0 {
			h.deleteService()
		}
	})
}
