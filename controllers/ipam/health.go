package ipam

import (
	"cmp"
	"net/netip"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// health is what a queue knows of its system. The system is away if there is no connection,
// if it does not answer the question for its status, or if everything else goes unanswered.
// Then nothing but its status is asked for, apart from a trial now and then.
type health struct {
	// failure is why the system is away, or nil if it is not. It was asked at askedAt, and is
	// left alone for wait since then.
	failure *Error
	askedAt time.Time
	wait    time.Duration
	backoff pacing.Backoff
	// isAwayThoughWell says that the system is away although its status is well: only a job
	// can tell when it is back. triedAt is when one was tried last.
	isAwayThoughWell bool
	triedAt          time.Time
	// unanswered are the jobs that have gone unanswered since the system answered one. True
	// stands for a comparison. There are at most unansweredJobs, and one for each group.
	unanswered map[*schedule]bool
}

func (b *Broker) newHealth() health {
	return health{backoff: b.newAwayBackoff(), unanswered: map[*schedule]bool{}}
}

// notBefore is when the system, which is away, may be asked again.
func (h *health) notBefore(isAwaited bool) time.Time {
	wait := h.wait
	if isAwaited && !h.isRefused() {
		wait = min(wait, maxUrgentRetry)
	}
	return h.askedAt.Add(wait)
}

// isRefused reports whether the system is away until somebody has done something.
func (h *health) isRefused() bool {
	return h.failure.Reason == v1.ReasonIPAMRefused || h.failure.Reason == v1.ReasonOtherInstallation
}

// isTrialDue reports whether a job is tried next of a system that is away.
func (h *health) isTrialDue(now time.Time) bool {
	return h.isAwayThoughWell || now.Sub(h.triedAt) >= trialInterval
}

// noteAway notes that the system of an endpoint is away, and says so to all who wait for it.
func (b *Broker) noteAway(e endpoint, q *queue, failure *Error) {
	now, h := b.Now(), &q.health
	if h.failure == nil {
		h.triedAt = now
	}
	h.failure, h.askedAt, h.wait = failure, now, h.backoff.Next()
	h.isAwayThoughWell = failure.Scope != ScopeEndpoint
	if h.isRefused() {
		h.wait = max(h.wait, refusedRetry)
		q.tokenReadAt = time.Time{} // there may be a new one
	}
	for name, g := range order.ByKey(b.groups, cmp.Compare) {
		if g.endpoint == e {
			g.inspection, g.inspectedSystem = nil, nil // what it has found is old when the system is back
			b.noteObservation(name, g, q)
		}
	}
	for key, requested := range order.ByKey(b.requests, compareRequestKeys) {
		// What a Service says for a reason of its own stays, and so does, for a while, what it
		// says of a system that is away for this reason and that.
		isNew := requested.isOfEndpoint && now.Sub(requested.answeredAt) < detailInterval
		if b.stateOf(key.request.Group, e) != nil && (!requested.isAnswered || requested.isOfEndpoint) && !isNew {
			b.noteNoAddress(key, requested, failure)
			requested.isOfEndpoint = true
		}
	}
}

// noteUnanswered notes that a system whose status is well has not answered a job.
func (b *Broker) noteUnanswered(e endpoint, q *queue, j *job, failure *Error) {
	h := &q.health
	isComparison := j.kind == learnJob || j.kind == compareJob
	if isComparison || len(h.unanswered) < unansweredJobs {
		h.unanswered[j.schedule] = isComparison
	}
	if len(h.unanswered) < unansweredJobs {
		return
	}
	for _, isComparison := range h.unanswered {
		if isComparison {
			b.noteAway(e, q, failure)
			return
		}
	}
	j.state.hastenComparisonIfOld(b.Now()) // it asks the most, and changes nothing
}

// noteAnswer notes that the system of an endpoint has answered.
func (b *Broker) noteAnswer(e endpoint, q *queue) {
	now, h := b.Now(), &q.health
	wasAway := h.failure != nil
	clear(h.unanswered)
	h.failure, h.isAwayThoughWell = nil, false
	h.backoff.Reset()
	for name, g := range order.ByKey(b.groups, cmp.Compare) {
		if g.endpoint == e {
			b.noteObservation(name, g, q)
			if wasAway {
				g.comparisonSchedule.hasten(now) // what has happened meanwhile?
			}
		}
	}
	if !wasAway {
		return
	}
	for key, requested := range b.requests {
		if b.stateOf(key.request.Group, e) != nil && requested.offer.Reason == v1.ReasonIPAMUnavailable {
			requested.pause = nil
			requested.restart(now)
		}
	}
}

// noteObservation notes how the system of a group is. While the reason stays the same, another
// message has to wait.
func (b *Broker) noteObservation(name string, g *groupState, q *queue) {
	reason, message := v1.ReasonReachable, g.config.SystemName()+" answers"
	if failure := q.health.failure; failure != nil {
		reason, message = failure.Reason, failure.Message
	} else if g.comparisonFailure != nil {
		reason, message = g.comparisonFailure.Reason, g.comparisonFailure.Message
	}
	o, now := &g.observation, b.Now()
	if o.Reason == reason && (o.Message == message || now.Sub(g.observedAt) < detailInterval) {
		return
	}
	o.Reason, o.Message, g.observedAt = reason, message, now
	b.OnObservationChanged(name)
}

// noteNoAddress notes why a request has no address.
func (b *Broker) noteNoAddress(key requestKey, requested *requestState, failure *Error) {
	now, said := b.Now(), requested.offer
	isSame := said.Reason == failure.Reason && said.Message == failure.Message
	if isSame || staysReported(said.Reason, failure.Reason, now.Sub(requested.answeredAt)) {
		return
	}
	requested.isAnswered, requested.answeredAt = true, now
	offer := &requested.offer
	offer.Reason, offer.Message, offer.Address = failure.Reason, failure.Message, netip.Addr{}
	b.OnAnswersChanged(nameOf(requested.owner))
	b.OnObservationChanged(key.request.Group)
}

// staysReported reports whether what was said for a reason, so long ago, stays said for a
// reason.
func staysReported(before, reason string, ago time.Duration) bool {
	interval := messageInterval
	if reason == v1.ReasonIPAMUnavailable {
		interval = unavailableInterval
	}
	return before == reason && ago < interval
}
