package controllers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/test/seeds"
)

// history plays an API server, and a watch that comes late, for an index.
type history struct {
	random   *rand.Rand
	revision int
	index    *serviceIndex
	stored   map[string]*corev1.Service
	coming   []func() // what the watch has yet to show, in order
}

func (h *history) write(svc *corev1.Service) {
	h.revision++
	svc.ResourceVersion = fmt.Sprint(h.revision)
	h.stored[svc.Name] = svc
	h.coming = append(h.coming, func() { h.index.observe(svc) })
}

func (h *history) act() {
	name := fmt.Sprintf("s%d", h.random.IntN(6))
	svc := h.stored[name].DeepCopy()
	switch n := h.random.IntN(10); {
	case svc == nil:
		svc = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name,
			UID:         types.UID(fmt.Sprint(h.revision)),
			Annotations: map[string]string{v1.AnnotationAllocatedBy: v1.Brand}}}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		h.write(svc)
	case n < 2:
		delete(h.stored, name)
		h.coming = append(h.coming, func() { h.index.remove(client.ObjectKeyFromObject(svc), svc.UID) })
	case n < 5: // its author edits it
		svc.Annotations[v1.AnnotationAllowSharedIP] = fmt.Sprint(h.random.IntN(2))
		svc.Status.Conditions = []metav1.Condition{
			{Type: v1.ConditionAllocated, Status: []metav1.ConditionStatus{"True", "False"}[h.random.IntN(2)]},
		}
		h.write(svc)
	default: // the allocator writes it, if it knows the newest version
		if h.index.knowsNewer(svc) {
			return
		}
		h.index.observe(svc)
		h.index.addPending(svc, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(h.random.IntN(8))})})
		reserved := h.index.inUse.Service(KeyOf(svc)).Addresses
		if h.random.IntN(4) == 0 {
			return // it is not written, and nobody knows
		}
		written := svc.DeepCopy()
		written.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: reserved[len(reserved)-1].String()}}
		h.write(written)
		if h.random.IntN(4) > 0 { // else the answer is lost
			h.index.observeWritten(written)
		}
	}
}

// TestServiceIndexFollowsServices checks after random histories that the index is
// what an index made from the Services alone would be, and on the way that no address of a
// stored Service counts as free.
func TestServiceIndexFollowsServices(t *testing.T) {
	first := seeds.First(t)
	for i := range uint64(3000) {
		seed := first + i
		h := &history{
			random: rand.New(rand.NewPCG(seed, 3)), index: newServiceIndex(true, time.Now), stored: map[string]*corev1.Service{},
		}
		for range 60 {
			h.act()
			for len(h.coming) > 0 && h.random.IntN(3) > 0 {
				h.coming[0]()
				h.coming = h.coming[1:]
			}
			if h.random.IntN(30) == 0 { // a new leader lists all
				h.index = newServiceIndex(true, time.Now)
				for _, svc := range h.stored {
					h.index.observeUncached(svc)
				}
			}
			for _, svc := range h.stored {
				for _, a := range allocation.ShownAddresses(svc) {
					if !slices.ContainsFunc(
						h.index.inUse.ServicesWith(a), func(has *allocation.Service) bool { return has.Name == svc.Name },
					) {
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
		fresh := newServiceIndex(true, time.Now)
		for _, svc := range h.stored {
			fresh.observe(svc)
		}
		if diff := cmp.Diff(contents(fresh), contents(h.index)); diff != "" {
			t.Fatalf("seed %d (-anew +kept):\n%s", seed, diff)
		}
	}
}

// contents writes down all that an index says.
func contents(l *serviceIndex) map[string]string {
	out := map[string]string{"addresses": fmt.Sprint(l.inUse.Len()), "services": fmt.Sprint(len(l.services))}
	for i := range 8 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		var names []string
		for _, h := range l.inUse.ServicesWith(a) {
			names = append(names, h.String()+" "+h.SharingKey)
		}
		slices.Sort(names)
		out[a.String()] = fmt.Sprint(names)
	}
	var waiting []string
	for _, key := range l.servicesWaitingFor(anyGroup) {
		waiting = append(waiting, key.String())
	}
	slices.Sort(waiting)
	out["waiting"] = fmt.Sprint(waiting)
	return out
}

// TestServiceIndexAllocates makes three decisions before anything is written.
func TestServiceIndexAllocates(t *testing.T) {
	group := v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: v1.DefaultServiceGroup}}
	group.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
		V4Pools: []v1.AddressPool{{Subnet: "192.0.2.0/24", Pool: "192.0.2.1-192.0.2.2"}},
	}}
	facts := &allocation.Inputs{Catalog: allocation.NewCatalog([]v1.ServiceGroup{group}, "purelb-system")}
	l := newServiceIndex(true, time.Now)
	var given []string
	for i := range 3 {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "a", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "10",
			},
		}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		l.observe(svc)
		given = append(given, allocation.JoinAddresses(l.allocate(svc, facts).Addresses))
	}
	if want := []string{"192.0.2.1", "192.0.2.2", ""}; !slices.Equal(given, want) {
		t.Errorf("%v, not %v", given, want)
	}
}

// TestServiceIndexCountsWaiting follows one Service that waits until it waits no more.
func TestServiceIndexCountsWaiting(t *testing.T) {
	key := client.ObjectKey{Namespace: "a", Name: "b"}
	exhausted := &allocation.Result{Reason: v1.ReasonExhausted, RequestedGroup: "g"}
	allocated := &allocation.Result{Reason: v1.ReasonAllocated, RequestedGroup: "g"}
	service := func(uid types.UID, version string) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: uid, ResourceVersion: version}}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		return svc
	}
	for name, row := range map[string]struct {
		act   func(x *serviceIndex)
		waits bool
	}{
		"nothing happens": {func(*serviceIndex) {}, true},
		"it is edited":    {func(x *serviceIndex) { x.observe(service("1", "11")) }, true},
		"an IPAM system is asked": {func(x *serviceIndex) {
			x.noteWait(key, &allocation.Result{IsAwaitingIPAM: true})
		}, true},
		"it gets an address":       {func(x *serviceIndex) { x.noteWait(key, allocated) }, false},
		"it is deleted":            {func(x *serviceIndex) { x.remove(key, "1") }, false},
		"another one has its name": {func(x *serviceIndex) { x.observe(service("2", "11")) }, false},
		"it is no load balancer any more": {func(x *serviceIndex) {
			svc := service("1", "11")
			svc.Spec.Type = corev1.ServiceTypeClusterIP
			x.observe(svc)
		}, false},
	} {
		x := newServiceIndex(true, time.Now)
		x.observe(service("1", "10"))
		x.noteWait(key, exhausted)
		row.act(x)
		want := map[waitReason]int{}
		if row.waits {
			want[waitReason{"g", v1.ReasonExhausted}] = 1
		}
		if got := x.countWaiting(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestServiceIndexKeepsPendingAddresses checks that pending addresses count as in use until
// the index knows a newer version of the Service, whatever else it observes.
func TestServiceIndexKeepsPendingAddresses(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "1", ResourceVersion: "10"}}
	a := netip.MustParseAddr("10.0.0.1")
	l := newServiceIndex(true, time.Now)
	l.observe(svc)
	branded := svc.DeepCopy()
	branded.ResourceVersion = "12"
	l.observe(branded)
	l.addPending(branded, []netip.Addr{a})
	for _, version := range []string{"9", "10", "12"} {
		old := svc.DeepCopy()
		old.ResourceVersion = version
		l.observe(old)
		if len(l.inUse.ServicesWith(a)) != 1 {
			t.Fatalf("after version %s it counts as free", version)
		}
	}
	if !l.knowsNewer(svc) || l.knowsNewer(branded) {
		t.Error("it does not know which version is newest")
	}
	other := svc.DeepCopy()
	other.ResourceVersion = "13"
	l.observe(other)
	if len(l.inUse.ServicesWith(a)) != 0 {
		t.Error("it is not free although the write can no longer go through")
	}
}

// TestServiceIndexNotesReleases deletes Services, and replaces one by another of its name,
// in the orders in which watches and reconciles may show it.
func TestServiceIndexNotesReleases(t *testing.T) {
	service := func(uid types.UID, version, record string) *corev1.Service {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: uid, ResourceVersion: version}}
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocationRecord, Message: record}}
		return svc
	}
	const one, two = "10.0.0.1 group=g type=local key=", "10.0.0.2 group=g type=local key="
	key := client.ObjectKey{Namespace: "a", Name: "b"}
	for name, row := range map[string]struct {
		act  func(x *serviceIndex)
		want string
	}{
		"deleted":                    {func(x *serviceIndex) { x.remove(key, "1") }, "1 10.0.0.1"},
		"deleted, seen twice":        {func(x *serviceIndex) { x.remove(key, ""); x.remove(key, "1") }, "1 10.0.0.1"},
		"another one deleted before": {func(x *serviceIndex) { x.remove(key, "0") }, ""},
		"changed":                    {func(x *serviceIndex) { x.observe(service("1", "20", two)) }, ""},
		"changed, then deleted": {
			func(x *serviceIndex) { x.observe(service("1", "20", two)); x.remove(key, "1") }, "1 10.0.0.2",
		},
		"released, then deleted": {
			func(x *serviceIndex) { x.observe(service("1", "20", "none")); x.remove(key, "1") }, "",
		},
		"replaced": {
			func(x *serviceIndex) { x.observe(service("2", "20", "none")); x.remove(key, "1") }, "1 10.0.0.1",
		},
		"replaced, and both deleted": {
			func(x *serviceIndex) { x.observe(service("2", "20", two)); x.remove(key, "2") }, "1 10.0.0.1; 2 10.0.0.2",
		},
	} {
		x := newServiceIndex(true, time.Now)
		x.observe(service("1", "10", one))
		row.act(x)
		var got []string
		for _, released := range x.takeReleased(key) {
			got = append(got, string(released.uid)+" "+allocation.JoinAddresses(released.addresses))
		}
		if text := strings.Join(got, "; "); text != row.want {
			t.Errorf("%s: released %q, want %q", name, text, row.want)
		}
		if len(x.released) != 0 {
			t.Errorf("%s: reported releases are kept: %v", name, x.released)
		}
	}
	foreign := newServiceIndex(false, time.Now) // Services without a class are another's
	foreign.observe(service("1", "10", one))
	if foreign.remove(key, "1"); len(foreign.released) != 0 {
		t.Errorf("released for another controller: %v", foreign.released)
	}
}

// TestServiceIndexFreesAddresses shows which addresses come to be free by what the index learns of a Service to which
// an address is about to be written.
func TestServiceIndexFreesAddresses(t *testing.T) {
	const record = "10.0.0.1 group=g type=local key="
	key := client.ObjectKey{Namespace: "a", Name: "web"}
	observing := func(svc *corev1.Service) func(*serviceIndex) freedAddresses {
		return func(x *serviceIndex) freedAddresses { return x.observe(svc) }
	}
	for name, row := range map[string]struct {
		act   func(x *serviceIndex) freedAddresses
		want  string
		inUse int // addresses
	}{
		"written":          {observing(versionOf("1", "11", record)), "", 1},
		"not written":      {observing(versionOf("1", "11", "")), "* 10.0.0.1", 0},
		"the same version": {observing(versionOf("1", "10", "")), "", 1},
		"replaced":         {observing(versionOf("2", "11", "")), "* 10.0.0.1", 0},
		"deleted":          {func(x *serviceIndex) freedAddresses { return x.remove(key, "1") }, "* 10.0.0.1", 0},
		"another one deleted before": {
			func(x *serviceIndex) freedAddresses { return x.remove(key, "0") }, "", 1,
		},
		"written, then deleted": {func(x *serviceIndex) freedAddresses {
			x.observeWritten(versionOf("1", "11", record))
			return x.remove(key, "1")
		}, "g 10.0.0.1", 0},
		"written, and about to be written again, then deleted": {func(x *serviceIndex) freedAddresses {
			svc := versionOf("1", "11", record)
			x.observeWritten(svc)
			x.addPending(svc, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
			return x.remove(key, "1")
		}, "g 10.0.0.1", 0},
		"deleted, then written": {func(x *serviceIndex) freedAddresses {
			x.remove(key, "1")
			return x.observeWritten(versionOf("1", "11", record))
		}, "", 0},
		"replaced, then written": {func(x *serviceIndex) freedAddresses {
			x.observe(versionOf("2", "12", ""))
			return x.observeWritten(versionOf("1", "11", record))
		}, "", 0},
	} {
		x := newServiceIndex(true, time.Now)
		svc := versionOf("1", "10", "")
		x.observe(svc)
		x.addPending(svc, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
		got, text := row.act(x), ""
		if len(got.addresses) > 0 {
			text = got.group + " " + allocation.JoinAddresses(got.addresses)
		}
		if text != row.want || x.inUse.Len() != row.inUse {
			t.Errorf(
				"%s: %q comes to be free, and %d are in use; want %q and %d", name, text, x.inUse.Len(), row.want, row.inUse,
			)
		}
	}
}
