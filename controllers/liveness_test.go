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
	l := NewLivenessTracker(func() time.Time { return now })
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

// leaseWatch is what a manager's watch of Leases hears, by a clock that is moved by hand. The manager leads.
type leaseWatch struct {
	*LivenessTracker
	now      time.Time
	renewals int64
}

func newLeaseWatch() *leaseWatch {
	w := &leaseWatch{now: time.Unix(1000, 0)}
	w.LivenessTracker = NewLivenessTracker(func() time.Time { return w.now })
	return w
}

// hear hears of a renewal of each of some Leases. A manager and its agents have other clocks.
func (w *leaseWatch) hear(leases ...string) {
	for _, name := range leases {
		w.renewals++
		w.observeLease(leaseAt(name, w.renewals))
	}
}

func leaseAt(name string, renewal int64) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{
		RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(renewal, 0))), LeaseDurationSeconds: ptr.To[int32](3)}}
}

// pass lets some seconds pass, in which the leader renews its Lease as often as it does, and agents renew
// theirs each second.
func (w *leaseWatch) pass(seconds int, agents ...string) {
	for range seconds {
		for range time.Second / LeaderRetryPeriod {
			w.now = w.now.Add(LeaderRetryPeriod)
			w.hear(LeaderLease)
		}
		w.hear(agents...)
	}
}

func (w *leaseWatch) expect(t *testing.T, when string, want map[string]placement.Liveness) {
	t.Helper()
	for node, liveness := range want {
		if got := w.LivenessOf(node); got != liveness {
			t.Errorf("%s: %s is %v, want %v", when, node, got, liveness)
		}
	}
}

// TestFaultLivenessInQuiet checks that no Lease expires while the manager hears of no Lease, whatever the cause, and
// that each agent has the time of its Lease once the manager hears of some again. This test shows the row "a
// manager hears of no Lease for a while: the API server is away, a watch is lost, the manager was stopped" of
// docs/trust.md.
func TestFaultLivenessInQuiet(t *testing.T) {
	for _, quiet := range []time.Duration{2 * time.Second, 4 * time.Second, time.Hour} {
		for _, first := range []string{LeaderLease, "purelb-node1"} {
			w := newLeaseWatch()
			w.hear("purelb-node1", "purelb-node2", "purelb-dead")
			w.pass(10, "purelb-node1", "purelb-node2")
			w.expect(t, "at first", map[string]placement.Liveness{
				"node1": placement.Fresh, "node2": placement.Fresh, "dead": placement.Expired,
			})
			for range quiet / time.Second {
				w.now = w.now.Add(time.Second)
				w.SignalChanges()
				w.observeLease(leaseAt("purelb-node1", w.renewals-1)) // as a resync does
				for _, node := range []string{"node1", "node2"} {
					if w.LivenessOf(node) == placement.Expired || w.SilentFor(node) >= 3*time.Second {
						t.Fatalf("%s has expired, and is silent for %s, in a quiet of %s", node, w.SilentFor(node), quiet)
					}
				}
			}
			w.hear(first)
			w.expect(t, "after the quiet", map[string]placement.Liveness{
				"node1": placement.Fresh, "node2": placement.Fresh, "dead": placement.Expired,
			})
			w.pass(2, "purelb-node1")
			w.expect(t, "two seconds later", map[string]placement.Liveness{"node1": placement.Fresh, "node2": placement.Late})
			w.pass(1, "purelb-node1")
			w.expect(t, "where one does not come back", map[string]placement.Liveness{
				"node1": placement.Fresh, "node2": placement.Expired, "dead": placement.Expired,
			})
		}
	}
}

// TestLeaseExpiresInTime checks that an agent's Lease expires in time if the manager hears of its own Lease
// alone, of that of one other agent, or of those of agents that renew every ten seconds.
func TestLeaseExpiresInTime(t *testing.T) {
	for name, pass := range map[string]func(w *leaseWatch, seconds int){
		"its own":       func(w *leaseWatch, seconds int) { w.pass(seconds) },
		"another agent": func(w *leaseWatch, seconds int) { w.pass(seconds, "purelb-node2") },
		"no leader, another agent": func(w *leaseWatch, seconds int) {
			for range seconds {
				w.now = w.now.Add(time.Second)
				w.hear("purelb-node2")
			}
		},
		"no election": func(w *leaseWatch, seconds int) { w.now = w.now.Add(time.Duration(seconds) * time.Second) },
	} {
		w := newLeaseWatch()
		w.hear(LeaderLease) // of an earlier election, if there is none
		if name != "no election" {
			w.hear(LeaderLease)
		}
		w.hear("purelb-node1", "purelb-node2")
		pass(w, 2)
		w.expect(t, name+", two seconds", map[string]placement.Liveness{"node1": placement.Late})
		pass(w, 1)
		w.expect(t, name+", three seconds", map[string]placement.Liveness{"node1": placement.Expired})
		w.forgetLease(leaseAt("purelb-node1", 0))
		if len(w.leases) != 1 {
			t.Errorf("what is gone is remembered: %v", w.leases)
		}
	}
}

// TestFaultAgentDeadForLong has one of two agents be dead for an hour, and the other one be
// replaced, a few times: that no agent renews meanwhile does not revive the dead one. This test
// shows the row "its agent has been dead for long, and the last of the others is replaced" of
// docs/trust.md.
func TestFaultAgentDeadForLong(t *testing.T) {
	w := newLeaseWatch()
	w.hear("purelb-dead", "purelb-good")
	died := w.now
	w.pass(3600, "purelb-good")
	for replacement := range 3 {
		w.pass(4)
		w.expect(t, "all are dead", map[string]placement.Liveness{"good": placement.Expired, "dead": placement.Expired})
		w.hear("purelb-good")
		w.expect(t, "one is replaced", map[string]placement.Liveness{"good": placement.Fresh, "dead": placement.Expired})
		if got, want := w.SilentFor("dead"), w.now.Sub(died); got != want {
			t.Errorf("replacement %d: the agent that is dead is silent for %s, want %s", replacement, got, want)
		}
	}
}

// TestAttackLeaseDuration has an agent say that its Lease lasts for ever. This test shows the row
// "look alive long after its last renewal" of docs/trust.md.
func TestAttackLeaseDuration(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLivenessTracker(func() time.Time { return now })
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
		{"a slow one again", 10 * time.Second, true, 19 * time.Second, placement.Fresh},
		{"one that is to be faster from now on", time.Second, false, 0, placement.Fresh},
		{"and has had half of the time", time.Second, false, 2 * time.Second, placement.Late},
		{"and has had all of it", time.Second, false, time.Second, placement.Expired},
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
	l := NewLivenessTracker(func() time.Time { return now })
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
		for _, observed := range l.leases {
			l.signalChange(observed)
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

// TestDeletedLeaseOfAnother deletes a Lease that is no agent's, and has the name of a node: the node's agent lives on.
func TestDeletedLeaseOfAnother(t *testing.T) {
	w := newLeaseWatch()
	w.hear("purelb-node1")
	w.forgetLease(leaseAt("node1", 1))
	w.expect(t, "a Lease with the name of the node is deleted", map[string]placement.Liveness{"node1": placement.Fresh})
	w.forgetLease(leaseAt("purelb-node1", 1))
	w.expect(t, "that of its agent is deleted", map[string]placement.Liveness{"node1": placement.Expired})
}
