package controllers

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestReminders plays Services that wait, a look every minute, and shows when they say so again.
func TestReminders(t *testing.T) {
	t.Parallel()
	r, key := &reminders{}, client.ObjectKey{Namespace: "a", Name: "b"}
	start := time.Unix(1_000_000, 0)
	// play looks once a minute, and returns the minutes in which the Service says why it waits.
	play := func(from, to int, refusal string) []int {
		var said []int
		for minute := from; minute < to; minute++ {
			isDue, wait := r.schedule(key, refusal, start.Add(time.Duration(minute)*time.Minute))
			if isDue {
				said = append(said, minute-from)
			}
			if (wait > 0) != (refusal != "") || wait > reminderMax {
				t.Fatalf("minute %d: waits %s", minute, wait)
			}
		}
		return said
	}
	said := play(0, 24*60, "Exhausted: nothing is free")
	for i := range said {
		gap := said[i]
		if i > 0 {
			gap -= said[i-1]
		}
		most := min(5<<i, 50)
		if gap > most+1 || gap < most*7/10 {
			t.Errorf("%d min before number %d", gap, i+1)
		}
	}
	if n := len(said); n < 24*60/51 || n > 24*60/35+4 {
		t.Errorf("%d times in a day", n)
	}
	if other := play(2000, 2010, "NotAllowed: no"); len(other) != 1 || other[0] < 3 {
		t.Errorf("another refusal: %v", other)
	}
	if none := play(2010, 2100, ""); len(none) > 0 || len(r.services) > 0 {
		t.Errorf("a Service that has its addresses: %v, remembered %v", none, r.services)
	}
	if again := play(2100, 2110, "NotAllowed: no"); len(again) != 1 || again[0] < 3 {
		t.Errorf("waiting anew: %v", again)
	}
}

// TestServiceSaysAgainThatItWaits checks that a Service whose refusal was reported says so again when it is due, and
// forgets that when it has its addresses.
func TestServiceSaysAgainThatItWaits(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	r := &ServiceReconciler{Recorder: recorder}
	svc := withConditions("waits", "F")
	refused := allocation.Result{Reason: v1.ReasonExhausted, Message: "nothing is free"}
	now := time.Unix(1_000_000, 0)
	if wait := r.remind(svc, &refused, now); wait < 3*time.Minute || wait > 5*time.Minute || len(recorder.Events) > 0 {
		t.Fatalf("waits %s, %d events", wait, len(recorder.Events))
	}
	if wait := r.remind(svc, &refused, now.Add(5*time.Minute)); wait < 7*time.Minute || wait > 10*time.Minute {
		t.Errorf("waits %s", wait)
	}
	select {
	case event := <-recorder.Events:
		if !strings.Contains(event, v1.EventAllocationFailed) || !strings.Contains(event, "Exhausted: nothing is free") {
			t.Error(event)
		}
	default:
		t.Error("no event")
	}
	allocated := allocation.Result{Reason: v1.ReasonAllocated}
	if wait := r.remind(svc, &allocated, now); wait != 0 || len(r.reminders.services) > 0 {
		t.Errorf("waits %s, remembered %v", wait, r.reminders.services)
	}
}

// TestWaitingServiceIsLookedAtAgain checks that a Service that waits is reconciled when it is to say so again, and that
// one that has its address is not.
func TestWaitingServiceIsLookedAtAgain(t *testing.T) {
	waits, served := loadBalancer("waits"), loadBalancer("served")
	waits.Annotations = map[string]string{v1.AnnotationServiceGroup: "none"}
	r, _ := allocator(t, oneAddress("default", "10.0.0.1-10.0.0.9"), waits, served)
	for _, row := range []struct {
		svc      *corev1.Service
		isLooked bool
	}{{waits, true}, {served, false}} {
		key := client.ObjectKeyFromObject(row.svc)
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		if err != nil || (result.RequeueAfter >= time.Minute) != row.isLooked {
			t.Errorf("%s: in %s, %v", key.Name, result.RequeueAfter, err)
		}
	}
}
