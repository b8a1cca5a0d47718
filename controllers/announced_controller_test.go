package controllers

import (
	"context"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

func TestUntilFirstReport(t *testing.T) {
	allocated := metav1.NewTime(time.Now())
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	for _, row := range []struct {
		name        string
		reported    metav1.ConditionStatus // that it is announced, or is not
		is          metav1.ConditionStatus
		newest      time.Duration // how long ago the newest address was new, by now
		later, want time.Duration
	}{
		{"not announced yet", "", no, time.Second, time.Second, 2 * time.Second},
		{"not announced for long", "", no, 3 * time.Second, 3 * time.Second, 0},
		{"announced", "", yes, time.Second, time.Second, 0},
		{"it was announced before", yes, no, time.Hour, time.Second, 0},
		{"it was announced, and got another address", yes, no, time.Second, time.Hour, 2 * time.Second},
		{"it was not announced, and got another address", no, no, time.Second, time.Hour, 0},
		{"nothing to announce", "", "", time.Second, time.Second, 0},
		{"the clock was set back", "", no, -time.Hour, -time.Hour, 3 * time.Second},
	} {
		svc := &corev1.Service{
			Status: corev1.ServiceStatus{
				Conditions: []metav1.Condition{{Type: v1.ConditionAllocated, LastTransitionTime: allocated}},
			},
		}
		if row.reported != "" {
			svc.Status.Conditions = append(
				svc.Status.Conditions, metav1.Condition{Type: v1.ConditionAnnounced, Status: row.reported},
			)
		}
		report := announced.Report{Condition: metav1.Condition{Status: row.is}}
		now := allocated.Add(row.later)
		if got := untilFirstReport(svc, report, now.Add(-row.newest), now); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}

// TestUntilExplained has Services that a process looks at before and after it knows which agents are silent.
func TestUntilExplained(t *testing.T) {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	begin := time.Now()
	for _, row := range []struct {
		name   string
		before string
		is     metav1.ConditionStatus
		after  time.Duration // since the first placement; less than 0 is before
		want   time.Duration
	}{
		{"it was in doubt", v1.ReasonHolderSilent, yes, -time.Second, firstReportWait},
		{"it had no node", v1.ReasonNotAnnounced, yes, -time.Second, firstReportWait},
		{"it was in doubt, and agents are not silent yet", v1.ReasonHolderSilent, yes, 3 * time.Second, firstReportWait},
		{"it was in doubt, and is not any more", v1.ReasonHolderSilent, yes, 5 * time.Second, 0},
		{"it was on its way", v1.ReasonAnnouncing, yes, -time.Second, 0},
		{"it is announced as before", v1.ReasonAnnounced, yes, -time.Second, 0},
		{"it is not announced any more", v1.ReasonAnnounced, no, -time.Second, 0},
		{"it is new", "", yes, -time.Second, 0},
	} {
		svc := &corev1.Service{}
		if row.before != "" {
			svc.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAnnounced, Reason: row.before}}
		}
		r := &AnnouncedReconciler{
			Explanations: &AddressExplanations{}, Now: func() time.Time { return begin.Add(row.after) },
		}
		if row.after >= 0 {
			r.Explanations.set(nil, nil, begin)
		}
		if got := r.untilExplained(svc, announced.Report{Condition: metav1.Condition{Status: row.is}}); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}

// TestDoubtSettles has a Service whose announcement is in doubt for a second, and later for longer.
func TestDoubtSettles(t *testing.T) {
	yes := metav1.Condition{Type: v1.ConditionAnnounced, Status: metav1.ConditionTrue}
	doubt := metav1.Condition{Type: v1.ConditionAnnounced, Status: metav1.ConditionUnknown, Reason: v1.ReasonHolderSilent}
	svc := &corev1.Service{Status: corev1.ServiceStatus{Conditions: []metav1.Condition{yes}}}
	state, begin := &announcedState{}, time.Now()
	for _, step := range []struct {
		at        time.Duration // since the beginning
		wanted    metav1.Condition
		isSilent  bool
		want      metav1.ConditionStatus
		wantAgain time.Duration
	}{
		{0, doubt, true, metav1.ConditionTrue, 5 * time.Second},
		{time.Second, yes, false, metav1.ConditionTrue, 0},
		{10 * time.Second, doubt, true, metav1.ConditionTrue, 5 * time.Second},
		{14 * time.Second, doubt, true, metav1.ConditionTrue, time.Second},
		{15 * time.Second, doubt, true, metav1.ConditionUnknown, 0},
	} {
		report := announced.Report{Condition: step.wanted, DependsOnSilence: step.isSilent}
		got, wait := state.settleAnnounced(svc, report, begin.Add(step.at))
		if got.Status != step.want || wait != step.wantAgain {
			t.Errorf("after %s: %s, again in %s; want %s, %s", step.at, got.Status, wait, step.want, step.wantAgain)
		}
	}
	if len(state.settling) != 0 {
		t.Errorf("%d changes are pending", len(state.settling))
	}
}

// TestNewestAddress notes the addresses of a Service that is seen for the first time, gets a second address, another
// one for its first, loses the second, gets another one for that, and is forgotten.
func TestNewestAddress(t *testing.T) {
	var state announcedState
	key, start := client.ObjectKey{Namespace: "a", Name: "b"}, time.Unix(1000, 0)
	first, second := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")
	third := netip.MustParseAddr("192.0.2.2")
	for i, step := range []struct {
		addrs       []netip.Addr
		hasReported bool
		want        time.Time
	}{
		{[]netip.Addr{first}, true, time.Time{}},
		{[]netip.Addr{first, second}, true, start.Add(time.Second)},
		{[]netip.Addr{first, second}, true, start.Add(time.Second)},
		{[]netip.Addr{third, second}, true, start.Add(3 * time.Second)},
		{[]netip.Addr{third}, true, time.Time{}},
		{[]netip.Addr{first}, true, time.Time{}},
	} {
		now := start.Add(time.Duration(i) * time.Second)
		if got := state.noteAddresses(key, step.addrs, step.hasReported, now); got != step.want {
			t.Errorf("step %d: since %s, want %s", i, got, step.want)
		}
	}
	state.forget(key)
	if len(state.addresses) > 0 {
		t.Errorf("not forgotten: %v", state.addresses)
	}
	if got := state.noteAddresses(key, []netip.Addr{first, second}, false, start); !got.IsZero() {
		t.Errorf("both are new: since %s", got)
	}
}

// TestEventMemoryIsPruned checks that nothing is remembered of Services that are gone, or
// have no addresses any more.
func TestEventMemoryIsPruned(t *testing.T) {
	released := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "released"}}
	b := newBench(t, released)
	r := &AnnouncedReconciler{
		Client: b.api, Namespace: benchNamespace, Explanations: &AddressExplanations{}, Now: time.Now,
	}
	r.state.events = map[client.ObjectKey]announced.EventMemory{}
	for _, name := range []string{"released", "deleted"} {
		key := client.ObjectKey{Namespace: "a", Name: name}
		r.state.events[key] = announced.EventMemory{}
		if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Error(err)
		}
	}
	if len(r.state.events) > 0 {
		t.Errorf("remembered: %v", r.state.events)
	}
}
