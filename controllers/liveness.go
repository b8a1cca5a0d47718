package controllers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// defaultLeaseDuration is assumed of a Lease that does not say how long it lasts.
const defaultLeaseDuration = 3 * time.Second

// MaxLeaseDuration is how long the Lease of a node lasts at the most whose heartbeat is not known,
// whatever its agent says.
const MaxLeaseDuration = 30 * time.Second

// LivenessTracker judges agents by when this process last saw their Leases change, on its own
// clock: the clocks of other machines do not matter. Every replica runs it, so that a new
// leader knows at once whose agents are alive. What it knows is lost with the process:
// after a start agents count as expired until their Leases are first seen.
//
// It measures no time in which this process hears of no Lease, and so does not know whether agents renew: be it
// that the API server is away, that a watch is lost, or that the process was stopped. The leading manager renews
// its own Lease so often that it hears of that one whenever it can. No Lease expires in such a quiet, and each
// that had not expired before lasts for its whole duration again when the quiet ends.
type LivenessTracker struct {
	now func() time.Time

	mu sync.Mutex
	// leaderRenewTime is what the Lease of the leading manager says, and isLeaderHeard means that this process has
	// heard of a renewal of that one. Without an election there is none.
	leaderRenewTime time.Time
	isLeaderHeard   bool
	// heardAt is when this process last heard of a renewal of any Lease.
	heardAt time.Time
	// leases are by node, until the node's Lease is deleted.
	leases map[string]*observedLease
	// limits is by node, of the nodes that SetHeartbeats was last called with.
	limits map[string]leaseLimit

	// changes and expiries have room for one event each, which is about no object.
	changes, expiries chan event.GenericEvent
}

// observedLease is what is known of the Lease of one node's agent.
type observedLease struct {
	node              string
	renewTime         time.Time     // what the Lease says; only compared for equality
	countsFrom        time.Time     // when renewTime last changed, or when a quiet ended after that; on our clock
	duration          time.Duration // what the Lease says
	signalledLiveness placement.Liveness
}

// leaseLimit is how long a Lease may last at the most, whatever its agent says.
type leaseLimit struct {
	duration time.Duration
	// since is when it became the limit. It counts from then: an agent that is to renew more often has the time to.
	since time.Time
}

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=purelb-system,verbs=get;list;watch;create;update;delete

// NewLivenessTracker makes a LivenessTracker that reads the clock now.
func NewLivenessTracker(now func() time.Time) *LivenessTracker {
	return &LivenessTracker{
		now: now, leases: map[string]*observedLease{}, changes: make(chan event.GenericEvent, 1),
		expiries: make(chan event.GenericEvent, 1),
	}
}

// Changes receives something when the liveness of some agent has changed.
func (l *LivenessTracker) Changes() <-chan event.GenericEvent { return l.changes }

// Expiries receives something when the Lease of some agent has expired, or is renewed after
// that, or for the first time.
func (l *LivenessTracker) Expiries() <-chan event.GenericEvent { return l.expiries }

// Watch makes l follow the Leases in a cache.
func (l *LivenessTracker) Watch(ctx context.Context, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch Leases: %w", err)
	}
	if _, err = informer.AddEventHandler(l.Handler()); err != nil {
		return fmt.Errorf("watch Leases: %w", err)
	}
	return nil
}

// Handler returns what makes l follow Leases.
func (l *LivenessTracker) Handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { l.observeLease(obj) },
		UpdateFunc: func(_, obj any) { l.observeLease(obj) },
		DeleteFunc: func(obj any) { l.forgetLease(obj) },
	}
}

// observeLease notes what a Lease says, if it is an agent's.
func (l *LivenessTracker) observeLease(obj any) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || lease.Spec.RenewTime == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease.Name == LeaderLease && !l.leaderRenewTime.Equal(lease.Spec.RenewTime.Time) {
		l.isLeaderHeard, l.leaderRenewTime = !l.leaderRenewTime.IsZero(), lease.Spec.RenewTime.Time
		l.noteHeard()
	}
	node, isAgents := strings.CutPrefix(lease.Name, v1.LeasePrefix)
	if !isAgents {
		return
	}
	duration := defaultLeaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	observed, known := l.leases[node]
	if !known {
		observed = &observedLease{node: node}
		l.leases[node] = observed
	}
	observed.duration = duration
	if !observed.renewTime.Equal(lease.Spec.RenewTime.Time) {
		l.noteHeard()
		observed.renewTime, observed.countsFrom = lease.Spec.RenewTime.Time, l.heardAt
	}
	l.signalChange(observed)
}

// noteHeard notes that this process has heard of a renewal. After a quiet each Lease that had not expired lasts
// for its whole duration again: agents could not renew either, if it was the API server that was away.
func (l *LivenessTracker) noteHeard() {
	now := l.now()
	if l.measuredAt().Before(now) {
		for _, observed := range l.leases {
			if l.livenessBy(observed) != placement.Expired {
				observed.countsFrom = now
			}
		}
	}
	l.heardAt = now
}

// forgetLease drops a Lease that is deleted, as its Node is, if it is an agent's.
func (l *LivenessTracker) forgetLease(obj any) {
	if deleted, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = deleted.Obj
	}
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return
	}
	if node, isAgents := strings.CutPrefix(lease.Name, v1.LeasePrefix); isAgents {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.leases, node)
		pacing.Signal(l.changes) // the node's agent may need the Lease again
	}
}

// LivenessOf returns the liveness of a node's agent.
func (l *LivenessTracker) LivenessOf(node string) placement.Liveness {
	l.mu.Lock()
	defer l.mu.Unlock()
	observed, known := l.leases[node]
	if !known {
		return placement.Expired
	}
	return l.livenessBy(observed)
}

// SetHeartbeats sets how often the agent of each node is to renew its Lease.
func (l *LivenessTracker) SetHeartbeats(heartbeats map[string]time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limits := make(map[string]leaseLimit, len(heartbeats))
	for node, heartbeat := range heartbeats {
		limit := leaseLimit{v1.HeartbeatsPerLease * heartbeat, l.now()}
		if old := l.leaseLimitOf(node); old.duration == limit.duration {
			limit = old
		}
		if limit.duration > 0 {
			limits[node] = limit
		}
	}
	l.limits = limits
}

func (l *LivenessTracker) leaseLimitOf(node string) leaseLimit {
	if limit, known := l.limits[node]; known {
		return limit
	}
	return leaseLimit{duration: MaxLeaseDuration}
}

// measuredAt returns the time by which Leases expire: now, or when a quiet began that has not ended.
func (l *LivenessTracker) measuredAt() time.Time {
	now := l.now()
	if quietAt := l.heardAt.Add(quietAfter); l.isLeaderHeard && quietAt.Before(now) {
		return quietAt
	}
	return now
}

// SilentFor is for how long a node's agent has not renewed its Lease, as far as this
// process has seen.
func (l *LivenessTracker) SilentFor(node string) time.Duration {
	const always = 1<<63 - 1
	l.mu.Lock()
	defer l.mu.Unlock()
	observed, known := l.leases[node]
	if !known {
		return always
	}
	return l.measuredAt().Sub(observed.countsFrom)
}

// livenessBy judges an agent by its Lease, as it is now.
func (l *LivenessTracker) livenessBy(observed *observedLease) placement.Liveness {
	measuredAt, limit := l.measuredAt(), l.leaseLimitOf(observed.node)
	age := measuredAt.Sub(observed.countsFrom)
	ageSinceLimit := min(age, measuredAt.Sub(limit.since))
	switch {
	case age >= observed.duration, ageSinceLimit >= limit.duration:
		return placement.Expired
	case age >= observed.duration*2/3, ageSinceLimit >= limit.duration*2/3:
		return placement.Late
	}
	return placement.Fresh
}

// signalChange signals once that the liveness of an agent has changed.
func (l *LivenessTracker) signalChange(observed *observedLease) {
	now := l.livenessBy(observed)
	if now == observed.signalledLiveness {
		return
	}
	hadExpired := observed.signalledLiveness == placement.Expired
	observed.signalledLiveness = now
	pacing.Signal(l.changes)
	if hadExpired != (now == placement.Expired) {
		pacing.Signal(l.expiries)
	}
}

// Start signals Leases that expire, until ctx ends.
func (l *LivenessTracker) Start(ctx context.Context) error {
	tick := time.NewTicker(LivenessInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.SignalChanges()
		}
	}
}

// SignalChanges signals once that the liveness of agents has changed, as Leases expire when nothing happens.
func (l *LivenessTracker) SignalChanges() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, observed := range l.leases {
		l.signalChange(observed)
	}
}

// NeedLeaderElection is false: the clocks of a standby replica are to be warm when it takes
// over.
func (l *LivenessTracker) NeedLeaderElection() bool { return false }
