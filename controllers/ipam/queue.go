package ipam

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// queue is the work for one endpoint, which is done one after the other. The work itself
// follows from the state of the Broker; the Broker's lock guards the fields.
type queue struct {
	stop context.CancelFunc // nil while the queue is not started
	// wake has room for one.
	wake    chan struct{}
	backoff pacing.Backoff
	// failedAt is when the system was last found to be away, and wait for how long to
	// leave it alone since then.
	failedAt  time.Time
	wait      time.Duration
	isRefused bool // the token, at failedAt
	// busySince is since when one request for work has been under way, or zero.
	busySince time.Time
	// token was read at tokenReadAt.
	token       string
	tokenReadAt time.Time
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1), backoff: newAwayBackoff()} }

// restart forgets failures.
func (q *queue) restart() {
	q.backoff, q.wait, q.tokenReadAt = newAwayBackoff(), 0, time.Time{}
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// isSlow reports whether the work under way takes long.
func (q *queue) isSlow(now time.Time) bool {
	return q != nil && !q.busySince.IsZero() && now.Sub(q.busySince) >= SlowAfter
}

// notBefore is when the system may be asked again.
func (q *queue) notBefore(isUrgent bool) time.Time {
	wait := q.wait
	if isUrgent && !q.isRefused {
		wait = min(wait, maxUrgentRetry)
	}
	return q.failedAt.Add(wait)
}

// startQueue starts the worker of an endpoint, if the Broker runs.
func (b *Broker) startQueue(e endpoint) {
	q := b.queues[e]
	if b.ctx == nil || q.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(b.ctx)
	q.stop = cancel
	go b.work(ctx, e, q)
}

// stopIdleQueues ends the workers of endpoints that no group has.
func (b *Broker) stopIdleQueues() {
	used := map[endpoint]bool{}
	for _, g := range b.groups {
		used[g.endpoint] = true
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
	if g := b.groups[group]; g != nil {
		b.queues[g.endpoint].signal()
	}
}

// job is one piece of work.
type job struct {
	kind    jobKind
	group   string
	claim   claimKey
	address netip.Addr
	// asked is how often a release was asked for when it began.
	asked   int
	missing Missing
	// hasAsked says that the system was asked.
	hasAsked bool
}

// jobKind orders jobs that are due.
type jobKind int

const (
	learnJob   jobKind = iota // compare for the first time: the group has no ranges before
	claimJob                  // a Service waits
	releaseJob                // somebody else may wait
	repairJob
	syncJob
)

// work does the work for an endpoint until the context ends.
func (b *Broker) work(ctx context.Context, e endpoint, q *queue) {
	for ctx.Err() == nil {
		j, wait := b.nextJob(e, q)
		if j != nil {
			b.do(ctx, q, j)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// maxIdle is how long a worker without work sleeps, at most: only the clock could wake it.
const maxIdle = time.Minute

// nextJob returns the next job of an endpoint, or how long there will be none.
func (b *Broker) nextJob(e endpoint, q *queue) (*job, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Now()
	var next *job
	var nextTimes jobTimes
	isUrgent, soonest := false, now.Add(maxIdle)
	for j, times := range b.jobsOf(e) {
		isUrgent = isUrgent || j.kind == learnJob || j.kind == claimJob
		switch {
		case times.dueAt.After(now):
			if times.dueAt.Before(soonest) {
				soonest = times.dueAt
			}
		case next == nil || j.kind < next.kind || j.kind == next.kind && times.before(nextTimes):
			next, nextTimes = &j, times
		}
	}
	if notBefore := q.notBefore(isUrgent); next != nil && notBefore.After(now) {
		return nil, notBefore.Sub(now)
	}
	if next != nil {
		q.busySince = now
		if next.kind == claimJob {
			b.takeTurn(b.claims[next.claim].owner.Namespace, now)
		}
		return next, 0
	}
	return nil, max(soonest.Sub(now), time.Millisecond)
}

// jobTimes are when a job is due, when its namespace last had its turn, and since when the
// job has been waiting.
type jobTimes struct{ dueAt, turn, since time.Time }

// before orders jobs of one kind.
func (t jobTimes) before(other jobTimes) bool {
	return cmp.Or(t.turn.Compare(other.turn), t.since.Compare(other.since)) < 0
}

// maxTurns bounds how many namespaces' turns are remembered.
const maxTurns = 1000

// takeTurn notes that a claim of a namespace is asked for.
func (b *Broker) takeTurn(namespace string, now time.Time) {
	if len(b.turns) >= maxTurns {
		clear(b.turns) // all begin anew
	}
	b.turns[namespace] = now
}

// jobsOf lists the jobs of an endpoint, in no order.
func (b *Broker) jobsOf(e endpoint) iter.Seq2[job, jobTimes] {
	isOfQueue := func(group string) bool { g := b.groups[group]; return g != nil && g.endpoint == e }
	return func(yield func(job, jobTimes) bool) {
		for name, g := range b.groups {
			kind := syncJob
			if g.observation.Report == nil {
				kind = learnJob
			}
			if g.endpoint == e && !yield(job{kind: kind, group: name}, jobTimes{dueAt: g.syncAt, since: g.syncAt}) {
				return
			}
		}
		for key, c := range b.claims {
			if isOfQueue(key.claim.Group) && !c.hasAddress() && !yield(job{kind: claimJob, group: key.claim.Group, claim: key}, jobTimes{c.dueAt, b.turns[c.owner.Namespace], c.since}) {
				return
			}
		}
		for key, r := range b.releases {
			if isOfQueue(key.group) && !yield(job{kind: releaseJob, group: key.group, address: key.address, asked: r.asked}, jobTimes{dueAt: r.dueAt, since: r.dueAt}) {
				return
			}
		}
		for key, m := range b.repairs {
			if isOfQueue(key.group) && !yield(job{kind: repairJob, group: key.group, address: key.address, missing: m}, jobTimes{}) {
				return
			}
		}
	}
}

// fail notes that the system of an endpoint is away, and says so to all who wait for it.
func (b *Broker) fail(e endpoint, q *queue, err *Error) {
	now := b.Now()
	q.failedAt, q.wait, q.isRefused = now, q.backoff.Next(), err.Reason == v1.ReasonIPAMRefused
	if q.isRefused {
		q.wait = max(q.wait, refusedRetry)
		q.tokenReadAt = time.Time{} // there may be a new one
	}
	for name, g := range b.groups {
		if g.endpoint == e {
			b.observe(name, g, err.Reason, err.Message)
		}
	}
	for key, c := range b.claims {
		if g := b.groups[key.claim.Group]; g != nil && g.endpoint == e && !c.hasAddress() {
			b.answer(key, c, err.Reason, err.Message)
		}
	}
}

// succeed notes that the system of an endpoint has answered.
func (b *Broker) succeed(e endpoint, q *queue) {
	wasFailing := q.backoff.Failing()
	q.backoff.Reset()
	q.wait = 0
	for name, g := range b.groups {
		if g.endpoint == e {
			b.observe(name, g, v1.ReasonReachable, "NetBox "+g.config.URL+" answers")
			if wasFailing && g.syncAt.After(b.Now()) { // what has happened meanwhile?
				g.syncAt = b.Now()
			}
		}
	}
}

func (b *Broker) observe(name string, g *groupState, reason, message string) {
	if g.observation.Reason != reason || g.observation.Message != message {
		g.observation.Reason, g.observation.Message = reason, message
		b.ObservationChanged(name)
	}
}

// answer notes why a claim has no address.
func (b *Broker) answer(key claimKey, c *claimState, reason, message string) {
	isChanged := !c.isAnswered || c.offer.Reason != reason || c.offer.Message != message
	c.isAnswered = true
	c.offer.Reason, c.offer.Message, c.offer.Address = reason, message, netip.Addr{}
	if isChanged {
		b.AnswersChanged(nameOf(c.owner))
		b.ObservationChanged(key.claim.Group)
	}
}

// retryExhausted lets claims of a group be asked for at once that wait for a free address.
func (b *Broker) retryExhausted(group string) {
	for _, key := range slices.Collect(maps.Keys(b.claims)) {
		if c := b.claims[key]; key.claim.Group == group && c.isAnswered && !c.hasAddress() {
			c.dueAt = b.Now()
		}
	}
}
