package ipam

import (
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// A Service whose request is not answered says so after two seconds if the system is slow, and
// after ten if others are served before it.
func TestLateAnswer(t *testing.T) {
	for _, row := range []struct {
		name         string
		group        string
		busy, waited time.Duration
		want         string // the reason; empty for no answer
	}{
		{"not for two seconds yet", group1, 2 * time.Second, 2*time.Second - 1, ""},
		{"the request under way takes two seconds", group1, 2 * time.Second, 2 * time.Second, v1.ReasonIPAMUnavailable},
		{"no request takes two seconds", group1, 2*time.Second - 1, 10*time.Second - 1, ""},
		{"nothing is under way", group1, -1, 10*time.Second - 1, ""},
		{"others have been served for ten seconds", group1, 2*time.Second - 1, 10 * time.Second, v1.ReasonWaitingForIPAM},
		{"the group is not known, for less than two seconds", "new", -1, 2*time.Second - 1, ""},
		{"the group is not known, for two seconds", "new", -1, 2 * time.Second, v1.ReasonWaitingForIPAM},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			if q, _ := c.queueOf(group1); row.busy >= 0 {
				q.busySince = c.now.Add(-row.busy)
			}
			got, isLate := c.lateAnswer(row.group, row.waited)
			if got.Reason != row.want || isLate != (row.want != "") || got.IsWaiting != isLate {
				t.Errorf("got %+v (%v)", got, isLate)
			}
		})
	}
}
