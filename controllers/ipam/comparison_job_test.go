package ipam

import (
	"testing"
	"time"
)

// A group is compared at once when something hints at changes, unless that was done in the last
// minute, or fails: then the comparison's back-off says when.
func TestComparisonSoon(t *testing.T) {
	for _, row := range []struct {
		name    string
		synced  time.Duration // ago
		failure *Error
		want    bool
	}{
		{"compared a minute ago", minSyncInterval, nil, false},
		{"compared more than a minute ago", minSyncInterval + 1, nil, true},
		{"the last comparison has failed", time.Hour, errNoAnswer, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newClocked(group1)
			g := c.groups[group1]
			g.comparisonSchedule.dueAt = c.now.Add(time.Hour)
			g.observation.SyncedAt, g.comparisonFailure = c.now.Add(-row.synced), row.failure
			g.hastenComparisonIfOld(c.now)
			if isDue := c.isDue(&g.comparisonSchedule); isDue != row.want {
				t.Errorf("compared at once: %v", isDue)
			}
		})
	}
}
