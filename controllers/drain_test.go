package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestUntilRoutesWithdrawn says for how long an excluded node keeps its Virtual addresses.
func TestUntilRoutesWithdrawn(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	routing := func(peers int, drains time.Duration, isDrained bool, generation, observed int64) *v1.NodeRouting {
		r := &v1.NodeRouting{
			Spec:   v1.NodeRoutingSpec{Peers: make([]v1.RoutingPeer, peers)},
			Status: v1.NodeRoutingStatus{Drained: isDrained, ObservedGeneration: observed},
		}
		r.Generation = generation
		if drains >= 0 {
			r.Spec.DrainSince = &metav1.Time{Time: now.Add(-drains)}
		}
		return r
	}
	for _, row := range []struct {
		name    string
		routing *v1.NodeRouting
		want    time.Duration
	}{
		{"no speaker", nil, 0},
		{"no neighbour", routing(0, time.Second, false, 1, 1), 0},
		{"about to drain", routing(1, -1, false, 1, 1), 30 * time.Second},
		{"drains", routing(1, 8*time.Second, false, 2, 2), 22 * time.Second},
		{"has drained", routing(1, 8*time.Second, true, 2, 2), 0},
		{"had drained the time before", routing(1, time.Second, true, 4, 3), 29 * time.Second},
		{"the speaker does not answer", routing(1, time.Minute, false, 2, 1), 0},
	} {
		if got := untilRoutesWithdrawn(row.routing, now); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}
