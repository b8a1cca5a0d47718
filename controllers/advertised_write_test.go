package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestAdvertisedWrites plays minutes in which the one session of a node flaps: a Service is not written for what does
// not last, and at most once in five seconds for what does.
func TestAdvertisedWrites(t *testing.T) {
	record := allocation.Record{Group: "far", Type: v1.PoolTypeRemote}
	record.Addresses = append(record.Addresses, netip.MustParseAddr("10.1.0.1"))
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "10.1.0.1"}}},
			Conditions: []metav1.Condition{
				{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: record.String()},
				{Type: v1.ConditionAllocated, Status: metav1.ConditionTrue},
			},
		},
	}
	announcement := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "n1"},
		Spec: v1.AnnouncementSpec{NodeName: "n1", Addresses: []v1.AnnouncedAddress{{
			Address: "10.1.0.1", Type: v1.AnnounceVirtual, Interface: "kube-lb0", ServiceGroup: "far", Services: []string{"a/b"},
		}}},
		Status: v1.AnnouncementStatus{Addresses: []v1.AddressStatus{{Address: "10.1.0.1", State: v1.StateAnnounced}}},
	}
	routing := &v1.NodeRouting{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "n1"},
		Spec: v1.NodeRoutingSpec{
			NodeName: "n1", Peers: []v1.RoutingPeer{{Name: "p", Address: "192.0.2.1", Families: []v1.IPFamily{"IPv4"}}},
		},
		Status: v1.NodeRoutingStatus{Sessions: []v1.RoutingSession{
			{Peer: "p", Neighbor: "192.0.2.1", Families: []v1.IPFamily{"IPv4"}},
		}},
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	writes := 0
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(svc, announcement, routing).
		WithStatusSubresource(&corev1.Service{}).
		WithIndex(&v1.Announcement{}, byService, servicesOfObject).
		WithIndex(&v1.CommonAnnouncement{}, byService, servicesOfObject).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceApply: func(ctx context.Context, c client.Client, subresource string, ac runtime.ApplyConfiguration,
				o ...client.SubResourceApplyOption) error {
				writes++
				return c.SubResource(subresource).Apply(ctx, ac, o...)
			},
		}).Build()
	now, recorded := time.Unix(1_000_000, 0), events.NewFakeRecorder(1000)
	r := &AnnouncedReconciler{
		Client: api, Recorder: recorded, Namespace: benchNamespace, IsDefaultLoadBalancer: true,
		Explanations: &AddressExplanations{}, Now: func() time.Time { return now },
	}
	key := client.ObjectKey{Namespace: "a", Name: "b"}
	// play reconciles the Service once a second with each of some states of the session, and returns how often the
	// Service was written, and what it says.
	play := func(seconds int, states ...v1.SessionState) (int, string) {
		t.Helper()
		before := writes
		for i := range seconds {
			s := &routing.Status.Sessions[0]
			if s.State, s.Advertised = states[i%len(states)], 0; s.State == v1.SessionEstablished {
				s.Advertised = 1
			}
			if err := api.Update(context.Background(), routing); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			now = now.Add(time.Second)
		}
		stored := &corev1.Service{}
		if err := api.Get(context.Background(), key, stored); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(stored.Status.Conditions, v1.ConditionAdvertised)
		if c == nil {
			return writes - before, ""
		}
		return writes - before, fmt.Sprintf("%s %s", c.Status, c.Reason)
	}
	up, down := []v1.SessionState{v1.SessionEstablished}, []v1.SessionState{"Idle"}
	for _, row := range []struct {
		name    string
		seconds int
		states  []v1.SessionState
		writes  int
		says    string
		events  map[string]int
	}{
		{"announced, and not advertised yet", 4, down, 1, "", map[string]int{"Normal AnnouncingNonLocal": 1}},
		{"advertised", 60, up, 1, "True Advertised", map[string]int{}},
		{"flapping every second", 300, slices.Concat(down, up), 0, "True Advertised", map[string]int{}},
		{"a moment", 4, down, 0, "True Advertised", map[string]int{}},
		{"up again", 4, up, 0, "True Advertised", map[string]int{}},
		{"down", 60, down, 1, "False NoSession", map[string]int{"Warning NoSession": 1}},
		{
			"flapping for 10 s each", 200, slices.Concat(slices.Repeat(up, 10), slices.Repeat(down, 10)), 20, "False NoSession",
			map[string]int{"Warning NoSession": 10, "Normal Advertised": 10},
		},
	} {
		for len(recorded.Events) > 0 {
			<-recorded.Events
		}
		n, says := play(row.seconds, row.states...)
		got := map[string]int{}
		for len(recorded.Events) > 0 {
			words := strings.Fields(<-recorded.Events)
			got[words[0]+" "+words[1]]++
		}
		if n != row.writes || says != row.says || !maps.Equal(got, row.events) {
			t.Errorf("%s: %d writes, %q, events %v; want %d, %q, %v", row.name, n, says, got, row.writes, row.says, row.events)
		}
	}
	if len(r.state.settling) != 0 {
		t.Errorf("what does not change is remembered: %v", r.state.settling)
	}
	if err := api.Delete(context.Background(), announcement); err != nil {
		t.Fatal(err)
	}
	if n, says := play(60, "Idle"); says != "" || n != 2 { // that it is not announced, and then that it is not Virtual
		t.Errorf("without a place: %d writes, %q", n, says)
	}
}

// TestAdvertisedMovesNothing checks that a change of the condition wakes neither the allocator nor placement, and that
// it wakes the reconciler that writes it: the cache that the reconciler compared with may have been out of date.
func TestAdvertisedMovesNothing(t *testing.T) {
	t.Parallel()
	before, after := withConditions("b", "TTT"), withConditions("b", "TTF")
	for _, svc := range []*corev1.Service{before, after} {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.1.0.1"}}
	}
	update := event.UpdateEvent{ObjectOld: before, ObjectNew: after}
	for name, row := range map[string]struct {
		changed predicate.Predicate
		want    bool
	}{
		"the allocator": {allocationChanged, false}, "placement": {servicePlacementChanged, false},
		"the report": {serviceReportChanged, true},
	} {
		if got := row.changed.Update(update); got != row.want {
			t.Errorf("%s wakes: %t", name, got)
		}
	}
}
