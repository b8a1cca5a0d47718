package controllers

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func namespaceWith(labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: labels}}
}

// TestAttackRecreatedNamespace has a user delete a namespace that may use a group, and make another
// one of its name that may not, and a Service there, before the manager's cache has any of that
// but the Service.
func TestAttackRecreatedNamespace(t *testing.T) {
	gold, free := map[string]string{"tier": "gold"}, map[string]string{"tier": "free"}
	group := oneAddress("default", "10.0.0.1-10.0.0.9")
	group.Spec.AllowedNamespaces = &v1.AllowedNamespaces{
		From: v1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: gold},
	}
	for _, row := range []struct {
		name           string
		cached, stored map[string]string // labels; nil if there is no such namespace
		want           string            // reason of the condition, or empty if nothing was written
		isTriedAgain   bool
	}{
		{"nothing changed", gold, gold, v1.ReasonAllocated, false},
		{"another one of the name", gold, free, "", true},
		{"the cache has it by now", free, free, v1.ReasonNotAllowed, false},
		{"may use it by now", free, gold, v1.ReasonNotAllowed, false}, // until the cache has that
		{"the cache has none yet", nil, gold, "", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			objects := []client.Object{group.DeepCopy(), loadBalancer("web")}
			if row.cached != nil {
				objects = append(objects, namespaceWith(row.cached))
			}
			r, c := allocator(t, objects...)
			live, _ := allocator(t, namespaceWith(row.stored))
			r.apiReader = live.Client
			result, err := r.Reconcile(
				t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "a", Name: "web"}},
			)
			if err != nil {
				t.Fatal(err)
			}
			svc := &corev1.Service{}
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "web"}, svc); err != nil {
				t.Fatal(err)
			}
			got := ""
			if condition := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated); condition != nil {
				got = condition.Reason
			}
			// One that waits is looked at again for its event, much later.
			if isSoon := result.RequeueAfter > 0 && result.RequeueAfter < time.Minute; got != row.want ||
				isSoon != row.isTriedAgain {
				t.Errorf("%q, tried again after %s", got, result.RequeueAfter)
			}
		})
	}

	// A Service that has its address is not looked at twice.
	r, c := allocator(t, group.DeepCopy(), namespaceWith(gold), loadBalancer("web"))
	key := client.ObjectKey{Namespace: "a", Name: "web"}
	for i, stored := range []map[string]string{gold, free} {
		live, _ := allocator(t, namespaceWith(stored))
		r.apiReader = live.Client
		if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil ||
			result.RequeueAfter > 0 {
			t.Errorf("reconcile %d: %v, %v", i, result, err)
		}
	}
	svc := &corev1.Service{}
	if err := c.Get(t.Context(), key, svc); err != nil || len(svc.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("%v, %v", svc.Status, err)
	}
}

// TestSlimNamespace keeps of a namespace what ServiceGroups select by.
func TestSlimNamespace(t *testing.T) {
	ns := NamespaceMetadata()
	ns.Name, ns.Labels, ns.Annotations = "a", map[string]string{"tier": "gold"}, map[string]string{"large": "x"}
	got, err := SlimNamespace(ns)
	slim, ok := got.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || slim.Name != "a" || slim.Labels["tier"] != "gold" || slim.Annotations != nil ||
		slim.Kind != "Namespace" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := SlimNamespace("another"); got != "another" || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNamespaceLabelsChanged(t *testing.T) {
	change := func(before, after map[string]string) bool {
		return namespaceLabelsChanged.Update(event.UpdateEvent{
			ObjectOld: namespaceWith(before), ObjectNew: namespaceWith(after),
		})
	}
	if a, b := map[string]string{"a": "b"}, map[string]string{"a": "c"}; !change(a, b) || change(a, a) || !change(nil, a) {
		t.Error("changes of labels")
	}
	if namespaceLabelsChanged.Create(event.CreateEvent{}) || namespaceLabelsChanged.Delete(event.DeleteEvent{}) ||
		!namespaceLabelsChanged.Generic(event.GenericEvent{}) {
		t.Error("other events")
	}
}

// TestAdmissionOfGroups checks a change by which a group is the first to select namespaces: the namespace of
// the Service that has its address, and no other.
func TestAdmissionOfGroups(t *testing.T) {
	ns := namespaceWith(map[string]string{"tier": "gold"})
	before := oneAddress("default", "10.0.0.1-10.0.0.9")
	r, c := allocator(t, before, ns, benchService("a/web", "10.0.0.1", "default", v1.PoolTypeRemote))
	for tier, want := range map[string]string{
		"gold": "",
		"free": "spec.allowedNamespaces: leaves out namespaces with 1 address in use by 1 Service (a/web): they stay until " +
			"their Services go or ask for another group",
	} {
		a, err := AdmissionOfGroups(t.Context(), c, r.Namespace, true)
		if err != nil {
			t.Fatal(err)
		}
		after := before.DeepCopy()
		after.Spec.AllowedNamespaces = &v1.AllowedNamespaces{
			From: v1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}},
		}
		warnings, errs := a.AdmitUpdate(before, after)
		if got := strings.Join(warnings, "\n"); got != want || len(errs) > 0 {
			t.Errorf("%s: got %q, errors %v, want %q", tier, got, errs, want)
		}
	}
}
