package ipam

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/internal/order"
)

// runComparison compares what a system has with what Services hold. Each turn of the job does a part of the
// inspection; the last one compares. The inspection is dropped if a part fails, and goes with the
// state of the group when the group is configured otherwise.
func (b *Broker) runComparison(ctx context.Context, j *job, system System) (conclude func(*Error), err error) {
	var held map[netip.Addr][]Owner
	j.hasAsked = true
	g := j.state
	if g.inspection == nil || g.inspectedSystem != system {
		g.inspection, g.inspectedSystem = system.BeginInspection(), system
	}
	report, err := g.inspection(ctx)
	if err == nil && report == nil {
		return func(*Error) {}, nil // the job is still due: the rest is done in its next turns
	}
	g.inspection, g.inspectedSystem = nil, nil
	if err == nil {
		held, err = b.Cluster.Holders(ctx, j.group)
	}
	if err == nil { // what Services hold of another group is that group's business
		report.MarkedRecords = slices.DeleteFunc(report.MarkedRecords, func(r Record) bool {
			return len(held[r.Address]) == 0 &&
				(b.isNeeded(j.group, r.Address) || r.IsForeign && b.isOfAnotherGroup(j.group, r.Address))
		})
	}
	return func(failure *Error) {
		if g.comparisonFailure = failure; failure != nil {
			g.comparisonSchedule.postpone(b.Now(), failure)
		} else {
			b.noteReport(j.group, g, report, held)
		}
		b.noteObservation(j.group, g, b.queues[g.endpoint])
	}, err
}

// hastenComparisonIfOld lets a group be compared at once, unless that was done lately or fails.
func (g *groupState) hastenComparisonIfOld(now time.Time) {
	if g.comparisonFailure == nil && now.Sub(g.observation.SyncedAt) > minSyncInterval {
		g.comparisonSchedule.hasten(now)
	}
}

// noteReport notes what a comparison has found, and what to do about it.
func (b *Broker) noteReport(group string, g *groupState, report *Report, held map[netip.Addr][]Owner) {
	now := b.Now()
	comparison := CompareRecords(report.MarkedRecords, held, b.installationID)
	b.noteMissing(group, comparison.Missing, now)
	b.hastenReleases(group, report.MarkedRecords, now)
	for a := range g.observation.Differences {
		// What repairs and releases have found stays until they find something else.
		if _, differs := comparison.Differences[a]; !differs && !b.hasReported(recordKey{group, a}) {
			delete(g.observation.Differences, a)
		}
	}
	for a, text := range order.ByKey(comparison.Differences, netip.Addr.Compare) {
		var owner Owner // nobody's is what no Service holds
		if owners := held[a]; len(owners) > 0 {
			owner = owners[0]
		}
		b.noteDifference(group, a, owner, text)
	}
	b.releaseUnused(group, g, comparison.Unused, countOwn(report.MarkedRecords), now)
	g.observation.Report, g.observation.SyncedAt = report, now
	g.comparisonSchedule.backoff.Reset()
	g.comparisonSchedule.dueAt = now.Add(syncInterval)
	if len(report.Problems) > 0 { // somebody may be about to mend it
		g.comparisonSchedule.dueAt = now.Add(minSyncInterval)
	}
	b.OnObservationChanged(group)
}

// noteMissing notes which addresses are to be recorded. A repair that has failed stays as
// it is while its address is missing.
func (b *Broker) noteMissing(group string, missing []Missing, now time.Time) {
	isMissing := map[netip.Addr]bool{}
	for _, m := range missing {
		isMissing[m.Address] = true
		key := recordKey{group, m.Address}
		if b.repairs[key] == nil {
			b.repairs[key] = &pendingRepair{recordChange: b.newRecordChange(now)}
		}
		b.repairs[key].missing = m
	}
	for key := range b.repairs {
		if key.group == group && !isMissing[key.address] {
			delete(b.repairs, key)
		}
	}
}

// hastenReleases lets releases that have failed be tried at once if the record is no longer
// there: somebody may have deleted it.
func (b *Broker) hastenReleases(group string, records []Record, now time.Time) {
	isRecorded := map[netip.Addr]bool{}
	for _, r := range records {
		isRecorded[r.Address] = true
	}
	for key, r := range b.releases {
		if key.group == group && !isRecorded[key.address] {
			r.hasten(now)
		}
	}
}

// hasReported reports whether something was not done about a record, and was reported.
func (b *Broker) hasReported(key recordKey) bool {
	release, repair := b.releases[key], b.repairs[key]
	return release != nil && release.reportedFor != "" || repair != nil && repair.reportedFor != ""
}

// releaseUnused releases what no Service has held for some time, unless it is suspiciously
// much.
func (b *Broker) releaseUnused(group string, g *groupState, unused []netip.Addr, all int, now time.Time) {
	unusedSince := map[netip.Addr]time.Time{}
	var due []netip.Addr
	for _, a := range unused {
		unusedSince[a] = now
		if before, isKnown := g.unusedSince[a]; isKnown {
			unusedSince[a] = before
		}
		if now.Sub(unusedSince[a]) >= unusedGrace {
			due = append(due, a)
		}
	}
	g.unusedSince, g.observation.UnusedNotReleased = unusedSince, 0
	if areTooManyUnused(len(due), all) {
		g.observation.UnusedNotReleased = len(due)
		return
	}
	for _, a := range due {
		b.addRelease(recordKey{group, a}, now)
	}
}
