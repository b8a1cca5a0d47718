package controllers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// versionOf is a version of Service web with a UID. An empty record stands for none.
func versionOf(uid types.UID, version, record string) *corev1.Service {
	svc := loadBalancer("web", func(svc *corev1.Service) { svc.UID, svc.ResourceVersion = uid, version })
	if record != "" {
		svc.Status.Conditions = []metav1.Condition{
			{Type: v1.ConditionAllocationRecord, Status: metav1.ConditionTrue, Message: record},
		}
	}
	return svc
}

// waitingFor is a Service that waits for an address of a group, or of any group if that is empty.
func waitingFor(group string) *corev1.Service {
	return loadBalancer("waits-for-"+group, func(svc *corev1.Service) {
		svc.UID, svc.ResourceVersion = types.UID("waits-for-"+group), "1"
		if group != "" {
			svc.Annotations[v1.AnnotationServiceGroup] = group
		}
		svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAllocated, Status: metav1.ConditionFalse}}
	})
}

// withReady is a ServiceGroup with a status of condition Ready.
func withReady(sg *v1.ServiceGroup, status metav1.ConditionStatus) *v1.ServiceGroup {
	sg.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Status: status}}
	return sg
}

// TestReleaseWakesServices deletes a Service, or takes its address away, and shows which Services are looked at then:
// those that wait for the group of the address, and for a group that contains it now.
func TestReleaseWakesServices(t *testing.T) {
	const first, second = "10.0.0.1-10.0.0.9", "10.0.0.11-10.0.0.19"
	for _, row := range []struct {
		name, record, want string
		groups             []client.Object
	}{
		{
			"of its group", "10.0.0.1 group=a type=remote key=", "waits-for- waits-for-a",
			[]client.Object{oneAddress("a", first), oneAddress("b", second)},
		},
		{
			"of a group that was made again by another name", "10.0.0.1 group=a type=remote key=",
			"waits-for- waits-for-a waits-for-b", []client.Object{oneAddress("b", first), oneAddress("c", second)},
		},
		{
			"of another group, whose range contains the address now", "10.0.0.1 group=a type=remote key=",
			"waits-for- waits-for-a waits-for-b",
			[]client.Object{withReady(oneAddress("a", second), metav1.ConditionTrue), oneAddress("b", first)},
		},
		{
			"of another group, as its own is not ready", "10.0.0.1 group=a type=remote key=",
			"waits-for- waits-for-a waits-for-b",
			[]client.Object{withReady(oneAddress("a", first), metav1.ConditionFalse), oneAddress("b", first)},
		},
		{
			"of its group alone, as that is ready", "10.0.0.1 group=a type=remote key=", "waits-for- waits-for-a",
			[]client.Object{withReady(oneAddress("a", first), metav1.ConditionTrue), oneAddress("b", first)},
		},
		{
			"of two addresses, in two groups now", "10.0.0.1,10.0.0.11 group=a type=remote key=",
			"waits-for- waits-for-a waits-for-b waits-for-c", []client.Object{oneAddress("b", first), oneAddress("c", second)},
		},
		{"of no group", "none", "", []client.Object{oneAddress("a", first)}},
	} {
		had := versionOf("1", "10", row.record)
		for how, act := range map[string]func(*ServiceReconciler, *addedKeys){
			"deleted": func(r *ServiceReconciler, q *addedKeys) {
				r.serviceHandler().Delete(t.Context(), event.DeleteEvent{Object: had}, q)
			},
			"released": func(r *ServiceReconciler, q *addedKeys) {
				r.handleServiceUpdate(t.Context(), q, had, versionOf("1", "11", "none"))
			},
		} {
			r, _ := allocator(t, row.groups...)
			for _, svc := range []*corev1.Service{
				had, waitingFor("a"), waitingFor("b"), waitingFor("c"), waitingFor(""),
			} {
				r.index.observe(svc)
			}
			q := &addedKeys{}
			act(r, q)
			slices.Sort(q.names)
			if got := strings.Join(q.names, " "); got != row.want {
				t.Errorf("%s, %s: %q are looked at, want %q", row.name, how, got, row.want)
			}
		}
	}
}

// TestUnwrittenAddressWakesServices has an address not written to a Service for which it was set aside, and shows that
// Services that wait are looked at again, whoever finds that out.
func TestUnwrittenAddressWakesServices(t *testing.T) {
	had := versionOf("1", "10", "")
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(had)}
	for name, act := range map[string]func(*ServiceReconciler, *addedKeys){
		"a version without it": func(r *ServiceReconciler, q *addedKeys) {
			r.handleServiceUpdate(t.Context(), q, had, versionOf("1", "11", ""))
		},
		"another Service of its name": func(r *ServiceReconciler, q *addedKeys) {
			r.handleServiceUpdate(t.Context(), q, had, versionOf("2", "11", ""))
		},
		"a creation": func(r *ServiceReconciler, q *addedKeys) {
			r.serviceHandler().Create(t.Context(), event.CreateEvent{Object: versionOf("1", "11", "")}, q)
		},
		"a deletion": func(r *ServiceReconciler, q *addedKeys) {
			r.serviceHandler().Delete(t.Context(), event.DeleteEvent{Object: had}, q)
		},
		"a Service that is not there": func(r *ServiceReconciler, _ *addedKeys) {
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		},
	} {
		r, _ := allocator(t, oneAddress("default", "10.0.0.1"))
		q := &addedKeys{}
		if err := queueSource(&r.IPAM.serviceQueue).Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		r.index.observe(had)
		r.index.addPending(had, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
		r.index.observe(waitingFor("default"))
		act(r, q)
		if want := []string{"waits-for-default"}; !slices.Equal(q.names, want) {
			t.Errorf("%s: %q are looked at, want %q", name, q.names, want)
		}
		if n := r.index.inUse.Len(); n != 0 {
			t.Errorf("%s: %d addresses are in use", name, n)
		}
	}
}

// TestReconcileWakesServices has a Service edited while its address is written, so that the write is refused: the next
// look at it wakes the Services that wait, also if that is before the event of the edit.
func TestReconcileWakesServices(t *testing.T) {
	svc := versionOf("1", "", "")
	r, c := allocator(t, oneAddress("default", "10.0.0.1"), svc)
	q := &addedKeys{}
	if err := queueSource(&r.IPAM.serviceQueue).Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)}
	if err := c.Get(t.Context(), request.NamespacedName, svc); err != nil {
		t.Fatal(err)
	}
	r.index.observe(svc)
	r.index.addPending(svc, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	r.index.observe(waitingFor("default"))
	svc.Annotations = map[string]string{v1.AnnotationServiceGroup: "nowhere"}
	if err := c.Update(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if want := []string{"waits-for-default"}; !slices.Equal(q.names, want) {
		t.Errorf("%q are looked at, want %q", q.names, want)
	}
}
