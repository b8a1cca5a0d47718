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

// TestLivenessAfterGap checks that a watch that had stopped does not make all
// agents but the first heard of seem dead.
func TestLivenessAfterGap(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLiveness(func() time.Time { return now })
	lease := func(node string, at int64) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "purelb-" + node}, Spec: coordinationv1.LeaseSpec{
			RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(at, 0))), LeaseDurationSeconds: ptr.To[int32](3)}}
	}
	expect := func(when string, node1, node2 placement.Liveness) {
		t.Helper()
		if a, b := l.Of("node1"), l.Of("node2"); a != node1 || b != node2 {
			t.Errorf("%s: %v and %v", when, a, b)
		}
	}
	l.observe(lease("node1", 1))
	l.observe(lease("node2", 1))
	expect("at first", placement.Fresh, placement.Fresh)
	now = now.Add(time.Minute)
	expect("in the gap", placement.Expired, placement.Expired)
	l.observe(lease("node1", 2))
	expect("after the gap", placement.Fresh, placement.Fresh)
	now = now.Add(2 * time.Second)
	l.observe(lease("node1", 3))
	now = now.Add(time.Second)
	expect("where one does not come back", placement.Fresh, placement.Expired)
	l.observe(lease("node1", 4))
	expect("and stays away", placement.Fresh, placement.Expired)
	l.forget(lease("node2", 1))
	if len(l.nodes) != 1 {
		t.Errorf("what is gone is remembered: %v", l.nodes)
	}
}
