package nodeagent

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/report"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// reporter writes the statuses of the node's Announcements to the API server, by itself:
// neither the worker nor the heartbeat waits for it.
//
// The order is: a sync applies its decision, removes the virtual interface of a node that is to
// have none, and only then passes on what to report. A sync that could not remove the interface
// reports nothing, as the agent may be removed once it has reported that it has no address.
// After a list at the API server the heartbeat renews the Lease first, unless another sync comes between.
type reporter struct {
	*report.Reporter[purelbv1.AnnouncementStatus]
}

func newReporter(agent *Agent) *reporter {
	return &reporter{&report.Reporter[purelbv1.AnnouncementStatus]{
		Tasks:  agent.Tasks,
		Client: func() client.Client { return agent.Client }, Kind: "Announcement", FieldOwner: FieldOwner,
		IsSame: plan.SameStatus, Changed: make(chan struct{}, 1),
		Timeout: requestTimeout, Rests: pacing.Batch{RestPerWork: reportRestFactor, MaxGap: maxReportRest},
		Failures: pacing.Backoff{Min: minRetry, Max: maxRetry}, MaxUnansweredWait: maxBackoff,
	}}
}

// withLatestStatuses returns the Announcements with the statuses that the agent last wanted to
// report. The kernel has an address sooner than the cache shows that the agent reported it.
func (r *reporter) withLatestStatuses(announcements []purelbv1.Announcement) []purelbv1.Announcement {
	announcements = slices.Clone(announcements)
	for i := range announcements {
		announcements[i].Status = r.Latest(&announcements[i], announcements[i].Status)
	}
	return announcements
}

// setStatuses replaces what there is to report: for each Announcement, with its latest status,
// the status that it is to have. The caller signals Changed when the statuses are to be written.
func (r *reporter) setStatuses(
	announcements []purelbv1.Announcement, statuses []purelbv1.AnnouncementStatus, shared []purelbv1.CommonAnnouncement,
) {
	reports := make([]report.Status[purelbv1.AnnouncementStatus], len(announcements))
	for i := range announcements {
		before, after := announcements[i].Status, statuses[i]
		reports[i] = report.Status[purelbv1.AnnouncementStatus]{
			Object: &announcements[i], Before: before, After: after,
			MaxDelay: max(r.sharedReportDelay(&before, &after, shared), untilProbed(&announcements[i].Spec, &before, &after)),
		}
	}
	r.Set(reports)
}

// sharedReportDelay returns for how long a status may wait. One that says only that the shared entries are
// realised waits for a random time, since all nodes report that at once.
func (r *reporter) sharedReportDelay(
	before, after *purelbv1.AnnouncementStatus, shared []purelbv1.CommonAnnouncement,
) time.Duration {
	revision, spreadOver := int64(0), time.Duration(0)
	for i := range shared { // the manager knew the number of nodes best when it wrote the last one
		if c := &shared[i].Spec; c.Revision > revision {
			revision, spreadOver = c.Revision, time.Duration(c.ReportSpreadSeconds)*time.Second
		}
	}
	if spreadOver == 0 || before.CommonAnnouncementsRevision == nil {
		return 0
	}
	summarised := withSummaryOf(before, after)
	summarised.CommonAnnouncementsRevision = after.CommonAnnouncementsRevision
	if !plan.SameStatus(summarised, *after) {
		return 0
	}
	return r.Tasks.Random(spreadOver)
}

// withSummaryOf returns a status with what another one says for readers, which follows from the rest of that one.
func withSummaryOf(status, other *purelbv1.AnnouncementStatus) purelbv1.AnnouncementStatus {
	summarised := *status
	summarised.Announced, summarised.Desired, summarised.Failing = other.Announced, other.Desired, other.Failing
	summarised.LocalAddresses, summarised.VirtualAddresses = other.LocalAddresses, other.VirtualAddresses
	summarised.Services, summarised.Conditions = other.Services, other.Conditions
	return summarised
}

// untilProbed returns for how long a status may wait that only adds addresses for which the link is being
// asked: as a rule there is an answer by then, and one report says all. A status that the manager waits for
// does not wait: of a node whose first it is, that hands over an address, or that checks a claim.
func untilProbed(spec *purelbv1.AnnouncementSpec, before, after *purelbv1.AnnouncementStatus) time.Duration {
	isAwaited := before.ObservedGeneration == 0 || spec.AgentLeaving || spec.Standby != nil || spec.Asking != nil ||
		slices.ContainsFunc(spec.Addresses, func(e purelbv1.AnnouncedAddress) bool {
			return e.HandingOver || e.ContestedBy != nil
		})
	summarised := withSummaryOf(before, after)
	summarised.ObservedGeneration, summarised.Addresses = after.ObservedGeneration, after.Addresses
	if isAwaited || len(after.Addresses) <= len(before.Addresses) || !plan.SameStatus(summarised, *after) {
		return 0
	}
	reported := 0 // how many of before.Addresses, which are in the same order, are as they were
	for i := range after.Addresses {
		switch s := &after.Addresses[i]; {
		case reported < len(before.Addresses) && equality.Semantic.DeepEqual(*s, before.Addresses[reported]):
			reported++
		case s.State != purelbv1.StatePending || s.Reason != plan.ReasonProbing:
			return 0
		}
	}
	if reported < len(before.Addresses) {
		return 0
	}
	return probingReportDelay
}
