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
		l.observeLease(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "purelb-node1"},
			Spec: coordinationv1.LeaseSpec{
				RenewTime:            ptr.To(metav1.NewMicroTime(time.Unix(int64(renewals), 0))),
				LeaseDurationSeconds: ptr.To[int32](3),
			},
		})
	}
	// signalled reports whether there was a signal since it was last asked.
	signalled := func() bool {
		for _, p := range l.leases {
			l.signalChange(p)
		}
		select {
		case <-l.Changes():
			return true
		default:
			return false
		}
	}
	if got := l.LivenessOf("node1"); got != placement.Expired {
		t.Errorf("a node without a Lease is %v", got)
	}
	l.observeLease(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "manager.purelb.io"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}},
	})
	if len(l.leases) != 0 {
		t.Errorf("the manager's own Lease counts as a node's: %v", l.leases)
	}
	for _, step := range []struct {
		what        string
		after       time.Duration
		renews      bool
		want        placement.Liveness
		isSignalled bool
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
		if got := l.LivenessOf("node1"); got != step.want {
			t.Errorf("%s: is %v, want %v", step.what, got, step.want)
		}
		if got := signalled(); got != step.isSignalled {
			t.Errorf("%s: signalled %v, want %v", step.what, got, step.isSignalled)
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
		if a, b := l.LivenessOf("node1"), l.LivenessOf("node2"); a != node1 || b != node2 {
			t.Errorf("%s: %v and %v", when, a, b)
		}
	}
	l.observeLease(lease("node1", 1))
	l.observeLease(lease("node2", 1))
	expect("at first", placement.Fresh, placement.Fresh)
	now = now.Add(time.Minute)
	expect("in the gap", placement.Expired, placement.Expired)
	l.observeLease(lease("node1", 2))
	expect("after the gap", placement.Fresh, placement.Fresh)
	now = now.Add(2 * time.Second)
	l.observeLease(lease("node1", 3))
	now = now.Add(time.Second)
	expect("where one does not come back", placement.Fresh, placement.Expired)
	l.observeLease(lease("node1", 4))
	expect("and stays away", placement.Fresh, placement.Expired)
	l.forgetLease(lease("node2", 1))
	if len(l.leases) != 1 {
		t.Errorf("what is gone is remembered: %v", l.leases)
	}
}

// TestFaultAgentDeadForLong has one of two agents be dead for an hour, and the other one be
// replaced, a few times: that no Lease is renewed meanwhile does not revive the dead one. This test
// shows the row "its agent has been dead for long, and the last of the others is replaced" of
// docs/trust.md.
func TestFaultAgentDeadForLong(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLiveness(func() time.Time { return now })
	renewals := int64(0)
	renew := func(node string) {
		renewals++
		l.observeLease(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "purelb-" + node},
			Spec: coordinationv1.LeaseSpec{
				RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(renewals, 0))), LeaseDurationSeconds: ptr.To[int32](3)}})
	}
	died := now
	renew("dead")
	renew("good")
	for range 3600 {
		now = now.Add(time.Second)
		renew("good")
	}
	for replacement := range 3 {
		now = now.Add(4 * time.Second)
		renew("good")
		if got := l.LivenessOf("good"); got != placement.Fresh {
			t.Errorf("replacement %d: the agent that is replaced is %v", replacement, got)
		}
		if got := l.LivenessOf("dead"); got != placement.Expired {
			t.Errorf("replacement %d: the agent that is dead is %v", replacement, got)
		}
		if got, want := l.SilentFor("dead"), now.Sub(died); got != want {
			t.Errorf("replacement %d: the agent that is dead is silent for %s, want %s", replacement, got, want)
		}
	}

	now = now.Add(2 * time.Second)
	renew("good")
	renew("dead") // is back, and dies again
	now = now.Add(time.Second)
	renew("good")
	now = now.Add(4 * time.Second)
	renew("good") // it may have been the watch
	if got := l.LivenessOf("dead"); got != placement.Fresh {
		t.Errorf("an agent that renewed shortly before none did is %v after that", got)
	}
	now = now.Add(4 * time.Second)
	renew("good") // it was not
	if got := l.LivenessOf("dead"); got != placement.Expired {
		t.Errorf("an agent that did not come back with the others is %v", got)
	}
}

// TestAttackLeaseDuration has an agent say that its Lease lasts for ever. This test shows the row
// "look alive long after its last renewal" of docs/trust.md.
func TestAttackLeaseDuration(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLiveness(func() time.Time { return now })
	renewals := int64(0)
	renew := func() {
		renewals++
		l.observeLease(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "purelb-node1"},
			Spec: coordinationv1.LeaseSpec{
				RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(renewals, 0))), LeaseDurationSeconds: ptr.To[int32](1<<31 - 1)}})
	}
	for _, step := range []struct {
		what      string
		heartbeat time.Duration // that is set; 0 is none
		renews    bool
		after     time.Duration
		want      placement.Liveness
	}{
		{"before anybody has said how often it renews", 0, true, 29 * time.Second, placement.Late},
		{"and longer", 0, false, time.Second, placement.Expired},
		{"a slow one", 10 * time.Second, true, 29 * time.Second, placement.Late},
		{"a slow one, longer", 10 * time.Second, false, time.Second, placement.Expired},
		{"one that is to be faster, and does not know yet", time.Second, true, 9 * time.Second, placement.Fresh},
		{"and has had the time", time.Second, true, 21 * time.Second, placement.Expired},
		{"a fast one", time.Second, true, 2 * time.Second, placement.Late},
		{"a fast one, longer", time.Second, false, time.Second, placement.Expired},
		{"one that is to be slower", 10 * time.Second, true, 19 * time.Second, placement.Fresh},
	} {
		if step.heartbeat > 0 {
			l.SetHeartbeats(map[string]time.Duration{"node1": step.heartbeat})
		}
		if step.renews {
			renew()
		}
		now = now.Add(step.after)
		if got := l.LivenessOf("node1"); got != step.want {
			t.Errorf("%s: is %v, want %v", step.what, got, step.want)
		}
	}
	l.SetHeartbeats(nil)
	if len(l.limits) != 0 {
		t.Errorf("what is gone is remembered: %v", l.limits)
	}
}

// TestExpiries signals that a Lease has expired, is renewed after that or for the first time,
// and nothing between.
func TestExpiries(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLiveness(func() time.Time { return now })
	renewals := int64(0)
	for _, step := range []struct {
		what   string
		after  time.Duration
		renews bool
		want   bool
	}{
		{"first seen", 0, true, true},
		{"renewed", time.Second, true, false},
		{"late", 2 * time.Second, false, false},
		{"renewed late", 0, true, false},
		{"expired", 3 * time.Second, false, true},
		{"still expired", time.Second, false, false},
		{"renewed again", 0, true, true},
	} {
		now = now.Add(step.after)
		if step.renews {
			renewals++
			l.observeLease(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: "purelb-node1"},
				Spec: coordinationv1.LeaseSpec{
					RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(renewals, 0))), LeaseDurationSeconds: ptr.To[int32](3),
				},
			})
		}
		for _, f := range l.leases {
			l.signalChange(f)
		}
		got := false
		select {
		case <-l.Expiries():
			got = true
		default:
		}
		if got != step.want {
			t.Errorf("%s: signalled %t, want %t", step.what, got, step.want)
		}
	}
}
