package controllers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// history plays an API server and a watch that comes late, for a ledger.
type history struct {
	random   *rand.Rand
	revision int
	ledger   *ledger
	stored   map[string]*corev1.Service
	coming   []func() // what the watch has yet to show, in order
}

func (h *history) write(svc *corev1.Service) {
	h.revision++
	svc.ResourceVersion = fmt.Sprint(h.revision)
	h.stored[svc.Name] = svc
	h.coming = append(h.coming, func() { h.ledger.see(svc, false) })
}

func (h *history) act() {
	name := fmt.Sprintf("s%d", h.random.IntN(6))
	svc := h.stored[name].DeepCopy()
	switch n := h.random.IntN(10); {
	case svc == nil:
		svc = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(fmt.Sprint(h.revision)),
			Annotations: map[string]string{v1.AnnotationAllocatedBy: v1.Brand}}}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		h.write(svc)
	case n < 2:
		delete(h.stored, name)
		h.coming = append(h.coming, func() { h.ledger.drop(client.ObjectKeyFromObject(svc), svc.UID) })
	case n < 5: // its author edits it
		svc.Annotations[v1.AnnotationAllowSharedIP] = fmt.Sprint(h.random.IntN(2))
		svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocated, Status: []metav1.ConditionStatus{"True", "False"}[h.random.IntN(2)]}}
		h.write(svc)
	default: // the allocator writes it, if it knows the newest version
		if h.ledger.isBehind(svc) {
			return
		}
		h.ledger.see(svc, false)
		h.ledger.reserve(svc, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(h.random.IntN(8))})})
		reserved := h.ledger.inUse.Of(keyOf(svc)).Addresses
		if h.random.IntN(4) == 0 {
			return // it is not written, and nobody knows
		}
		written := svc.DeepCopy()
		written.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: reserved[len(reserved)-1].String()}}
		h.write(written)
		if h.random.IntN(4) > 0 { // else the answer is lost
			h.ledger.see(written, false)
		}
	}
}

// TestLedgerFollowsServices checks after random histories that the ledger is
// what one made from the Services alone would be, and on the way that no address
// of a stored Service counts as free.
func TestLedgerFollowsServices(t *testing.T) {
	for i := range 3000 {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		h := &history{random: rand.New(rand.NewPCG(seed, 3)), ledger: newLedger(true), stored: map[string]*corev1.Service{}}
		for range 60 {
			h.act()
			for len(h.coming) > 0 && h.random.IntN(3) > 0 {
				h.coming[0]()
				h.coming = h.coming[1:]
			}
			if h.random.IntN(30) == 0 { // a leader begins anew, and lists
				h.ledger = newLedger(true)
				for _, svc := range h.stored {
					h.ledger.see(svc, true)
				}
			}
			for _, svc := range h.stored {
				for _, a := range ingressOf(svc) {
					if !slices.ContainsFunc(h.ledger.inUse.Holders(a), func(has *allocation.Holder) bool { return has.Name == svc.Name }) {
						t.Fatalf("seed %d: %s of %s counts as free", seed, a, svc.Name)
					}
				}
			}
		}
		for _, show := range h.coming {
			show()
		}
		for _, svc := range h.stored { // written once more, so that nothing is in doubt
			h.coming = nil
			h.write(svc.DeepCopy())
			h.coming[0]()
		}
		fresh := newLedger(true)
		for _, svc := range h.stored {
			fresh.see(svc, false)
		}
		if diff := cmp.Diff(contents(fresh), contents(h.ledger)); diff != "" {
			t.Fatalf("seed %d (-anew +kept):\n%s", seed, diff)
		}
	}
}

// contents is all that a ledger says.
func contents(l *ledger) map[string]string {
	out := map[string]string{"addresses": fmt.Sprint(l.inUse.Len()), "services": fmt.Sprint(len(l.services))}
	for i := range 8 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		var names []string
		for _, h := range l.inUse.Holders(a) {
			names = append(names, h.String()+" "+h.SharingKey)
		}
		slices.Sort(names)
		out[a.String()] = fmt.Sprint(names)
	}
	var waiting []string
	for _, key := range l.pending(anyGroup) {
		waiting = append(waiting, key.String())
	}
	slices.Sort(waiting)
	out["waiting"] = fmt.Sprint(waiting)
	return out
}

// TestLedgerDecides lets two allocations be made before anything is written.
func TestLedgerDecides(t *testing.T) {
	group := v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: v1.DefaultServiceGroup}}
	group.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Subnet: "192.0.2.0/24", Pool: "192.0.2.1-192.0.2.2"}},
	}}
	facts := &allocation.Facts{Catalog: allocation.NewCatalog([]v1.ServiceGroup{group}, "purelb-system")}
	l := newLedger(true)
	var given []string
	for i := range 3 {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "10"}}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		l.see(svc, false)
		given = append(given, allocation.Join(l.decide(svc, facts).Addresses))
	}
	if want := []string{"192.0.2.1", "192.0.2.2", ""}; !slices.Equal(given, want) {
		t.Errorf("%v, not %v", given, want)
	}
}

// TestLedgerReserves checks that what is about to be written is nobody else's
// until a newer version of the Service is known, whatever else is seen.
func TestLedgerReserves(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "1", ResourceVersion: "10"}}
	a := netip.MustParseAddr("10.0.0.1")
	l := newLedger(true)
	l.see(svc, false)
	branded := svc.DeepCopy()
	branded.ResourceVersion = "12"
	l.see(branded, false)
	l.reserve(branded, []netip.Addr{a})
	for _, version := range []string{"9", "10", "12"} {
		old := svc.DeepCopy()
		old.ResourceVersion = version
		l.see(old, false)
		if len(l.inUse.Holders(a)) != 1 {
			t.Fatalf("after version %s it counts as free", version)
		}
	}
	if !l.isBehind(svc) || l.isBehind(branded) {
		t.Error("it does not know which version is newest")
	}
	other := svc.DeepCopy()
	other.ResourceVersion = "13"
	l.see(other, false)
	if len(l.inUse.Holders(a)) != 0 {
		t.Error("it is not free although the write can no longer go through")
	}
}
