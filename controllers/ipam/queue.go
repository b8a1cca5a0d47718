package ipam

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// queue is the work for one endpoint, which is done one after the other. The work itself
// follows from the state of the Broker; the Broker's lock guards the fields.
type queue struct {
	stop context.CancelFunc // nil while the queue is not started
	// wake has room for one.
	wake   chan struct{}
	health health
	// busySince is since when one request for work has been under way, or zero.
	busySince time.Time
	// token was read at tokenReadAt.
	token       string
	tokenReadAt time.Time
	// jobCount is how many jobs there have been, and lastTurn the number of the last one of each kind.
	jobCount int
	lastTurn map[jobKind]int
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), lastTurn: map[jobKind]int{}}
}

// restart forgets failures: health has none.
func (q *queue) restart(health health) {
	q.health, q.tokenReadAt = health, time.Time{}
	pacing.Signal(q.wake)
}

// isSlow reports whether the work under way takes long.
func (q *queue) isSlow(now time.Time) bool {
	return q != nil && !q.busySince.IsZero() && now.Sub(q.busySince) >= SlowAfter
}

// startQueue starts the worker of an endpoint, if the Broker runs.
func (b *Broker) startQueue(e endpoint) {
	q := b.queues[e]
	if b.ctx == nil || q.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	q.stop = cancel
	b.Tasks.Go(func() { b.runQueue(ctx, e, q) })
}

// stopIdleQueues ends the workers of endpoints that no group has, nor one that is gone and releases what it had.
func (b *Broker) stopIdleQueues() {
	used := map[endpoint]bool{}
	for _, groups := range []map[string]*groupState{b.groups, b.ended} {
		for _, g := range groups {
			used[g.endpoint] = true
		}
	}
	for e, q := range b.queues {
		if !used[e] {
			if q.stop != nil {
				q.stop()
			}
			delete(b.queues, e)
		}
	}
}

// wake lets the worker of a group's endpoint look for work.
func (b *Broker) wake(group string) {
	if g := b.stateOfRecords(group); g != nil {
		pacing.Signal(b.queues[g.endpoint].wake)
	}
}

// job is one piece of work.
type job struct {
	kind  jobKind
	group string
	// state is the group's. What comes of the job counts only while the group still has it, or is gone and
	// releases what it had.
	state    *groupState
	schedule *schedule
	// pause, if there is one, says when the job is due, instead of its own schedule.
	pause *schedule
	// The job is for one of these, as its kind says.
	requestKey requestKey
	requested  *requestState
	release    *pendingRelease
	repair     *pendingRepair
	address    netip.Addr
	// hasAsked says that the system was asked, and allocated is what it gave for a request.
	hasAsked  bool
	allocated netip.Addr
	// namespaceAskedAt is when a request of the namespace was asked for last.
	namespaceAskedAt time.Time
}

// jobKind is a kind of jobs. The kinds take turns while there is something to do. Of those
// that have had none, the first comes first.
type jobKind int

const (
	learnJob   jobKind = iota // compare for the first time: the group has no ranges before
	requestJob                // a Service waits
	releaseJob                // somebody else may wait
	repairJob
	compareJob
	checkJob // of the endpoint
)

// dueAt returns when the job is due.
func (j *job) dueAt() time.Time {
	if j.pause != nil {
		return j.pause.dueAt
	}
	return j.schedule.dueAt
}

// comesBefore reports whether the turn of job a comes before that of b: the kind that has
// waited longer for one comes first, then the namespace, then the job. Of two that have waited for equally
// long it is always the same one.
func (q *queue) comesBefore(a, b *job) bool {
	return cmp.Or(
		cmp.Compare(q.lastTurn[a.kind], q.lastTurn[b.kind]), cmp.Compare(a.kind, b.kind),
		a.namespaceAskedAt.Compare(b.namespaceAskedAt), a.schedule.waitsSince.Compare(b.schedule.waitsSince),
		cmp.Compare(a.group, b.group), compareRequestKeys(a.requestKey, b.requestKey), a.address.Compare(b.address),
	) < 0
}

// runQueue does the jobs of an endpoint until the context ends.
func (b *Broker) runQueue(ctx context.Context, e endpoint, q *queue) {
	for ctx.Err() == nil {
		j, wait := b.nextJob(e, q)
		if j != nil {
			b.runJob(ctx, q, j)
			continue
		}
		b.Tasks.Wait(ctx, wait, q.wake)
	}
}

// maxIdle is how long a worker without work sleeps, at most: only the clock could wake it.
const maxIdle = time.Minute

// nextJob returns the next job of an endpoint, or how long there will be none.
func (b *Broker) nextJob(e endpoint, q *queue) (*job, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	if len(b.ended) > 0 {
		b.forgetEnded(now)
		b.stopIdleQueues()
	}
	h := &q.health
	if h.failure != nil {
		if wait := h.notBefore(b.isAwaited(e)).Sub(now); wait > 0 {
			return nil, min(wait, maxIdle)
		}
	}
	next, wait := b.nextInTurn(e, q, now)
	switch {
	case h.failure == nil:
	case next != nil && h.isTrialDue(now):
		h.askedAt, h.triedAt = now, now
	default:
		h.askedAt = now
		next = b.checkOf(e)
	}
	if next == nil {
		clear(q.lastTurn) // nobody has been waiting
		return nil, max(wait, time.Millisecond)
	}
	q.busySince = now
	q.jobCount++
	q.lastTurn[next.kind] = q.jobCount
	if next.kind == requestJob {
		b.noteNamespaceAsked(next.requested.owner.Namespace, now)
	}
	return next, 0
}

// nextInTurn returns the job of an endpoint whose turn it is among those that are due, or
// how long none will be.
func (b *Broker) nextInTurn(e endpoint, q *queue, now time.Time) (*job, time.Duration) {
	var next job
	soonest := now.Add(maxIdle)
	for j := range b.jobsOf(e) {
		switch dueAt := j.dueAt(); {
		case dueAt.After(now) && !q.health.isAwayThoughWell:
			if dueAt.Before(soonest) {
				soonest = dueAt
			}
		case next.schedule == nil || q.comesBefore(&j, &next):
			next = j
		}
	}
	if next.schedule == nil {
		return nil, soonest.Sub(now)
	}
	return &next, 0
}

// maxNamespacesAsked bounds of how many namespaces the Broker remembers when they were asked for.
const maxNamespacesAsked = 1000

// noteNamespaceAsked notes that a request of a namespace is asked for.
func (b *Broker) noteNamespaceAsked(namespace string, now time.Time) {
	if len(b.namespaceAskedAt) >= maxNamespacesAsked {
		clear(b.namespaceAskedAt) // all begin anew
	}
	b.namespaceAskedAt[namespace] = now
}

// stateOf returns the state of a group, or nil if it takes no addresses from an endpoint.
func (b *Broker) stateOf(group string, e endpoint) *groupState {
	if g := b.groups[group]; g != nil && g.endpoint == e {
		return g
	}
	return nil
}

// jobsOf lists the jobs of an endpoint, in no order.
func (b *Broker) jobsOf(e endpoint) iter.Seq[job] {
	return func(yield func(job) bool) {
		for name, g := range b.groups {
			kind := compareJob
			if g.observation.Report == nil {
				kind = learnJob
			}
			if g.endpoint == e && !yield(job{kind: kind, group: name, state: g, schedule: &g.comparisonSchedule}) {
				return
			}
		}
		for key, requested := range b.requests {
			g := b.stateOf(key.request.Group, e)
			if g != nil && !requested.hasAddress() && !yield(job{
				kind: requestJob, group: key.request.Group, state: g, schedule: &requested.schedule, pause: requested.pause,
				requestKey: key, requested: requested, namespaceAskedAt: b.namespaceAskedAt[requested.owner.Namespace],
			}) {
				return
			}
		}
		for key, r := range b.releases {
			g := b.stateOfRecords(key.group)
			if g != nil && g.endpoint == e && !yield(job{
				kind: releaseJob, group: key.group, state: g, schedule: &r.schedule, release: r, address: key.address,
			}) {
				return
			}
		}
		for key, r := range b.repairs {
			g := b.stateOf(key.group, e)
			if g != nil && !yield(job{
				kind: repairJob, group: key.group, state: g, schedule: &r.schedule, repair: r, address: key.address,
			}) {
				return
			}
		}
	}
}

// checkOf returns the job that asks how the system of an endpoint is: as the first of its groups,
// whose System is connected already the next time.
func (b *Broker) checkOf(e endpoint) *job {
	for _, groups := range []map[string]*groupState{b.groups, b.ended} {
		for _, name := range slices.Sorted(maps.Keys(groups)) {
			if g := groups[name]; g.endpoint == e {
				return &job{kind: checkJob, group: name, state: g}
			}
		}
	}
	return nil
}

// isAwaited reports whether a Service waits for the system of an endpoint, or a group that
// has no ranges before.
func (b *Broker) isAwaited(e endpoint) bool {
	for j := range b.jobsOf(e) {
		if j.kind == learnJob || j.kind == requestJob {
			return true
		}
	}
	return false
}
