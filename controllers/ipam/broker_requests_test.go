package ipam_test

import (
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
)

// A permission that is missing for the requests of a group is asked for by one of them at a
// time.
func TestFaultBrokerRequestsForbidden(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.broker.Configure("bad", configOf(groupA))
		w.failFor(errForbidden, func(q question) bool { return q.group == "bad" && q.method == "allocate" })
		for n := range 50 {
			w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf("bad")})
		}
		w.pass(time.Minute)
		w.wantReason(noisy(49), v1.ReasonIPAMRefused, errForbidden.Message)
		w.resetCounts()
		w.pass(time.Hour)
		if n := w.count("bad allocate"); n > 60 {
			t.Errorf("asked %d times in an hour", n)
		}
		w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Second)
		w.wantAddress(web(0))
		w.failFor(nil, func(question) bool { return false })
		w.pass(2 * time.Minute)
		if o := w.broker.Observation("bad"); o.RequestsWithoutAddress != 50-8 {
			t.Errorf("%d requests wait", o.RequestsWithoutAddress)
		}
	})
}

// Many requests that cannot be met keep neither releases nor repairs nor comparisons waiting. This test
// shows the row "Services want more addresses than there are, or the token may create none" of
// docs/trust.md.
func TestFaultBrokerExhaustedRequests(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		addrs := w.holdAll(groupA)
		w.lock(func() { w.delay[urlOf(groupA)] = 1650 * time.Millisecond })
		for n := range 90 {
			w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		w.pass(time.Minute)
		w.resetCounts()
		w.releaseHeld(groupA, addrs[0])
		w.pass(10 * time.Second) // while most requests have not been asked for yet
		if n := w.count(groupA + " release"); n != 1 {
			t.Errorf("%d releases", n)
		}
		w.pass(time.Hour)
		if n := w.broker.Observation(groupA).RequestsWithoutAddress; n != 89 {
			t.Errorf("%d requests wait, want one less", n)
		}
		// Each has been asked for, and now one at a time is.
		w.resetCounts()
		w.systems[urlOf(groupA)].SetMark(addrs[1], "") // to be repaired
		w.pass(time.Hour)
		if n := w.count(groupA + " allocate"); n > 60 {
			t.Errorf("asked %d times in an hour for an address that is free", n)
		}
		if n := w.count(groupA + " inspect"); n != 6 {
			t.Errorf("%d comparisons in an hour", n)
		}
		if mark := w.systems[urlOf(groupA)].Marks()[addrs[1]]; mark != web(1).Mark(ipamtest.Installation) {
			t.Errorf("not repaired: %q", mark)
		}
	})
}

// Kinds of jobs take turns while there is more to do than the system can.
func TestFaultBrokerKindsTakeTurns(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		addrs := w.holdAll(groupA)
		w.lock(func() { w.delay[urlOf(groupA)] = time.Second })
		for n := range 600 {
			w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf(groupA)})
		}
		for _, a := range addrs[:3] {
			w.releaseHeld(groupA, a)
		}
		w.broker.Configure("new", configOf(groupA))
		w.pass(15 * time.Second)
		if n := w.count(groupA + " release"); n != 3 {
			t.Errorf("%d releases", n)
		}
		if w.broker.Observation("new").Report == nil {
			t.Error("the new group has no ranges yet")
		}
		w.resetCounts()
		w.pass(15 * time.Second)
		if n := w.count(groupA + " allocate"); n < 14 {
			t.Errorf("%d requests in 15 s with nothing else to do", n)
		}
	})
}

// While a system is away, what Services say for another reason stays.
func TestBrokerKeepsRefusals(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		w.holdAll(groupA)
		w.broker.SetRequests(noisy(0), []allocation.IPAMRequest{requestOf(groupA)})
		w.pass(time.Minute)
		const exhausted = "the memory has no free IPv4 address"
		w.wantReason(noisy(0), v1.ReasonExhausted, exhausted)
		w.resetCounts()
		for range 3 {
			w.systems[urlOf(groupA)].SetAway(true)
			w.pass(10 * time.Minute)
			w.systems[urlOf(groupA)].SetAway(false)
			w.pass(10 * time.Minute)
		}
		w.wantReason(noisy(0), v1.ReasonExhausted, exhausted)
		if n := w.answersChanged(); n != 0 {
			t.Errorf("%d changes of one answer", n)
		}
	})
}

// What a comparison, or a request, finds by an earlier configuration of a group is not taken
// for what the new one has.
func TestBrokerConfiguredMeanwhile(t *testing.T) {
	const other = "https://other"
	newWorld := func(w *brokerWorld) *allocation.Netbox {
		w.lock(func() {
			w.systems[other] = &ipamtest.Memory{
				Pool: netipx.MustParseIPRange("10.9.9.1-10.9.9.9"), Subnet: netip.MustParsePrefix("10.9.9.0/24"),
			}
			w.delay[urlOf(groupA)] = 5 * time.Second
		})
		config := configOf(groupA)
		config.Tenant = "new"
		w.lock(func() { w.byTenant = map[string]string{"new": other} })
		return config
	}
	t.Run("comparison", func(t *testing.T) {
		inBrokerWorld(t, func(w *brokerWorld) {
			config := newWorld(w)
			w.broker.Configure("new", configOf(groupA))
			w.pass(2 * time.Second)
			w.broker.Configure("new", config)
			w.pass(10 * time.Second)
			if o := w.broker.Observation("new"); o.Report == nil ||
				o.Report.Ranges[0].Addrs.From() != netip.MustParseAddr("10.9.9.1") {
				t.Errorf("observation: %+v", o)
			}
		})
	})
	t.Run("request", func(t *testing.T) {
		inBrokerWorld(t, func(w *brokerWorld) {
			config := newWorld(w)
			w.broker.SetRequests(web(0), []allocation.IPAMRequest{requestOf(groupA)})
			w.pass(2 * time.Second)
			w.broker.Configure(groupA, config)
			w.pass(20 * time.Second)
			if a := w.wantAddress(web(0)); a != netip.MustParseAddr("10.9.9.1") {
				t.Errorf("got %s", a)
			}
		})
	})
}

// An owner whose address is recorded already, as after a restart of the manager, gets it
// although others wait for a free one.
func TestBrokerExhaustedWithRecord(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		addrs := w.holdAll(groupA)
		w.systems[urlOf(groupA)].SetMark(addrs[4], noisy(49).Mark(ipamtest.Installation))
		for n := range 50 {
			w.broker.SetRequests(noisy(n), []allocation.IPAMRequest{requestOf(groupA)})
			w.pass(time.Millisecond)
		}
		w.pass(time.Second)
		if a := w.wantAddress(noisy(49)); a != addrs[4] {
			t.Errorf("got %s", a)
		}
	})
}

// By RequireDualStack, a Service gets both addresses or none. While one family has none, the
// other one is not allocated and released at each look at the Service.
func TestBrokerLoneFamily(t *testing.T) {
	inBrokerWorld(t, func(w *brokerWorld) {
		catalog := allocation.Catalog{groupA: {Reason: v1.ReasonAccepted, Group: allocation.Group{
			Name: groupA, Type: v1.PoolTypeNetbox, Netbox: configOf(groupA), Ranges: []allocation.Range{
				{Addrs: netipx.MustParseIPRange("10.0.0.1-10.0.0.9"), Subnet: netip.MustParsePrefix("10.0.0.0/24")},
				{Addrs: netipx.MustParseIPRange("fd00::1-fd00::9"), Subnet: netip.MustParsePrefix("fd00::/64")},
			}}}}
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "test", Name: "web0", UID: web(0).UID, Annotations: map[string]string{v1.AnnotationServiceGroup: groupA},
			},
		}
		svc.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicyRequireDualStack),
		}
		look := func() allocation.Result {
			result := allocation.Allocate(
				allocation.RequestOf(svc),
				&allocation.Inputs{Catalog: catalog, InUse: allocation.NewInUse(), Offers: w.broker.Offers(svc.UID)},
			)
			w.broker.SetRequests(web(0), result.IPAMRequests)
			w.pass(time.Second)
			return result
		}
		for range 5 {
			look()
		}
		w.resetCounts()
		for range 20 {
			if got := look(); got.Reason != v1.ReasonExhausted || len(got.Addresses) > 0 || got.IsAwaitingIPAM {
				t.Fatalf("got %+v", got)
			}
		}
		if n := w.count(groupA + " release"); n > 0 {
			t.Errorf("%d releases in 20 looks", n)
		}
		if n := w.count(groupA + " allocate"); n > 6 {
			t.Errorf("asked %d times in 20 looks", n)
		}
		if marks := w.systems[urlOf(groupA)].Marks(); len(marks) > 0 {
			t.Errorf("recorded: %v", marks)
		}
	})
}
