package ipam

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

func nameOf(o Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// runJob does one job, and notes what came of it: for the endpoint, and then for the job.
func (b *Broker) runJob(ctx context.Context, q *queue, j *job) {
	conclude, failure := b.attemptJob(ctx, q, j)
	b.mu.Lock()
	defer b.mu.Unlock()
	e := j.state.endpoint
	q.busySince = time.Time{}
	if ctx.Err() != nil {
		return // the system is no longer asked
	}
	if j.schedule != nil {
		j.schedule.waitsSince = b.Now()
	}
	switch {
	case failure != nil && failure.Scope == ScopeEndpoint:
		b.noteAway(e, q, failure)
		return // the job is as it was
	case j.hasAsked && failure.isOneRequestUnanswered():
		b.noteUnanswered(e, q, j, failure)
	case j.hasAsked:
		b.noteAnswer(e, q)
	}
	switch {
	case b.groups[j.group] == j.state, j.kind == releaseJob && b.ended[j.group] == j.state:
		conclude(failure)
	case j.allocated.IsValid(): // by a configuration that the group has no more
		b.addRelease(recordKey{j.group, j.allocated}, b.Now())
	}
}

// attemptJob does one job. It returns how to note its outcome, and why the job failed. If
// other jobs may be concerned, it asks whether the system is well.
func (b *Broker) attemptJob(ctx context.Context, q *queue, j *job) (conclude func(*Error), failure *Error) {
	conclude = func(*Error) {}
	system, err := b.systemFor(ctx, q, j)
	if err != nil {
		return conclude, asEndpointError(err)
	}
	switch j.kind {
	case checkJob:
		j.hasAsked = true
		return conclude, asEndpointError(system.Check(ctx))
	case requestJob:
		conclude, err = b.runRequest(ctx, j, system)
	case releaseJob:
		conclude, err = b.runRelease(ctx, j, system)
	case repairJob:
		conclude, err = b.runRepair(ctx, j, system)
	default:
		conclude, err = b.runComparison(ctx, j, system)
	}
	failure = errorOf(err)
	if j.hasAsked && failure.leavesInDoubt() {
		if isAway := asEndpointError(system.Check(ctx)); isAway != nil {
			failure = isAway
		}
	}
	return conclude, failure
}

// systemFor returns the system of a job's group, with a token that was read lately.
func (b *Broker) systemFor(ctx context.Context, q *queue, j *job) (System, error) {
	g := j.state
	b.mu.Lock()
	token, isStale := q.token, b.Now().Sub(q.tokenReadAt) > maxTokenAge
	b.mu.Unlock()
	installationID, err := b.installation(ctx)
	if err != nil {
		return nil, err
	}
	if isStale {
		read, err := b.Cluster.Token(ctx, g.config)
		var gone *Error
		switch {
		case err == nil:
			token = read
		case errors.As(err, &gone):
			b.mu.Lock()
			q.token = "" // somebody has taken it away
			b.mu.Unlock()
			return nil, err
		case token == "": // otherwise the last one is as good as any
			return nil, err
		}
	}
	system := g.system
	if system == nil || g.token != token {
		var err error
		if system, err = b.NewSystem(j.group, g.config, token, installationID); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q.token, g.system, g.token = token, system, token
	if isStale {
		q.tokenReadAt = b.Now()
	}
	return system, nil
}

// runRequest asks for what a Service requests.
func (b *Broker) runRequest(ctx context.Context, j *job, system System) (conclude func(*Error), err error) {
	requested, request := j.requested, j.requestKey.request
	isWanted := func() bool { return b.requests[j.requestKey] == requested }
	b.mu.Lock()
	isGone := !isWanted()
	b.mu.Unlock()
	if isGone {
		return func(*Error) {}, nil
	}
	objection, err := b.Cluster.Objection(ctx, requested.owner, j.group)
	if err == nil {
		j.hasAsked = true
		var a netip.Addr
		a, err = system.Allocate(
			ctx,
			Request{
				Owner: requested.owner, Family: request.Family, Address: request.Address, IsShown: request.IsShown,
				Objection: objection,
			},
		)
		if err == nil {
			j.allocated = a
		}
	}
	return func(failure *Error) {
		switch {
		case failure == nil && !isWanted():
			b.addRelease(recordKey{j.group, j.allocated}, b.Now())
		case failure == nil:
			if !request.Address.IsValid() {
				b.pauseOf(j.state, request.Family).restart(b.Now())
			}
			requested.isAnswered, requested.isOfEndpoint, requested.offer = true, false, allocation.Offer{Address: j.allocated}
			if report := j.state.observation.Report; report != nil && !report.hasAddress(j.allocated) {
				j.state.comparisonSchedule.hasten(b.Now()) // the ranges have changed since the last comparison
			}
			b.OnAnswersChanged(nameOf(requested.owner))
			b.OnObservationChanged(j.group)
		case isWanted():
			b.noteRefusal(j, failure)
		}
	}, err
}

// noteRefusal notes why a request has no address, and when to ask for it again. What requests of
// the family have in common is asked for by one of them at a time, once each has been asked
// for: an owner may have a record already.
func (b *Broker) noteRefusal(j *job, failure *Error) {
	now, requested, g := b.Now(), j.requested, j.state
	requested.pause, requested.isOfEndpoint = nil, false
	if failure.Scope == ScopeGroup || failure.Reason == v1.ReasonExhausted {
		requested.pause = b.pauseOf(g, j.requestKey.request.Family)
		if !requested.pause.dueAt.After(now) {
			requested.pause.postpone(now, failure)
		}
	} else {
		requested.postpone(now, failure)
	}
	b.noteNoAddress(j.requestKey, requested, failure)
	if failure.Reason == v1.ReasonIPAMRefused {
		g.hastenComparisonIfOld(now)
	}
}

// runRelease removes the record of an address, unless a Service has it or is about to.
func (b *Broker) runRelease(ctx context.Context, j *job, system System) (conclude func(*Error), err error) {
	r := j.release
	b.mu.Lock()
	r.isAskedAgain = false
	b.mu.Unlock()
	if !b.isNeeded(j.group, j.address) {
		j.hasAsked = true
		err = system.Release(ctx, j.address)
	}
	return func(failure *Error) {
		if failure != nil {
			b.noteRecordFailure(j, &r.recordChange, Owner{}, "its record cannot be deleted: ", failure)
			return
		}
		if j.hasAsked {
			delete(j.state.unusedSince, j.address)
			b.hastenRequestsFor(j.group, j.state, j.address)
			b.dropRepair(j)
		}
		if r.reportedFor != "" {
			b.dropDifference(j.group, j.state, j.address)
		}
		if r.isAskedAgain { // it is looked at once more
			r.restart(b.Now())
		} else {
			delete(b.releases, recordKey{j.group, j.address})
		}
	}, err
}

// dropRepair drops the repair of an address that was released: it was to be recorded for whoever has given it up.
func (b *Broker) dropRepair(j *job) {
	key := recordKey{j.group, j.address}
	repair := b.repairs[key]
	if repair == nil {
		return
	}
	delete(b.repairs, key)
	if repair.reportedFor != "" {
		b.dropDifference(j.group, j.state, j.address)
	}
}

// hastenRequestsFor lets requests be asked for at once that wait for an address, which is free now.
func (b *Broker) hastenRequestsFor(group string, g *groupState, a netip.Addr) {
	now := b.Now()
	b.pauseOf(g, allocation.FamilyOf(a)).restart(now)
	for key, requested := range b.requests {
		if key.request.Group == group && key.request.Address == a {
			requested.hasten(now)
		}
	}
}

// isNeeded reports whether a Service has an address, or has been offered it by the same system, also of another group.
func (b *Broker) isNeeded(group string, a netip.Addr) bool {
	b.mu.Lock()
	for key, requested := range b.requests {
		isOfAddress := requested.hasAddress() && requested.offer.Address == a || key.request.Address == a
		if isOfAddress && b.areOfOneSystem(key.request.Group, group) {
			b.mu.Unlock()
			return true
		}
	}
	b.mu.Unlock()
	return b.Cluster.IsInUse(a)
}

// areOfOneSystem reports whether two groups take their addresses from the same system, as far as is known.
func (b *Broker) areOfOneSystem(one, other string) bool {
	g, h := b.stateOfRecords(one), b.stateOfRecords(other)
	return one == other || g == nil || h == nil || g.config.URL == h.config.URL
}

// isOfAnotherGroup reports whether an address is, or may be, that of another group on the
// same system, or is about to be released.
func (b *Broker) isOfAnotherGroup(group string, a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.releases {
		if key.address == a {
			return true
		}
	}
	for key, requested := range b.requests {
		if requested.hasAddress() && requested.offer.Address == a || key.request.Address == a {
			return true
		}
	}
	url := ""
	if g := b.groups[group]; g != nil {
		url = g.config.URL
	}
	for name, g := range b.groups {
		if name != group && g.config.URL == url && (g.observation.Report == nil || g.observation.Report.hasAddress(a)) {
			return true
		}
	}
	return false
}

// runRepair records an address that a Service has. The manager has recorded it before, so that a
// record without a mark is somebody else's by now: it is reported, and not taken.
func (b *Broker) runRepair(ctx context.Context, j *job, system System) (conclude func(*Error), err error) {
	missing := j.repair.missing
	if b.Cluster.IsInUse(j.address) {
		j.hasAsked = true
		_, err = system.Allocate(ctx, Request{
			Owner: missing.Owner, Family: allocation.FamilyOf(j.address), Address: j.address,
			Objection: func(netip.Addr) string { return "" }, // the Service has it already
		})
	}
	return func(failure *Error) {
		if failure != nil {
			b.noteRecordFailure(j, &j.repair.recordChange, missing.Owner, "", failure)
			return
		}
		delete(b.repairs, recordKey{j.group, j.address})
		if j.hasAsked && !missing.HasOtherRecord {
			b.OnDifference(
				j.group, missing.Owner, j.address.String()+" was not recorded as "+missing.Owner.String()+"'s: it is again",
			)
		}
		b.dropDifference(j.group, j.state, j.address)
	}, err
}

// noteRecordFailure notes that something was not done about a record, and reports it. A
// request that goes unanswered once is sent again before anybody is told.
func (b *Broker) noteRecordFailure(j *job, r *recordChange, owner Owner, what string, failure *Error) {
	now, isFirst := b.Now(), !r.backoff.Failing()
	r.postpone(now, failure)
	if b.groups[j.group] == nil {
		return // the group is gone, and nothing says what differs
	}
	switch {
	case failure.Reason != v1.ReasonIPAMUnavailable:
		r.dueAt = now.Add(syncInterval) // somebody has to change something first
	case isFirst:
		return
	}
	if !staysReported(r.reportedFor, failure.Reason, now.Sub(r.reportedAt)) {
		r.reportedFor, r.reportedAt = failure.Reason, now
		b.noteDifference(j.group, j.address, owner, what+failure.Message)
	}
}

// noteDifference notes what differs, and reports it if that is new. The owner may be
// empty.
func (b *Broker) noteDifference(group string, a netip.Addr, owner Owner, text string) {
	o := &b.groups[group].observation
	if o.Differences[a] == text {
		return
	}
	if o.Differences == nil {
		o.Differences = map[netip.Addr]string{}
	}
	o.Differences[a] = text
	b.OnDifference(group, owner, text)
	b.OnObservationChanged(group)
}

// dropDifference notes that nothing differs of an address.
func (b *Broker) dropDifference(group string, g *groupState, a netip.Addr) {
	delete(g.observation.Differences, a)
	b.OnObservationChanged(group)
}
