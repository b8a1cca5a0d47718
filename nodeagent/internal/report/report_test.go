package report

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
)

// Stations claim addresses of many Announcements, whose statuses change all the time, also while they
// are written: each is written in its turn. This test shows the row "keep a node from reporting" of
// docs/trust.md.
func TestAttackReportsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, rounds = 4 * MaxParallelWrites, 12
		r := &Reporter[purelbv1.AnnouncementStatus]{
			Tasks: tasks.Goroutines{}, Failures: pacing.Backoff{Min: time.Second, Max: time.Second},
		}
		announcements := make([]purelbv1.Announcement, count)
		want, got := map[string]int{}, map[string]int{}
		for i := range announcements {
			announcements[i].Name = fmt.Sprintf("node1-%02d", i)
			want[announcements[i].Name] = rounds * MaxParallelWrites / count
		}
		changes := int32(0)
		change := func() {
			changes++
			var statuses []Status[purelbv1.AnnouncementStatus]
			for i := range announcements {
				after := purelbv1.AnnouncementStatus{Announced: changes}
				statuses = append(statuses, Status[purelbv1.AnnouncementStatus]{Object: &announcements[i], After: after})
			}
			r.Set(statuses)
		}
		for range rounds {
			change()
			time.Sleep(time.Second)
			batch, _ := r.dueReports()
			change()
			for _, report := range batch {
				got[report.key.Name]++
			}
			if err := r.noteWritten(batch, make([]error, len(batch))); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}
