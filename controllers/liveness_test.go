package controllers

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestLiveness moves a clock by hand. The Lease's own times are another clock's.
func TestLiveness(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLiveness(func() time.Time { return now })
	renewals := 0
	renew := func() {
		renewals++
		l.observe(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "purelb-node1"},
			Spec: coordinationv1.LeaseSpec{
				RenewTime:            ptr.To(metav1.NewMicroTime(time.Unix(int64(renewals), 0))),
				LeaseDurationSeconds: ptr.To[int32](3),
			},
		})
	}
	// told reports whether there was a signal since it was last asked.
	told := func() bool {
		for _, p := range l.nodes {
			l.tell(p)
		}
		select {
		case <-l.Changes():
			return true
		default:
			return false
		}
	}
	if got := l.Of("node1"); got != placement.Expired {
		t.Errorf("a node without a Lease is %v", got)
	}
	l.observe(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "manager.purelb.io"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}}})
	if len(l.nodes) != 0 {
		t.Errorf("the manager's own Lease counts as a node's: %v", l.nodes)
	}
	for _, step := range []struct {
		what   string
		after  time.Duration
		renews bool
		want   placement.Liveness
		told   bool
	}{
		{"first seen", 0, true, placement.Fresh, true},
		{"renewed in time", time.Second, true, placement.Fresh, false},
		{"not renewed for a little less than two thirds", 1999 * time.Millisecond, false, placement.Fresh, false},
		{"not renewed for two thirds", time.Millisecond, false, placement.Late, true},
		{"renewed late: it may be elected again", 0, true, placement.Fresh, true},
		{"not renewed for its whole duration", 3 * time.Second, false, placement.Expired, true},
		{"and still not", time.Hour, false, placement.Expired, false},
		{"back", 0, true, placement.Fresh, true},
	} {
		now = now.Add(step.after)
		if step.renews {
			renew()
		}
		if got := l.Of("node1"); got != step.want {
			t.Errorf("%s: is %v, want %v", step.what, got, step.want)
		}
		if got := told(); got != step.told {
			t.Errorf("%s: signalled %v, want %v", step.what, got, step.told)
		}
	}
}
