package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestReachableMovesNothing checks that placement is woken by what askers and watchers are told, by what nodes report
// of addresses that they announce, and by claims, and by nothing else that askers and watchers report.
func TestReachableMovesNothing(t *testing.T) {
	t.Parallel()
	version := func(generation int64, reachable metav1.ConditionStatus, asking *v1.Asking) *v1.Announcement {
		return &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Generation: generation}, Spec: v1.AnnouncementSpec{Asking: asking},
			Status: v1.AnnouncementStatus{Reachability: []v1.Reachability{{Reachable: reachable}}},
		}
	}
	watcher := func(generation int64, reason string, claimed ...v1.AddressStatus) *v1.Announcement {
		is := metav1.ConditionFalse
		if reason == "Watching" {
			is = metav1.ConditionTrue
		}
		return &v1.Announcement{
			ObjectMeta: metav1.ObjectMeta{Generation: generation}, Spec: v1.AnnouncementSpec{Standby: &v1.Standby{}},
			Status: v1.AnnouncementStatus{
				ObservedGeneration: 1, Addresses: claimed,
				Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: is, Reason: reason}},
			},
		}
	}
	claim := v1.AddressStatus{Address: "192.0.2.1", State: v1.StateAnnounced, Epoch: 2}
	for name, row := range map[string]struct {
		before, after *v1.Announcement
		want          bool
		wantSlow      bool // with the feature gate SlowLeases
	}{
		"a report":           {version(1, "True", &v1.Asking{}), version(1, "False", &v1.Asking{}), false, false},
		"something is asked": {version(1, "True", &v1.Asking{}), version(2, "True", &v1.Asking{}), true, true},
		"an announcer":       {version(1, "True", nil), version(1, "False", nil), true, true},
		"it watches":         {watcher(1, "NoAnswer"), watcher(1, "Watching"), false, true},
		"it does not watch":  {watcher(1, "Watching"), watcher(1, "Late"), false, true},
		"for another reason": {watcher(1, "NoAnswer"), watcher(1, "Late"), false, false},
		"a claim":            {watcher(1, "Watching"), watcher(1, "Watching", claim), true, true},
		"a claim is over":    {watcher(1, "Watching", claim), watcher(1, "Watching"), true, true},
		"another standby":    {watcher(1, "Watching"), watcher(2, "Watching"), true, true},
	} {
		update := event.UpdateEvent{ObjectOld: row.before, ObjectNew: row.after}
		if got := announcementPlacementChanged(false).Update(update); got != row.want {
			t.Errorf("%s wakes placement: %t", name, got)
		}
		if got := announcementPlacementChanged(true).Update(update); got != row.wantSlow {
			t.Errorf("%s wakes placement where Leases are slow: %t", name, got)
		}
	}
}
