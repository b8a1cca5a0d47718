package nodeagent

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// freshness says how far the agent can rely on the Announcements that it knows: when it last
// renewed its Lease, and when it last listed. It is lost with the process. The next one is not
// fresh, and so lists before it renews.
type freshness struct {
	mu sync.Mutex
	// period is the time between two renewals.
	period time.Duration
	// renewedAt is when the last successful renewal started, and listedAt when the agent last
	// listed at the API server.
	renewedAt, listedAt time.Time
	// now tells the time.
	now func() time.Time
	// suspendedFor returns for how long the node has been suspended since it booted. suspendedAtBeat
	// is its result when the heartbeat last began to list and to renew, and suspendedAtRenewal its
	// result when the heartbeat began the last renewal that succeeded.
	suspendedFor                        func() time.Duration
	suspendedAtBeat, suspendedAtRenewal time.Duration
	// periodChanged is signalled when the period has changed.
	periodChanged chan struct{}
}

// newFreshness returns that of an agent that has just started, which is not fresh.
func newFreshness(now func() time.Time, suspendedFor func() time.Duration) *freshness {
	return &freshness{
		period: defaultPeriod, periodChanged: make(chan struct{}, 1), now: now,
		suspendedFor: suspendedFor, suspendedAtBeat: suspendedFor(),
	}
}

// suspendedSinceBoot returns for how long the node has been suspended since it booted:
// CLOCK_BOOTTIME has counted that time, and CLOCK_MONOTONIC, by which Go tells the time, has not
// (clock_gettime(2)). Where the clocks cannot be read the node counts as never suspended.
func suspendedSinceBoot() time.Duration {
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}

// isFresh reports whether the last successful renewal started no more than two periods ago.
func (f *freshness) isFresh() bool { return f.freshFor() >= 0 }

// freshFor returns for how long the agent is fresh if no other renewal succeeds; negative if it
// is not fresh. The time for which the node was suspended counts: the manager has counted it, too.
func (f *freshness) freshFor() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	suspended := f.suspendedFor() - f.suspendedAtRenewal
	if suspended < minSuspension {
		suspended = 0
	}
	return f.renewedAt.Add(2*f.period - suspended).Sub(f.now()) // without a renewal that is long ago
}

// renewalPeriod returns the time between two renewals.
func (f *freshness) renewalPeriod() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.period
}

// setPeriod sets the shortest period that an Announcement asks for.
func (f *freshness) setPeriod(announcements []purelbv1.Announcement) {
	period := time.Duration(0)
	for _, ann := range announcements {
		if s := time.Duration(ann.Spec.HeartbeatSeconds) * time.Second; s > 0 {
			period = plan.ShorterWait(period, s)
		}
	}
	if period == 0 {
		period = defaultPeriod
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.period == period {
		return
	}
	f.period = period
	pacing.Signal(f.periodChanged)
}

// noteBeat notes that the heartbeat begins to list, if it has to, and to renew. If the node is
// suspended from now on, the answers of the API server are from before the suspension.
func (f *freshness) noteBeat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspendedAtBeat = f.suspendedFor()
}

// noteRenewed notes that a renewal which started at a time has succeeded.
func (f *freshness) noteRenewed(start time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.renewedAt, f.suspendedAtRenewal = start, f.suspendedAtBeat
}

// noteListed notes that the agent has listed at the API server.
func (f *freshness) noteListed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listedAt = f.now()
}

// hasJustListed reports whether the agent has listed at the API server so recently that the
// cache may be behind.
func (f *freshness) hasJustListed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.listedAt.IsZero() && f.now().Sub(f.listedAt) < cacheLag
}
