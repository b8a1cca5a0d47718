package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

func nameOf(o Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// do does one job, and notes its outcome.
func (b *Broker) do(ctx context.Context, q *queue, j *job) {
	system, err := b.systemFor(ctx, q, j.group)
	var outcome func(error)
	switch j.kind {
	case claimJob:
		outcome = b.claim(ctx, j, system, &err)
	case releaseJob:
		outcome = b.release(ctx, j, system, &err)
	case repairJob:
		outcome = b.repair(ctx, j, system, &err)
	default:
		outcome = b.sync(ctx, j, system, &err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q.busySince = time.Time{}
	g := b.groups[j.group]
	if ctx.Err() != nil || g == nil || b.queues[g.endpoint] != q {
		return // the system is no longer asked
	}
	var known *Error
	switch {
	case err == nil && !j.hasAsked:
		outcome(nil)
	case err == nil || errors.As(err, &known) && !known.ConcernsAll:
		b.succeed(g.endpoint, q)
		outcome(err)
	case known != nil:
		b.fail(g.endpoint, q, known)
	default:
		b.fail(g.endpoint, q, &Error{Reason: v1.ReasonIPAMUnavailable, Message: err.Error(), ConcernsAll: true})
	}
}

// systemFor returns the system of a group, with a token that was read lately.
func (b *Broker) systemFor(ctx context.Context, q *queue, group string) (System, error) {
	b.mu.Lock()
	g := b.groups[group]
	token, isStale := q.token, b.Now().Sub(q.tokenReadAt) > tokenAge
	cluster := b.cluster
	b.mu.Unlock()
	if g == nil {
		return nil, errors.New("the group is gone")
	}
	if cluster == "" {
		uid, err := b.Cluster.UID(ctx)
		if err != nil {
			return nil, fmt.Errorf("find out the cluster's identity: %w", err)
		}
		cluster = uid
	}
	if isStale {
		read, err := b.Cluster.Token(ctx, g.config.TokenSecret, g.config.TokenKey)
		switch {
		case err == nil:
			token = read
		case token == "": // otherwise the last one is as good as any
			return nil, err
		}
	}
	system := g.system
	if system == nil || g.token != token {
		var err error
		if system, err = b.Connect(group, g.config, token, cluster); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cluster, q.token, g.system, g.token = cluster, token, system, token
	if isStale {
		q.tokenReadAt = b.Now()
	}
	return system, nil
}

// claim asks for what a Service claims. It returns what to do with the outcome.
func (b *Broker) claim(ctx context.Context, j *job, system System, err *error) func(error) {
	b.mu.Lock()
	c := b.claims[j.claim]
	b.mu.Unlock()
	if *err != nil || c == nil {
		return func(error) {}
	}
	claim := j.claim.claim
	j.hasAsked = true
	var a netip.Addr
	var objection func(netip.Addr) string
	if objection, *err = b.Cluster.Objection(ctx, c.owner, j.group); *err == nil {
		a, *err = system.Allocate(ctx, Request{Owner: c.owner, Family: claim.Family, Address: claim.Address, IsShown: claim.IsShown, Objection: objection})
	}
	return func(err error) {
		var refusal *Error
		switch isWanted := b.claims[j.claim] == c; {
		case err == nil && !isWanted:
			b.addRelease(releaseKey{j.group, a}, b.Now())
		case err == nil:
			c.isAnswered, c.offer = true, allocation.Offer{Address: a}
			if g := b.groups[j.group]; g.observation.Report != nil && !g.observation.Report.hasAddress(a) {
				g.syncAt = b.Now() // the ranges have changed since the last comparison
			}
			b.AnswersChanged(nameOf(c.owner))
			b.ObservationChanged(j.group)
		case errors.As(err, &refusal) && isWanted:
			c.dueAt = b.Now().Add(c.backoff.Next())
			b.answer(j.claim, c, refusal.Reason, refusal.Message)
			if g := b.groups[j.group]; refusal.Reason == v1.ReasonIPAMRefused && b.Now().Sub(g.observation.SyncedAt) > checkAfter {
				g.syncAt = b.Now()
			}
		}
	}
}

// release removes the record of an address, unless a Service has it or is about to.
func (b *Broker) release(ctx context.Context, j *job, system System, err *error) func(error) {
	if *err == nil && !b.isNeeded(j.group, j.address) {
		j.hasAsked = true
		*err = system.Release(ctx, j.address)
	}
	return func(err error) {
		key := releaseKey{j.group, j.address}
		if err != nil { // refused: the next comparison finds it
			b.noteDifference(j.group, j.address, Owner{}, err.Error())
		} else {
			b.retryExhausted(j.group)
			delete(b.groups[j.group].unusedSince, j.address)
		}
		if b.releases[key].asked == j.asked { // otherwise it is looked at once more
			delete(b.releases, key)
		}
	}
}

// isNeeded reports whether a Service has an address, or has been offered it.
func (b *Broker) isNeeded(group string, a netip.Addr) bool {
	b.mu.Lock()
	for key, c := range b.claims {
		if key.claim.Group == group && (c.hasAddress() && c.offer.Address == a || key.claim.Address == a) {
			b.mu.Unlock()
			return true
		}
	}
	b.mu.Unlock()
	return b.Cluster.IsInUse(a)
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
	for key, c := range b.claims {
		if c.hasAddress() && c.offer.Address == a || key.claim.Address == a {
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

// repair records an address that a Service has.
func (b *Broker) repair(ctx context.Context, j *job, system System, err *error) func(error) {
	if *err == nil && b.Cluster.IsInUse(j.address) {
		j.hasAsked = true
		_, *err = system.Allocate(ctx, Request{
			Owner: j.missing.Owner, Family: allocation.FamilyOf(j.address), Address: j.address, IsShown: true,
			Objection: func(netip.Addr) string { return "" }, // the Service has it already
		})
	}
	return func(err error) {
		delete(b.repairs, releaseKey{j.group, j.address})
		switch {
		case err != nil:
			b.noteDifference(j.group, j.address, j.missing.Owner, err.Error())
			return
		case !j.missing.IsHandedOn:
			b.FoundDifference(j.group, j.missing.Owner, j.address.String()+" was not recorded as "+j.missing.Owner.String()+"'s: it is again")
		}
		delete(b.groups[j.group].observation.Differences, j.address)
		b.ObservationChanged(j.group)
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
	b.FoundDifference(group, owner, text)
	b.ObservationChanged(group)
}

// sync compares what a system has with what Services hold.
func (b *Broker) sync(ctx context.Context, j *job, system System, err *error) func(error) {
	var report *Report
	var held map[netip.Addr][]Owner
	if *err == nil {
		j.hasAsked = true
		report, *err = system.Inspect(ctx)
	}
	if *err == nil {
		held, *err = b.Cluster.Holders(ctx, j.group)
	}
	if *err == nil { // what Services hold of another group is that group's business
		report.Records = slices.DeleteFunc(report.Records, func(r Record) bool {
			return len(held[r.Address]) == 0 && (b.isNeeded(j.group, r.Address) || r.IsForeign && b.isOfAnotherGroup(j.group, r.Address))
		})
	}
	return func(err error) {
		if err == nil {
			b.noteReport(j.group, report, held)
		} else {
			b.groups[j.group].syncAt = b.Now().Add(checkAfter)
		}
	}
}

// noteReport notes what a comparison has found, and what to do about it.
func (b *Broker) noteReport(group string, report *Report, held map[netip.Addr][]Owner) {
	g, now := b.groups[group], b.Now()
	comparison := Compare(report.Records, held, b.cluster)
	isMissing := map[netip.Addr]bool{}
	for _, m := range comparison.Missing {
		isMissing[m.Address] = true
		b.repairs[releaseKey{group, m.Address}] = m
	}
	for a := range g.observation.Differences {
		// What the repair finds is not known yet.
		if _, differs := comparison.Differences[a]; !differs && !isMissing[a] {
			delete(g.observation.Differences, a)
		}
	}
	for a, text := range comparison.Differences {
		var owner Owner // nobody's is what no Service holds
		if owners := held[a]; len(owners) > 0 {
			owner = owners[0]
		}
		b.noteDifference(group, a, owner, text)
	}
	b.releaseUnused(group, g, comparison.Unused, countOwn(report.Records), now)
	g.observation.Report, g.observation.SyncedAt, g.syncAt = report, now, now.Add(syncInterval)
	if len(report.Problems) > 0 { // somebody may be about to mend it
		g.syncAt = now.Add(checkAfter)
	}
	b.ObservationChanged(group)
}

// releaseUnused releases what no Service has held for some time, unless it is suspiciously
// much.
func (b *Broker) releaseUnused(group string, g *groupState, unused []netip.Addr, all int, now time.Time) {
	since := map[netip.Addr]time.Time{}
	var due []netip.Addr
	for _, a := range unused {
		since[a] = now
		if before, isKnown := g.unusedSince[a]; isKnown {
			since[a] = before
		}
		if now.Sub(since[a]) >= unusedGrace {
			due = append(due, a)
		}
	}
	g.unusedSince, g.observation.UnusedTooMany = since, 0
	if areTooManyUnused(len(due), all) {
		g.observation.UnusedTooMany = len(due)
		return
	}
	for _, a := range due {
		b.addRelease(releaseKey{group, a}, now)
	}
}
