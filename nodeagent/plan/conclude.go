package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Outcomes are what became of a Decision's actions, where that differs from what the
// Decision foresees.
type Outcomes struct {
	// Results are of desired addresses.
	Results map[netip.Addr]Result
	// Unrenewed is how many operations, the last ones, were left for the next decision. They are
	// renewals.
	Unrenewed int
	// NotWithdrawn are addresses that are not desired and could not be removed.
	NotWithdrawn map[netip.Addr]Result
	// VirtualKind is the kind of the virtual interface, and VirtualErr says why it could not
	// be made.
	VirtualKind string
	VirtualErr  error
	// Rivals are claims of other stations that were heard lately.
	Rivals map[netip.Addr]Rival
	// Notes are added to the Ready conditions.
	Notes []string
}

// Rival is a claim of an address of the node's by another station.
type Rival struct {
	MAC string
	// Left is for how long the claim is still reported.
	Left time.Duration
}

// Conclusion is what follows from a Decision and its Outcomes.
type Conclusion struct {
	// Held are the Local addresses for which the listener is to listen.
	Held []Held
	// Announced are the desired addresses that are announced, ascending.
	Announced []AnnouncedServices
	// StateCounts are how many desired addresses are in each state.
	StateCounts map[purelbv1.AddressState]int
	// Statuses are those that the Announcements are to have, in their order; none if nothing
	// is known, or the objects are those of the checkpoint.
	Statuses []purelbv1.AnnouncementStatus
	// StandbyAddressStatuses are what the statuses of the Announcements with standby are to say of
	// addresses, in the order of those Announcements.
	StandbyAddressStatuses [][]purelbv1.AddressStatus
	// DecideIn is in how long to decide again; 0 is when something changes.
	DecideIn time.Duration
}

// AnnouncedServices is an address that the node announces, and the Services that have it, as
// the API names them.
type AnnouncedServices struct {
	Addr     netip.Addr
	Services []string
}

// Conclude says what to report and to remember after a Decision was applied. It changes none
// of its arguments.
func Conclude(memory Memory, in Inputs, decision Decision, outcomes Outcomes) (Memory, Conclusion) {
	results := maps.Clone(outcomes.Results) // what differs from decision.results
	if results == nil {
		results = map[netip.Addr]Result{}
	}
	resultOf := func(addr netip.Addr) Result {
		if r, differs := results[addr]; differs {
			return r
		}
		return decision.results[addr]
	}
	decision.Operations = decision.Operations[:len(decision.Operations)-outcomes.Unrenewed]
	memory.forgetAnswersOfAdded(decision.Operations, resultOf)
	memory.noteAdditions(decision.Operations, resultOf, in.Now)
	memory.noteValidUntil(in.Observed.Addresses, &decision, resultOf, in.Now)
	memory.ProxyWaitSince = maps.Clone(memory.ProxyWaitSince)
	maps.DeleteFunc(memory.ProxyWaitSince, func(addr netip.Addr, _ time.Time) bool {
		return resultOf(addr).Reason != ReasonWaitingForProxy
	})

	c := Conclusion{DecideIn: decision.DecideIn}
	if len(memory.ProxyWaitSince) > 0 {
		c.DecideIn = ShorterWait(c.DecideIn, ProxyRetry)
	}
	maps.Copy(results, decision.invalid)
	c.noteRivals(outcomes.Rivals, results, resultOf)
	isAnnounced := func(addr netip.Addr) bool { return resultOf(addr).State == purelbv1.StateAnnounced }
	c.Held = append(heldAsDesired(decision.Settings, decision.desired, isAnnounced),
		heldThoughNotDesired(decision.Settings, decision.kept)...)
	if decision.IsNothingKnown || in.IsFromCheckpoint {
		return memory, c
	}
	c.Announced, c.StateCounts = make([]AnnouncedServices, 0, len(decision.desired)), map[purelbv1.AddressState]int{}
	for i := range decision.desired {
		c.StateCounts[resultOf(decision.desired[i].Addr).State]++
		if d := &decision.desired[i]; isAnnounced(d.Addr) {
			c.Announced = append(c.Announced, AnnouncedServices{d.Addr, d.Services})
		}
	}
	now := metav1.NewTime(in.Now.Truncate(time.Second))
	c.Statuses = statuses(&in, Report{
		Results: decision.results, Overrides: results, Shared: in.IncludedCommonAnnouncements(),
		NotWithdrawn: outcomes.NotWithdrawn, Interfaces: decision.interfaces, Gateways: decision.gateways,
		MACs: decision.macs, FactsIn: in.Announcements[0].Name,
		OthersKeepFacts: !in.IsFirstAnnouncementReported,
		ReadyNote:       outcomes.readyNote(decision.VirtualToEnsure), Now: now,
	})
	for i := range in.Announcements {
		if awaitsCheck(decision.desired, &in.Announcements[i], in.CheckedContestEpochs, isAnnounced) {
			c.Statuses[i] = in.Announcements[i].Status
		}
	}
	for i := range in.Standbys {
		addresses := standbyAddressStatuses(&in.Standbys[i], memory.Claims, resultOf, now)
		c.StandbyAddressStatuses = append(c.StandbyAddressStatuses, addresses)
	}
	return memory, c
}

// noteRivals makes the results of announced addresses say which station claims them, too.
func (c *Conclusion) noteRivals(
	rivals map[netip.Addr]Rival, results map[netip.Addr]Result, resultOf func(netip.Addr) Result,
) {
	for addr, rival := range rivals {
		result := resultOf(addr)
		if result.State != purelbv1.StateAnnounced {
			continue
		}
		c.DecideIn = ShorterWait(c.DecideIn, rival.Left)
		result.MAC, result.Reason = rival.MAC, ReasonContested
		result.Message = fmt.Sprintf(
			"%s on %s claims the address, too; find out which device that is", rival.MAC, result.Interface,
		)
		results[addr] = result
	}
}

// readyNote returns what the Ready conditions say besides what the addresses do.
func (o *Outcomes) readyNote(virtualInterface string) string {
	var notes []string
	switch {
	case o.VirtualErr != nil:
		notes = append(notes, o.VirtualErr.Error())
	case o.VirtualKind != "" && o.VirtualKind != "dummy":
		notes = append(notes, fmt.Sprintf("%s is of kind %s", virtualInterface, o.VirtualKind))
	}
	notes = append(notes, o.Notes...)
	return strings.Join(slices.DeleteFunc(notes, func(note string) bool { return note == "" }), "; ")
}

// statuses returns the status that each Announcement is to have. An address that could not be
// withdrawn stays in the status that lists it; one that no status lists was a shared entry,
// and is in the first.
func statuses(in *Inputs, report Report) []purelbv1.AnnouncementStatus {
	isListed := map[netip.Addr]bool{}
	for i := 0; i < len(in.Announcements) && len(report.NotWithdrawn) > 0; i++ {
		for _, s := range in.Announcements[i].Status.Addresses {
			isListed[parseAddrOrZero(s.Address)] = true
		}
	}
	all := make([]purelbv1.AnnouncementStatus, len(in.Announcements))
	for i := range in.Announcements {
		report.TakesUnlisted = func(addr netip.Addr) bool { return i == 0 && !isListed[addr] }
		all[i] = Status(&in.Announcements[i], report)
	}
	return all
}

// awaitsCheck reports whether the status of an Announcement has to wait, as a Contest of one of
// its addresses is being checked: once the status is of the Announcement's generation, the manager
// takes it for the answer.
func awaitsCheck(
	desired []Desired, ann *purelbv1.Announcement, checked map[netip.Addr]int64, isAnnounced func(netip.Addr) bool,
) bool {
	return slices.ContainsFunc(ann.Spec.Addresses, func(e purelbv1.AnnouncedAddress) bool {
		if e.ContestedBy == nil {
			return false
		}
		addr := parseAddrOrZero(e.Address)
		return slices.ContainsFunc(desired, func(d Desired) bool {
			isUnchecked := d.Contest.MAC != "" && checked[d.Addr] < d.Contest.Epoch
			return isUnchecked && d.Addr == addr && isAnnounced(d.Addr)
		})
	})
}

func hasFailed(r Result) bool { return r.State == purelbv1.StateFailed }
