package controllers

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

func TestUntilFirstReport(t *testing.T) {
	allocated := metav1.NewTime(time.Now())
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	for _, row := range []struct {
		name        string
		reported    bool // that it is announced, or is not
		is          metav1.ConditionStatus
		later, want time.Duration
	}{
		{"not announced yet", false, no, time.Second, 2 * time.Second},
		{"not announced for long", false, no, 3 * time.Second, 0},
		{"announced", false, yes, time.Second, 0},
		{"it has reported something before", true, no, time.Second, 0},
		{"nothing to announce", false, "", time.Second, 0},
		{"the clock was set back", false, no, -time.Hour, 3 * time.Second},
	} {
		svc := &corev1.Service{
			Status: corev1.ServiceStatus{
				Conditions: []metav1.Condition{{Type: v1.ConditionAllocated, LastTransitionTime: allocated}},
			},
		}
		if row.reported {
			svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: v1.ConditionAnnounced, Status: yes})
		}
		report := announced.Report{Condition: metav1.Condition{Status: row.is}}
		if got := untilFirstReport(svc, report, allocated.Add(row.later)); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}

// TestEventMemoryIsPruned checks that nothing is remembered of Services that are gone, or
// have no addresses any more.
func TestEventMemoryIsPruned(t *testing.T) {
	released := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "released"}}
	b := newBench(t, released)
	r := &AnnouncedReconciler{
		Client: b.api, Namespace: benchNamespace, Explanations: &AddressExplanations{}, Now: time.Now,
	}
	r.state.events = map[client.ObjectKey]announced.EventMemory{}
	for _, name := range []string{"released", "deleted"} {
		key := client.ObjectKey{Namespace: "a", Name: name}
		r.state.events[key] = announced.EventMemory{}
		if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Error(err)
		}
	}
	if len(r.state.events) > 0 {
		t.Errorf("remembered: %v", r.state.events)
	}
}
