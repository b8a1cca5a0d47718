package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// placementBench is a PlacementReconciler on an API server that only keeps objects.
type placementBench struct {
	*testing.T
	*PlacementReconciler
	api      client.Client
	now      time.Time
	renewals int
	writes   atomic.Int64
	// refusedNamespace is whose Services' entries the API server refuses.
	refusedNamespace string
	// refuses, if set, says which Announcements the API server does not take.
	refuses func(*v1.Announcement) bool
}

const benchNamespace = "purelb-system"

func newBench(t *testing.T, objects ...client.Object) *placementBench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &placementBench{T: t, now: time.Unix(1_000_000, 0)}
	b.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1.Announcement{}).
		WithIndex(&discoveryv1.EndpointSlice{}, byService, func(client.Object) []string { return nil }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.CreateOption) error {
				if err := b.accept(obj); err != nil {
					return err
				}
				if a, isAnnouncement := obj.(*v1.Announcement); isAnnouncement {
					b.checkSole(a)
				}
				obj.SetGeneration(1)
				obj.SetCreationTimestamp(metav1.NewTime(b.now))
				return c.Create(ctx, obj, o...)
			},
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
				if err := b.accept(obj); err != nil {
					return err
				}
				if a, ok := obj.(*v1.Announcement); ok { // as the API server does
					old := &v1.Announcement{}
					if err := c.Get(ctx, client.ObjectKeyFromObject(a), old); err != nil {
						return err
					}
					if a.Generation = old.Generation; !equality.Semantic.DeepEqual(old.Spec, a.Spec) {
						a.Generation++
					}
				}
				return c.Update(ctx, obj, o...)
			},
		}).Build()
	b.PlacementReconciler = b.newLeader()
	return b
}

// newLeader is a PlacementReconciler that has just become the leader.
func (b *placementBench) newLeader() *PlacementReconciler {
	now := func() time.Time { return b.now }
	r := &PlacementReconciler{
		Client: b.api, APIReader: b.api, Namespace: benchNamespace,
		IsDefaultLoadBalancer: true, Liveness: NewLivenessTracker(now), Now: now,
		Metrics: NewMetrics(prometheus.NewRegistry()), Explanations: &AddressExplanations{}, Recorder: &events.FakeRecorder{},
	}
	r.resetState()
	return r
}

// accept counts writes, and refuses some.
func (b *placementBench) accept(obj client.Object) error {
	var entries []v1.AnnouncedAddress
	switch o := obj.(type) {
	case *v1.Announcement:
		if b.refuses != nil && b.refuses(o) {
			return apierrors.NewTooManyRequests("busy", 1)
		}
		entries = o.Spec.Addresses
	case *v1.CommonAnnouncement:
		entries = o.Spec.Addresses
	default:
		return nil
	}
	b.writes.Add(1)
	for _, e := range entries {
		if b.refusedNamespace != "" &&
			slices.ContainsFunc(e.Services, func(s string) bool { return strings.HasPrefix(s, b.refusedNamespace+"/") }) {
			return apierrors.NewInvalid(v1.GroupVersion.WithKind("Announcement").GroupKind(), obj.GetName(), nil)
		}
	}
	return nil
}

// renewLeases has the agents of nodes renew their Leases.
func (b *placementBench) renewLeases(r *PlacementReconciler, nodes ...string) {
	b.renewals++
	for _, n := range nodes {
		r.Liveness.observeLease(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: v1.LeasePrefix + n},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Unix(int64(b.renewals), 0)}},
		})
	}
}

// place is one placement of a leader. It returns when there is to be another.
func (b *placementBench) place(r *PlacementReconciler) time.Duration {
	b.Helper()
	result, err := r.Reconcile(context.Background(), wholeCluster)
	if err != nil {
		b.Fatal(err)
	}
	return result.RequeueAfter
}

// report has the agents of nodes do what they are asked for. They write what has changed.
func (b *placementBench) report(nodes ...string) {
	b.Helper()
	for _, a := range b.announcements() {
		if !slices.Contains(nodes, a.Spec.NodeName) {
			continue
		}
		before := a.DeepCopy()
		a.Status.ObservedGeneration = a.Generation
		if a.Name == a.Spec.NodeName {
			a.Status.CommonAnnouncementsRevision = new(int64)
		}
		a.Status.Addresses = nil
		for _, e := range a.Spec.Addresses {
			a.Status.Addresses = append(
				a.Status.Addresses, v1.AddressStatus{Address: e.Address, Epoch: e.Epoch, State: v1.StateAnnounced},
			)
		}
		var n byte
		if _, err := fmt.Sscanf(a.Spec.NodeName, "n%d", &n); err != nil {
			b.Fatal(err)
		}
		a.Status.Interfaces = []v1.NodeInterface{
			{Name: "eth0", MAC: fmt.Sprintf("02:00:00:00:00:%02x", n), Subnets: []string{fmt.Sprintf("10.1.0.%d/24", 200+n)}},
		}
		if equality.Semantic.DeepEqual(before, &a) {
			continue
		}
		if err := b.api.Status().Update(context.Background(), &a); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *placementBench) announcements() []v1.Announcement {
	b.Helper()
	list, err := listAnnouncements(context.Background(), b.api, benchNamespace)
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// entries is what is asked for, as node address epoch claimPolicy.
func (b *placementBench) entries() []string {
	b.Helper()
	var out []string
	for _, a := range b.announcements() {
		for _, e := range a.Spec.Addresses {
			line := fmt.Sprintf("%s %s %d %s", a.Spec.NodeName, e.Address, e.Epoch, e.ClaimPolicy)
			if e.HandingOver {
				line += " leaving"
			}
			out = append(out, line)
		}
	}
	commons, err := listCommons(context.Background(), b.api, benchNamespace)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range commons {
		for _, e := range c.Spec.Addresses {
			out = append(out, "all "+e.Address)
		}
	}
	slices.Sort(out)
	return out
}

func (b *placementBench) expect(what string, want ...string) {
	b.Helper()
	if diff := cmp.Diff(want, b.entries()); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// setExcluded changes the label of a Node.
func (b *placementBench) setExcluded(name string, yes bool) {
	b.Helper()
	n := &corev1.Node{}
	if err := b.api.Get(context.Background(), client.ObjectKey{Name: name}, n); err != nil {
		b.Fatal(err)
	}
	if delete(n.Labels, corev1.LabelNodeExcludeBalancers); yes {
		n.Labels[corev1.LabelNodeExcludeBalancers] = ""
	}
	if err := b.api.Update(context.Background(), n); err != nil {
		b.Fatal(err)
	}
}

func benchNode(name string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{v1.LabelAgent: "default"}},
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func benchService(key, address, group string, poolType v1.PoolType) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: parseKey(key).Namespace, Name: parseKey(key).Name,
			Annotations: map[string]string{v1.AnnotationAllocatedBy: v1.Brand},
		},
	}
	record := allocation.Record{Addresses: []netip.Addr{netip.MustParseAddr(address)}, Group: group, Type: poolType}
	svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocationRecord, Message: record.String()}}
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	return svc
}

func benchAgent() *v1.LBNodeAgent {
	return &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "default"}}
}

// TestFaultRefusedObject has the API server refuse what is of some Services, of both
// kinds of addresses: others are announced, and the refused say so. This test shows the rows "it
// refuses an object, for what is in it or by a quota or another policy" of docs/trust.md and "hold up
// the placement of others" of docs/trust.md.
func TestFaultRefusedObject(t *testing.T) {
	b := newBench(t, benchAgent(), benchNode("n1"),
		benchService("attacker/x", "10.0.0.9", "g", v1.PoolTypeRemote),
		benchService("victim/bank", "10.0.0.77", "g", v1.PoolTypeRemote),
		benchService("attacker/y", "10.1.0.9", "l", v1.PoolTypeLocal),
		benchService("victim/shop", "10.1.0.77", "l", v1.PoolTypeLocal),
	)
	b.refusedNamespace = "attacker"
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	b.report("n1")
	wait := b.place(b.PlacementReconciler)
	b.expect("what is not refused", "all 10.0.0.77", "n1 10.1.0.77 1 Probe")
	for _, addr := range []string{"10.0.0.9", "10.1.0.9"} {
		if why, _ := b.Explanations.ExplanationFor(netip.MustParseAddr(addr)); why.Reason != v1.ReasonRefused {
			t.Errorf("%s is not announced: %+v", addr, why)
		}
	}
	if wait <= 0 || wait > time.Second {
		t.Errorf("the next attempt is in %s", wait)
	}
	b.report("n1")
	b.writes.Store(0)
	if b.place(b.PlacementReconciler); b.writes.Load() > 0 {
		t.Errorf("%d attempts at once", b.writes.Load())
	}

	// What comes later is not held up, and what is refused no more is made good.
	if err := b.api.Create(context.Background(),
		benchService("victim/late", "10.0.0.78", "g", v1.PoolTypeRemote)); err != nil {
		t.Fatal(err)
	}
	b.place(b.PlacementReconciler)
	b.expect("a new one", "all 10.0.0.77", "all 10.0.0.78", "n1 10.1.0.77 1 Probe")
	b.refusedNamespace = ""
	b.now = b.now.Add(time.Minute)
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	b.expect("all", "all 10.0.0.77", "all 10.0.0.78", "all 10.0.0.9", "n1 10.1.0.77 1 Probe", "n1 10.1.0.9 1 Probe")
	if why, is := b.Explanations.ExplanationFor(netip.MustParseAddr("10.0.0.9")); is {
		t.Errorf("it is still not announced: %+v", why)
	}
}

// TestFaultStaleLeader pauses a leader between its decision and its writes. Another
// becomes the leader, and decides otherwise. This test shows the row "a leader goes on after another
// has been elected" of docs/trust.md.
func TestFaultStaleLeader(t *testing.T) {
	ctx := context.Background()
	all := []string{"n1", "n2", "n3"}
	b := newBench(
		t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"),
		benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal),
	)
	for range 3 {
		b.renewLeases(b.PlacementReconciler, all...)
		b.place(b.PlacementReconciler)
		b.report(all...)
	}
	if got := b.entries(); len(got) != 1 {
		t.Fatalf("%v", got)
	}
	holder := strings.Fields(b.entries()[0])[0]
	b.setExcluded(holder, true)
	b.place(b.PlacementReconciler)
	b.expect("the holder is to hand over", holder+" 10.1.0.9 1 Probe leaving")
	b.report(holder)

	decide := func(r *PlacementReconciler) (*cluster, placement.Inputs, placement.Result) {
		in, err := gatherCluster(ctx, r.Client, benchNamespace)
		if err != nil {
			t.Fatal(err)
		}
		inputs := in.placementInputs(r.Liveness.LivenessOf, b.now, true)
		return in, inputs, placement.Place(inputs)
	}
	in, inputs, result := decide(b.PlacementReconciler)
	var chosen string
	for name, entries := range result.Entries {
		if name != holder && len(entries) > 0 {
			chosen = name
		}
	}
	if chosen == "" {
		t.Fatalf("no node is given it: %+v", result.Entries)
	}

	// The new leader does not hear of the node that the old one has chosen.
	next, other := b.newLeader(), ""
	for _, n := range all {
		if n != holder && n != chosen {
			other = n
		}
	}
	b.renewLeases(next, holder, other)
	b.place(next)
	want := []string{holder + " 10.1.0.9 1 Probe leaving", other + " 10.1.0.9 2 Takeover"}
	slices.Sort(want)
	b.expect("the new leader's choice", want...)
	if _, err := b.writeAnnouncements(ctx, in, &inputs, &result); !isOnlyOutdated(err) {
		t.Errorf("the old leader writes: %v", err)
	}
	b.expect("the old leader has changed nothing", want...)
}

// TestFailoverUnderNextLeader has another manager become the leader while an address fails over, as it
// does where the node that dies ran the leader. The next leader records the failover, once: that it is
// over follows from the Announcements.
func TestFailoverUnderNextLeader(t *testing.T) {
	all := []string{"n1", "n2", "n3"}
	b := newBench(
		t, benchAgent(), benchNode("n1"), benchNode("n2"), benchNode("n3"),
		benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal),
	)
	for range 3 {
		b.renewLeases(b.PlacementReconciler, all...)
		b.place(b.PlacementReconciler)
		b.report(all...)
	}
	holder := strings.Fields(b.entries()[0])[0]
	alive := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == holder })
	for range 4 {
		b.now = b.now.Add(time.Second)
		b.renewLeases(b.PlacementReconciler, alive...)
	}
	b.place(b.PlacementReconciler)
	if got := b.entries(); len(got) != 2 {
		t.Fatalf("it does not fail over: %v", got)
	}

	next, recorder := b.newLeader(), events.NewFakeRecorder(100)
	next.Recorder = recorder
	b.renewLeases(next, alive...)
	b.place(next)
	if len(recorder.Events) > 0 {
		t.Errorf("recorded before it is over: %s", <-recorder.Events)
	}
	b.report(alive...)
	for range 3 {
		b.place(next)
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("%d events", len(recorder.Events))
	}
	want := "Moved 10.1.0.9 from node " + holder + " to " + strings.Fields(b.entries()[0])[0] +
		", as nobody answered for it: " + holder + " has an agent"
	if got := <-recorder.Events; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestFaultDeletedHolder deletes the Announcement of a node that holds an address, past
// the policy that refuses that. Neither the manager that wrote the Announcement nor a new
// one gives the address to another node before the holder's agent has reported on a new
// Announcement and, as long as the agent reports the address, has had LingeringTime to
// withdraw it. Then the next node waits until the holder's kernel does not answer. This test shows the
// row "somebody deletes an Announcement" of docs/trust.md.
func TestFaultDeletedHolder(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("manager restarted %t", restarted), func(t *testing.T) {
			ctx := context.Background()
			all := []string{"n1", "n2"}
			b := newBench(
				t, benchAgent(), benchNode("n1"), benchNode("n2"), benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal),
			)
			for range 3 {
				b.renewLeases(b.PlacementReconciler, all...)
				b.place(b.PlacementReconciler)
				b.report(all...)
			}
			holder, other := strings.Fields(b.entries()[0])[0], "n1"
			if holder == other {
				other = "n2"
			}
			if err := b.api.Delete(
				ctx, &v1.Announcement{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: holder}},
			); err != nil {
				t.Fatal(err)
			}
			leader := b.PlacementReconciler
			if restarted {
				leader = b.newLeader()
			}
			place := func() {
				t.Helper()
				b.now = b.now.Add(time.Second)
				b.renewLeases(leader, all...)
				b.place(leader)
			}
			expectReason := func(want string) {
				t.Helper()
				why, _ := leader.Explanations.ExplanationFor(netip.MustParseAddr("10.1.0.9"))
				if why.Reason+": "+why.Message != want {
					t.Errorf("it is not announced as %+v, want %s", why, want)
				}
			}
			b.setExcluded(holder, true) // so that the address has to move in the end
			for range 3 {
				place()
				b.expect("the holder has not reported")
				expectReason("WaitingForFacts: waiting for the agent of node " + holder + " to report")
			}
			a := &v1.Announcement{}
			if err := b.api.Get(ctx, client.ObjectKey{Namespace: benchNamespace, Name: holder}, a); err != nil {
				t.Fatal("it is not made again: ", err)
			}
			a.Status = v1.AnnouncementStatus{ObservedGeneration: a.Generation, Interfaces: []v1.NodeInterface{
				{Name: "eth0", MAC: "02:00:00:00:00:99", Subnets: []string{"10.1.0.200/24"}},
			},
				Addresses: []v1.AddressStatus{{Address: "10.1.0.9", Epoch: 1, State: v1.StateAnnounced}}}
			if err := b.api.Status().Update(ctx, a); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				place()
				b.expect("the holder has not withdrawn it")
				expectReason("Announcing: waiting for node " + holder + " to withdraw it")
			}
			place()
			b.expect("it goes on", other+" 10.1.0.9 1 Probe")
			if err := b.api.Get(ctx, client.ObjectKey{Namespace: benchNamespace, Name: other}, a); err != nil {
				t.Fatal(err)
			}
			if macs := a.Spec.Addresses[0].PreviousMACs; !slices.Equal(macs, []string{"02:00:00:00:00:99"}) {
				t.Errorf("by which the holder is known: %v", macs)
			}
		})
	}
}

// TestMoveEvents checks that a handover is recorded once it is written, not before, and not
// again by a new leader.
func TestMoveEvents(t *testing.T) {
	all := []string{"n1", "n2"}
	b := newBench(
		t, benchAgent(), benchNode("n1"), benchNode("n2"), benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal),
	)
	recorder := events.NewFakeRecorder(100)
	leader := b.PlacementReconciler
	place := func() (recorded []string) {
		t.Helper()
		leader.Recorder = recorder
		b.now = b.now.Add(time.Minute) // what was refused is tried again
		b.renewLeases(leader, all...)
		b.place(leader)
		for len(recorder.Events) > 0 {
			recorded = append(recorded, <-recorder.Events)
		}
		return recorded
	}
	for range 3 {
		place()
		b.report(all...)
	}
	holder := strings.Fields(b.entries()[0])[0]
	b.setExcluded(holder, true)
	b.refusedNamespace = "a"
	for range 3 {
		if recorded := place(); len(recorded) > 0 {
			t.Errorf("recorded, although it is not written: %q", recorded)
		}
	}
	b.refusedNamespace = ""
	if recorded := place(); len(recorded) != 1 || !strings.Contains(recorded[0], "Handover") ||
		!strings.Contains(recorded[0], "Handing 10.1.0.9 over from node "+holder) {
		t.Errorf("recorded: %q", recorded)
	}
	b.expect("the handover has begun", holder+" 10.1.0.9 1 Probe leaving")
	leader = b.newLeader()
	for range 3 {
		if recorded := place(); len(recorded) > 0 {
			t.Errorf("recorded by the next leader: %q", recorded)
		}
		b.report(all...)
	}
}

// TestRevisionsArePruned removes an LBNodeAgent, its nodes and its CommonAnnouncements.
func TestRevisionsArePruned(t *testing.T) {
	ctx := context.Background()
	n := benchNode("n1")
	b := newBench(t, benchAgent(), n, benchService("a/b", "10.0.0.9", "g", v1.PoolTypeRemote))
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	b.expect("it is shared", "all 10.0.0.9")
	if got := b.state.highestRevision["default"]; got != 1 {
		t.Errorf("revision %d", got)
	}
	for _, obj := range []client.Object{n, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}} {
		if err := b.api.Delete(ctx, obj); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		b.now = b.now.Add(time.Minute)
		b.place(b.PlacementReconciler)
	}
	if len(b.state.highestRevision) > 0 || len(b.state.moveStarts) > 0 || len(b.state.unseenWrites) > 0 {
		t.Errorf("what is gone is remembered: %+v", b.state.highestRevision)
	}
}

// TestReportsDoNotDelay has an agent report between a decision and its writes: that is no
// reason to decide again.
func TestReportsDoNotDelay(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, benchAgent(), benchNode("n1"), benchService("a/b", "10.1.0.9", "l", v1.PoolTypeLocal))
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	b.report("n1")
	in, err := gatherCluster(ctx, b.api, benchNamespace)
	if err != nil {
		t.Fatal(err)
	}
	inputs := in.placementInputs(b.Liveness.LivenessOf, b.now, true)
	result := placement.Place(inputs)
	b.report("n1") // writes a new version
	a := b.announcements()[0]
	a.Status.Announced = 7
	if err := b.api.Status().Update(ctx, &a); err != nil {
		t.Fatal(err)
	}
	if _, err := b.writeAnnouncements(ctx, in, &inputs, &result); err != nil {
		t.Error(err)
	}
	b.expect("it is written", "n1 10.1.0.9 1 Probe")
}

// TestOwnedAnnouncement checks that an Announcement does not stay owned by its Node: the
// garbage collector would delete it with the Node, and what its agent reports with it.
func TestOwnedAnnouncement(t *testing.T) {
	n := benchNode("n1")
	a := &v1.Announcement{ObjectMeta: metav1.ObjectMeta{
		Namespace: benchNamespace, Name: "n1", Labels: map[string]string{"a": "b"},
		OwnerReferences: []metav1.OwnerReference{nodeOwnerReference(n)},
	},
		Spec: v1.AnnouncementSpec{
			NodeName: "n1", LBNodeAgent: "default", HeartbeatSeconds: 10, IncludeCommonAnnouncements: true,
		}}
	b := newBench(t, benchAgent(), n, a)
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	got := b.announcements()[0]
	if len(got.OwnerReferences) > 0 || got.Labels[v1.LabelNode] != "n1" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got.ObjectMeta)
	}
	b.writes.Store(0)
	if b.place(b.PlacementReconciler); b.writes.Load() > 0 {
		t.Errorf("it is written %d times more", b.writes.Load())
	}
}

// TestAttackGroupName has a user edit the annotation that says of which group the address of a
// Service is: the record decides.
func TestAttackGroupName(t *testing.T) {
	for _, name := range []string{"another", strings.Repeat("z", 300), strings.Repeat("z", 1<<20), "No Group\n", ""} {
		svc := benchService("attacker/x", "10.0.0.9", "gone", v1.PoolTypeRemote)
		svc.Annotations[v1.AnnotationAllocatedFrom] = name
		in := &cluster{services: []corev1.Service{*svc}}
		if got := in.placementAddresses(true)[0].Group; got != "gone" {
			t.Errorf("%.20q: group %.20q", name, got)
		}
	}
}

// TestFactsOfNode checks from which of a node's Announcements its facts are: the one that
// has the node's name.
func TestFactsOfNode(t *testing.T) {
	announcement := func(name string, reported bool, iface string, macs ...string) *v1.Announcement {
		a := &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Spec: v1.AnnouncementSpec{NodeName: "n1"},
		}
		if reported {
			a.Status.ObservedGeneration = 1
		}
		if iface != "" {
			a.Status.Interfaces = []v1.NodeInterface{{Name: v1.InterfaceName(iface)}}
		}
		a.Status.MACs = macs
		return a
	}
	for _, row := range []struct {
		name          string
		announcements []*v1.Announcement
		reported      bool
		want          string
		macs          []string
	}{
		{"none", nil, false, "", nil},
		{"not yet", []*v1.Announcement{announcement("n1", false, "")}, false, "", nil},
		{
			"reported", []*v1.Announcement{announcement("n1-x", true, ""), announcement("n1", true, "eth0", "m")}, true, "eth0",
			[]string{"m"},
		},
		{"reported, and no interface is selected", []*v1.Announcement{announcement("n1", true, "")}, true, "", nil},
		{
			"the first was made anew", []*v1.Announcement{announcement("n1-x", true, ""), announcement("n1", false, "")}, false,
			"", nil,
		},
	} {
		n := placement.Node{Name: "n1"}
		addReportedFacts(&n, row.announcements)
		got := ""
		for _, i := range n.Interfaces {
			got += i.Name
		}
		if got != row.want || n.HasReportedFacts != row.reported || !slices.Equal(n.MACs, row.macs) {
			t.Errorf("%s: interfaces %q, reported %t, MACs %v", row.name, got, n.HasReportedFacts, n.MACs)
		}
	}
}

// TestNodeByMAC checks of which node a MAC address is.
func TestNodeByMAC(t *testing.T) {
	announcement := func(node string, macs ...string) *v1.Announcement {
		a := &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: node}, Spec: v1.AnnouncementSpec{NodeName: node},
		}
		a.Status.MACs = macs
		a.Status.Interfaces = []v1.NodeInterface{{Name: "eth0", MAC: "first-of-" + node}}
		return a
	}
	b := newBench(t, announcement("n1", "m1", "both"), announcement("n2", "m2", "both"))
	r := &AnnouncedReconciler{Client: b.api, Namespace: benchNamespace}
	for mac, want := range map[string]string{"first-of-n1": "n1", "m2": "n2", "both": "", "": "", "other": ""} {
		if got := r.nodeByMAC(context.Background(), mac); got != want {
			t.Errorf("%q is of %q, want %q", mac, got, want)
		}
	}
}

// TestNodeDeletedBeforeItsLBNodeAgent deletes a Node that has an address which no other node can take, and then its
// LBNodeAgent: nothing is left that the deletion of the latter would wait for.
func TestNodeDeletedBeforeItsLBNodeAgent(t *testing.T) {
	const address = "10.1.0.9"
	b := newBench(t, benchAgent(), benchNode("n1"), benchService("default/web", address, "lan", v1.PoolTypeLocal))
	r := b.PlacementReconciler
	wait := func() { // the manager hears of Leases, but not of that of n1
		t.Helper()
		for range 2 * int(lostAfter/time.Second) {
			b.now = b.now.Add(time.Second)
			b.renewLeases(r, "n2")
			b.place(r)
		}
	}
	for range 3 {
		b.renewLeases(r, "n1")
		b.place(r)
		b.report("n1")
	}
	b.expect("placed", "n1 "+address+" 1 Probe")
	if err := b.api.Delete(context.Background(), benchNode("n1")); err != nil {
		t.Fatal(err)
	}
	wait()
	b.expect("the Node is deleted", "n1 "+address+" 1 Probe")
	if err := b.api.Delete(context.Background(), benchAgent()); err != nil {
		t.Fatal(err)
	}
	wait()
	if left := b.announcements(); len(left) > 0 {
		t.Errorf("Announcements are left: %+v", left)
	}
}

// TestFirstAnnouncementDeletedAsNodeLeaves deletes the Announcement that is named after a node whose agent is gone,
// while another of the node has yet to be withdrawn: the first is not made again, as no agent would read it, and as the
// API server would refuse it without the name of an LBNodeAgent.
func TestFirstAnnouncementDeletedAsNodeLeaves(t *testing.T) {
	n := benchNode("n1")
	delete(n.Labels, v1.LabelAgent)
	second := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "n1-2", Generation: 1},
		Spec: v1.AnnouncementSpec{NodeName: "n1", LBNodeAgent: "default", Addresses: []v1.AnnouncedAddress{
			{Address: "10.1.0.9", PrefixLength: 24, Type: v1.AnnounceLocal, ClaimPolicy: v1.ClaimProbe, Epoch: 1},
		}},
	}
	b := newBench(t, benchAgent(), n, second)
	b.renewLeases(b.PlacementReconciler, "n1")
	b.place(b.PlacementReconciler)
	var got []string
	for _, a := range b.announcements() {
		got = append(got, fmt.Sprintf("%s of %q leaving %t", a.Name, a.Spec.LBNodeAgent, a.Spec.AgentLeaving))
	}
	if diff := cmp.Diff([]string{`n1-2 of "default" leaving true`}, got); diff != "" {
		t.Errorf("Announcements (-want +got):\n%s", diff)
	}
}
