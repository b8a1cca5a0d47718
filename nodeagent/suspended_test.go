package nodeagent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// suspend makes the node have been suspended for a time: other nodes have gone on, and the clock by
// which Go tells the time has stood still.
func (w *world) suspend(d time.Duration) {
	w.freshness.mu.Lock()
	defer w.freshness.mu.Unlock()
	before := w.freshness.suspendedFor()
	w.freshness.suspendedFor = func() time.Duration { return before + d }
}

// beat makes the agent have listed and renewed just now.
func (w *world) beat() {
	w.freshness.noteBeat()
	w.freshness.noteListed()
	w.freshness.noteRenewed(time.Now())
}

// An agent is fresh for a period and a second after its last renewal began, and for two seconds if the next one has
// failed or the node was suspended, by the clock of those who were awake. A renewal that was under way while the node
// was suspended, or a list before it, says nothing of what came afterwards.
func TestFreshness(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name string
		// beforeBeat, duringBeat and since are for how long the node was suspended before the agent began
		// to list and to renew, until the renewal succeeded, and since then; awake is for how long it has
		// been awake since the renewal began.
		beforeBeat, duringBeat, since, awake time.Duration
		want                                 bool
	}{
		{"just renewed", 0, 0, 0, 0, true},
		{"renewed two periods ago", 0, 0, 0, 2 * s, true},
		{"renewed longer ago", 0, 0, 0, 2*s + 1, false},
		{"suspended before it renewed", time.Hour, 0, 0, 2 * s, true},
		{"the clocks were read at different moments", 0, 0, s/10 - 1, 2 * s, true},
		{"the clocks were read at different moments, the other way round", 0, 0, -s / 10, 2 * s, true},
		{"suspended for one period", 0, 0, s, s, true},
		{"suspended for one period, and then awake", 0, 0, s, s + 1, false},
		{"suspended for long", 0, 0, 2*s + 1, 0, false},
		{"suspended for long while it renewed", 0, time.Hour, 0, 0, false},
		{"suspended for years", 0, 0, 1 << 62, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				suspended := tc.beforeBeat
				f := newFreshness(time.Now, suspendedSinceBoot)
				f.suspendedFor = func() time.Duration { return suspended }
				f.setPeriod([]purelbv1.Announcement{*announcementOf("node1")})
				if f.isFresh() {
					t.Error("it is fresh before it has renewed")
				}
				f.noteBeat()
				suspended += tc.duringBeat
				f.noteRenewed(time.Now())
				suspended += tc.since
				time.Sleep(tc.awake)
				if got := f.isFresh(); got != tc.want {
					t.Errorf("fresh: %t", got)
				}
			})
		})
	}
}

// An agent with a slow Lease is fresh for longer, and current only for as long as one with a quick Lease.
func TestFreshnessOfSlowLease(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name             string
		suspended, awake time.Duration // since the renewal began
		hasFailed        bool
		freshFor         time.Duration
		isCurrent        bool
	}{
		{"just renewed", 0, 0, false, 11 * s, true},
		{"renewed two seconds ago", 0, 2 * s, false, 9 * s, true},
		{"renewed longer ago", 0, 2*s + 1, false, 9*s - 1, false},
		{"the next one is due", 0, 10 * s, false, s, false},
		{"the next one is late", 0, 11*s + 1, false, -1, false},
		{"suspended for a second", s, s, false, 0, true},
		{"suspended for three seconds", 3 * s, 0, false, -s, false},
		{"the next one has failed at once", 0, s, true, s, true},
		{"the next one has failed", 0, 10 * s, true, -8 * s, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				suspended := time.Duration(0)
				f := newFreshness(time.Now, func() time.Duration { return suspended })
				f.setPeriod([]purelbv1.Announcement{{Spec: purelbv1.AnnouncementSpec{HeartbeatSeconds: 10}}})
				f.noteBeat()
				f.noteListed()
				f.noteRenewed(time.Now())
				suspended += tc.suspended
				time.Sleep(tc.awake)
				if tc.hasFailed {
					f.noteFailed()
				}
				if got := f.freshFor(); got != tc.freshFor || f.isFresh() != (tc.freshFor >= 0) {
					t.Errorf("fresh for %s, want %s", got, tc.freshFor)
				}
				if got := f.isCurrent(); got != tc.isCurrent {
					t.Errorf("current: %t", got)
				}
				f.noteBeat()
				f.noteRenewed(time.Now())
				if got := f.freshFor(); got != 11*s {
					t.Errorf("renewed again, fresh for %s", got)
				}
			})
		})
	}
}

// A renewal shows that the agent is current if each came soon after the one before since it listed: else the manager
// may have given an address away in between.
func TestCurrentAfterGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFreshness(time.Now, func() time.Duration { return 0 })
		for i, step := range []struct {
			after time.Duration
			lists bool
			want  bool
		}{
			{0, true, true}, {3*time.Second - 1, false, true}, {3 * time.Second, false, false}, {time.Second, false, false},
			{time.Second, true, true}, {10 * time.Second, true, true}, {10 * time.Second, false, false},
		} {
			time.Sleep(step.after)
			f.noteBeat()
			if step.lists {
				f.noteListed()
			}
			f.noteRenewed(time.Now())
			if got := f.isCurrent(); got != step.want {
				t.Errorf("step %d: current %t", i, got)
			}
			time.Sleep(time.Nanosecond) // the next beat begins after the list
		}
	})
}

// An agent whose link was away for longer than it is current is fresh no more until it has listed and renewed.
func TestCutOffWithSlowLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFreshness(time.Now, func() time.Duration { return 0 })
		f.noteBeat()
		f.noteListed()
		f.noteRenewed(time.Now())
		time.Sleep(2 * time.Second)
		f.noteCutOff()
		if !f.isFresh() || f.needsList() {
			t.Error("cut off just after a renewal: it has to list")
		}
		time.Sleep(time.Second)
		f.noteCutOff()
		if f.isFresh() || !f.needsList() {
			t.Error("cut off later: it need not list")
		}
		if _, isAsked := tryReceive(f.renewalAsked); !isAsked {
			t.Error("cut off later: it is not asked to renew")
		}
		f.noteBeat()
		f.noteRenewed(time.Now())
		if !f.needsList() {
			t.Error("a renewal without a list is enough")
		}
		f.noteListed()
		f.noteRenewed(time.Now())
		if !f.isFresh() || f.needsList() {
			t.Error("after a list and a renewal it has to list")
		}
	})
}

// What a renewal may take: no longer than the Lease lasts by what it said before.
func TestRenewalTimeout(t *testing.T) {
	f := newFreshness(time.Now, func() time.Duration { return 0 })
	for i, step := range []struct {
		seconds int32
		want    time.Duration
	}{{10, 2 * time.Second}, {1, time.Second}, {10, time.Second}, {10, 2 * time.Second}} {
		f.setPeriod([]purelbv1.Announcement{{Spec: purelbv1.AnnouncementSpec{HeartbeatSeconds: step.seconds}}})
		period, timeout := f.beginRenewal()
		if want := time.Duration(step.seconds) * time.Second; period != want || timeout != step.want {
			t.Errorf("step %d: each %s, within %s", i, period, timeout)
		}
	}
}

// The kernel counts the time for which the machine was suspended.
func TestSuspendedSinceBoot(t *testing.T) {
	before := suspendedSinceBoot()
	if before < -time.Second {
		t.Errorf("suspended for %s", before)
	}
	if f := newFreshness(time.Now, suspendedSinceBoot); f.suspendedAtBeat < before-time.Second {
		t.Errorf("an agent that has just started counts %s", f.suspendedAtBeat)
	}
}

// An agent whose node was suspended lists, and withdraws what has moved meanwhile, before it renews
// its Lease. This test shows the row "it was suspended while its addresses moved, and resumes" of
// docs/trust.md.
func TestFaultSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := beating(t, settings(), lease(), announcementOf("node1", local("192.0.2.1")))
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		w.reconcileOrFail()
		w.expect("changes before", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.made()

		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
		w.suspend(10 * time.Minute)
		w.expect("fresh", false, w.freshness.isFresh())
		time.Sleep(time.Second)
		synctest.Wait()
		requests := slices.DeleteFunc(w.made(), func(request string) bool { return request == "apply status" })
		w.expect("requests", []string{"list", "patch purelb-node1"}, requests[:min(2, len(requests))])
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("fresh in the end", true, w.freshness.isFresh())
	})
}

// The same where the API server is away: the agent does not defend the address. It yields the address
// as soon as it hears the claim of the node that has it now, and otherwise asks the link within two
// periods.
func TestFaultSuspendedAPIServerAway(t *testing.T) {
	for name, tc := range map[string]struct {
		isClaimed bool
		within    time.Duration
	}{
		"the present holder claims it": {true, 20 * time.Millisecond},
		"no station claims it":         {false, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				moved := moveWhileAway(t, local("192.0.2.1"))
				moved.away.suspend(10 * time.Minute)
				if took := moved.comeBack(tc.isClaimed); took > tc.within {
					t.Errorf("two nodes have the address for %s", took)
				}
			})
		})
	}
}

// The hypervisor pauses a node, and gives it back all of its clocks as they were: the agent takes
// itself for fresh until two periods after its last renewal, and then asks the link. Where it has taken
// the address over lately it has asked the link before, and waits for the claim that the present holder
// repeats each five seconds. This test shows the row "its virtual machine was paused while its addresses
// moved, and none of its clocks has counted that" of docs/trust.md.
func TestFaultPaused(t *testing.T) {
	another := []string{neigh.MAC{2, 0, 0, 0, 0, 9}.String()}
	for name, tc := range map[string]struct {
		previousMACs []string
		isClaimed    bool
		within       time.Duration
	}{
		"the present holder claims it":                               {nil, true, 3500 * time.Millisecond},
		"no station claims it":                                       {nil, false, 3500 * time.Millisecond},
		"it was taken over lately, and the present holder claims it": {another, true, 7 * time.Second},
		"it was taken over lately, and no station claims it":         {another, false, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				entry := local("192.0.2.1")
				entry.PreviousMACs = tc.previousMACs
				moved := moveWhileAway(t, entry)
				if took := moved.comeBack(tc.isClaimed); took > tc.within {
					t.Errorf("two nodes have the address for %s", took)
				}
			})
		})
	}
}

// movedAddress is an address that has moved from a node that was away to another.
type movedAddress struct {
	t          *testing.T
	addr       netip.Addr
	segment    *segment
	away, next *world
}

// moveWhileAway lets an address move from a node that does not hear of it: as far as that one knows it
// has just renewed. It cannot reach the API server any more.
func moveWhileAway(t *testing.T, entry purelbv1.AnnouncedAddress) *movedAddress {
	t.Helper()
	m := &movedAddress{t: t, addr: netip.MustParseAddr("192.0.2.1"), segment: &segment{}}
	m.away = newWorld(t, settings(), announcementOf("node1", entry))
	m.segment.connect(m.away, oldHolder)
	m.next = newWorld(t, settings(), announcementOf("node1"))
	m.segment.connect(m.next, stranger)
	for range 20 {
		m.away.beat()
		m.next.beat()
		time.Sleep(100 * time.Millisecond)
	}
	m.segment.setCut(true)
	m.next.edit("node1", func(s *purelbv1.AnnouncementSpec) {
		s.Addresses = append(s.Addresses, local("192.0.2.1", takeover))
	})
	pacing.Signal(m.next.wake)
	for range 20 {
		m.away.beat()
		m.next.beat()
		time.Sleep(100 * time.Millisecond)
	}
	m.away.fail(errors.New("away"))
	if !m.segment.ports[0].has(m.addr) || !m.segment.ports[1].has(m.addr) {
		t.Fatal("not both nodes have the address")
	}
	return m
}

// comeBack connects the node again, and returns after how long only the present holder has the
// address. That one keeps it.
func (m *movedAddress) comeBack(isClaimed bool) time.Duration {
	m.t.Helper()
	m.segment.setCut(false)
	if isClaimed {
		m.next.announcer.announceOnce("eth0", m.addr)
	}
	const limit = 10 * time.Second
	start, took := time.Now(), limit
	for time.Since(start) < limit {
		if !m.segment.ports[1].has(m.addr) {
			m.t.Fatal("the present holder does not have the address any more")
		}
		if took == limit && !m.segment.ports[0].has(m.addr) {
			took = time.Since(start)
		}
		m.next.beat()
		time.Sleep(time.Millisecond)
	}
	if m.segment.ports[0].has(m.addr) {
		m.t.Error("two nodes have the address in the end")
	}
	m.t.Logf("two nodes have the address for %s", took)
	return took
}

// An agent whose Lease is slow lists and renews at once when the API server does not acknowledge. One that renews each
// second waits for the next renewal.
func TestUnacknowledged(t *testing.T) {
	for _, tc := range []struct {
		seconds int32
		sleeps  time.Duration
		lists   bool
	}{{10, 3 * time.Second, true}, {1, time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFreshness(time.Now, func() time.Duration { return 0 })
			f.setPeriod([]purelbv1.Announcement{{Spec: purelbv1.AnnouncementSpec{HeartbeatSeconds: tc.seconds}}})
			f.beginRenewal()
			f.noteBeat()
			f.noteListed()
			f.noteRenewed(time.Now())
			unacknowledged := make(chan struct{}, 1)
			time.AfterFunc(tc.sleeps-time.Millisecond, func() { unacknowledged <- struct{}{} })
			h := &heartbeat{freshness: f, tasks: tasks.Goroutines{}, unacknowledged: unacknowledged}
			start := time.Now()
			h.sleep(t.Context(), start)
			if slept := time.Since(start).Round(time.Second); slept != tc.sleeps || f.needsList() != tc.lists {
				t.Errorf("each %d s: it renews after %s, and lists: %t", tc.seconds, slept, f.needsList())
			}
			if f.isFresh() == tc.lists {
				t.Errorf("each %d s: fresh: %t", tc.seconds, f.isFresh())
			}
		})
	}
}
