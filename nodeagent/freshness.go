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
	// period is the time between two renewals, and leasePeriod that by which the Lease says how long it lasts.
	period, leasePeriod time.Duration
	// renewedAt is when the last successful renewal started, and listedAt when the agent last
	// listed at the API server.
	renewedAt, listedAt time.Time
	// beatAt is when the heartbeat last began to list, if it had to, and to renew.
	beatAt time.Time
	// hasGap means that the manager may have decided otherwise without the agent's knowledge: once it had not renewed for
	// too long, and has not listed since.
	hasGap bool
	// isFailing means that the agent has tried to renew since then, and failed, or that it was cut off.
	isFailing bool
	// isQuestioned means that the agent is to list before it renews: another station claims an address, or the node may
	// be cut off.
	isQuestioned bool
	// now tells the time.
	now func() time.Time
	// suspendedFor returns for how long the node has been suspended since it booted. suspendedAtBeat
	// is its result when the heartbeat last began to list and to renew, and suspendedAtRenewal its
	// result when the heartbeat began the last renewal that succeeded.
	suspendedFor                        func() time.Duration
	suspendedAtBeat, suspendedAtRenewal time.Duration
	// renewalAsked is signalled when it may be time to renew; see untilRenewal.
	renewalAsked chan struct{}
}

// newFreshness returns that of an agent that has just started, which is not fresh.
func newFreshness(now func() time.Time, suspendedFor func() time.Duration) *freshness {
	return &freshness{
		period: defaultPeriod, leasePeriod: defaultPeriod, renewalAsked: make(chan struct{}, 1), now: now,
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

// isFresh reports whether the agent renews when it is to.
func (f *freshness) isFresh() bool { return f.freshFor() >= 0 }

// freshFor returns for how long the agent is fresh if it does not try to renew again; negative if it is not fresh.
func (f *freshness) freshFor() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freshForLocked()
}

// freshForLocked is freshFor. The agent is fresh until a while after the next renewal is due. If that fails, or the
// node was suspended, the manager may have asked for renewals each second and have counted from then: such an agent is
// fresh only while it is current. The caller holds the lock.
func (f *freshness) freshForLocked() time.Duration {
	if f.isFailing || f.suspendedSinceRenewalLocked() > 0 {
		return f.currentForLocked()
	}
	return f.renewedAt.Add(f.period + renewalMargin).Sub(f.now()) // without a renewal that is long ago
}

// isCurrent reports whether the agent has renewed within the last two seconds, by the clock of those who were awake,
// and knew then what the manager had decided.
func (f *freshness) isCurrent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.isCurrentLocked()
}

// isCurrentLocked is isCurrent. The caller holds the lock.
func (f *freshness) isCurrentLocked() bool { return !f.hasGap && f.currentForLocked() >= 0 }

// currentForLocked returns for how long the agent is current; negative if it is not. The caller holds the lock.
func (f *freshness) currentForLocked() time.Duration {
	return f.renewedAt.Add(currentTime - f.suspendedSinceRenewalLocked()).Sub(f.now())
}

// suspendedSinceRenewalLocked returns for how long the node was suspended since the last renewal: the manager has
// counted that time, too. The caller holds the lock.
func (f *freshness) suspendedSinceRenewalLocked() time.Duration {
	if suspended := f.suspendedFor() - f.suspendedAtRenewal; suspended >= minSuspension {
		return suspended
	}
	return 0
}

// confirm asks for a list and a renewal, unless the agent is current: whether it is to have an address has come into
// question.
func (f *freshness) confirm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.confirmLocked()
}

// confirmLocked is confirm. The caller holds the lock.
func (f *freshness) confirmLocked() {
	if f.isCurrentLocked() {
		return
	}
	f.isQuestioned = true
	pacing.Signal(f.renewalAsked)
}

// noteCutOff notes that the node was cut off its link, and may have been so for longer than the agent is current.
func (f *freshness) noteCutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspectLocked()
	f.confirmLocked()
}

// suspectLocked has the agent rely on nothing but a renewal of the last two seconds: since then the manager may have
// decided otherwise. The caller holds the lock.
func (f *freshness) suspectLocked() { f.isFailing = f.isFailing || !f.isCurrentLocked() }

// noteUnacknowledged notes that the API server did not acknowledge what was sent to it: the node may be cut off. It
// reports whether that is to be found out at once, because the next renewal may be far away.
func (f *freshness) noteUnacknowledged() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.period <= currentTime {
		return false
	}
	f.suspectLocked()
	f.isQuestioned = true
	return true
}

// needsList reports whether the agent has to list before it renews.
func (f *freshness) needsList() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.isQuestioned || f.freshForLocked() < 0
}

// untilRenewal returns for how long to wait with the next renewal, if the last one began at a time: for nothing if the
// Lease lasts for longer, or less long, than it is to, or if the agent was asked for a renewal and is not current.
func (f *freshness) untilRenewal(start time.Time, isAsked bool) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.period != f.leasePeriod || isAsked && !f.isCurrentLocked() {
		return 0
	}
	return start.Add(f.period).Sub(f.now())
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
	f.changePeriodLocked(period)
}

// notePeriod notes at once that an Announcement asks for a shorter period: the worker, which reads all of them, may be
// busy for longer than the manager waits.
func (f *freshness) notePeriod(ann *purelbv1.Announcement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if period := time.Duration(ann.Spec.HeartbeatSeconds) * time.Second; period > 0 && period < f.period {
		f.changePeriodLocked(period)
	}
}

// changePeriodLocked has the agent renew at once if the period is another one. The caller holds the lock.
func (f *freshness) changePeriodLocked(period time.Duration) {
	if f.period == period {
		return
	}
	f.period = period
	pacing.Signal(f.renewalAsked)
}

// noteBeat notes that the heartbeat begins to list, if it has to, and to renew. If the node is
// suspended from now on, the answers of the API server are from before the suspension.
func (f *freshness) noteBeat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beatAt, f.suspendedAtBeat = f.now(), f.suspendedFor()
}

// beginRenewal returns the period by which the Lease is to say how long it lasts, and notes that it does; and how long
// the renewal may take, as the Lease lasts for no longer than it said before.
func (f *freshness) beginRenewal() (period, timeout time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	timeout = min(f.period, f.leasePeriod, requestTimeout)
	f.leasePeriod = f.period
	return f.period, timeout
}

// noteRenewed notes that a renewal which started at a time has succeeded.
func (f *freshness) noteRenewed(start time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hasListed := !f.listedAt.Before(f.beatAt)
	f.hasGap = !hasListed && (f.hasGap || start.Sub(f.renewedAt) > currentTime+renewalMargin)
	f.renewedAt, f.suspendedAtRenewal, f.isFailing = start, f.suspendedAtBeat, false
	f.isQuestioned = f.isQuestioned && !hasListed
}

// noteFailed notes that a renewal, or what comes before it, has failed.
func (f *freshness) noteFailed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.isFailing = true
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
