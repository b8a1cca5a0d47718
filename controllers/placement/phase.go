package placement

import (
	"fmt"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Phase is where a Local address is between no node and its holder. It follows from the
// inputs alone: the Announcements are the only record of it.
type Phase string

// Phases of a Local address. Phases says what each means.
const (
	WaitingForFacts      Phase = "WaitingForFacts"
	WaitingForWithdrawal Phase = "WaitingForWithdrawal"
	Unheld               Phase = "Unheld"
	Probing              Phase = "Probing"
	Announced            Phase = "Announced"
	HandingOver          Phase = "HandingOver"
	FailingOver          Phase = "FailingOver"
	Contested            Phase = "Contested"
	TakenOver            Phase = "TakenOver"
)

// Phases are all phases, each with what it means.
var Phases = []struct {
	Phase   Phase
	Meaning string
}{
	{WaitingForFacts, "no node has it, and a node whose agent has yet to report may hold it"},
	{WaitingForWithdrawal, "no node is to have it, and a node that announces it has yet to withdraw it"},
	{Unheld, "no node announces it or probes for it, and one is elected if any may take it"},
	{Probing, "a node was given it, and has not announced it yet"},
	{Announced, "its holder announces it, and keeps it"},
	{HandingOver, "its holder's agent renews its Lease, and is to hand it over to another node"},
	{FailingOver, "its holder's Lease has expired, and a node that may take it probes for it"},
	{Contested, "a successor has claimed it, and its holder has yet to confirm or to refute that"},
	{TakenOver, "a successor has claimed it, and its last holder does not have it, or is dead"},
}

// Meaning says in words what a phase means.
func (ph Phase) Meaning() string {
	for _, p := range Phases {
		if p.Phase == ph {
			return p.Meaning
		}
	}
	return ""
}

// mayElect reports whether addresses of a phase may go to a node by election.
func (ph Phase) mayElect() bool { return ph == Unheld || ph == HandingOver || ph == FailingOver }

// situation is the phase of a Local address, and what the phase follows from.
type situation struct {
	phase Phase
	// waitsFor says what a waiting phase waits for.
	waitsFor Explanation
	// holder announces the address, and elected was given the address and may announce it
	// yet. Both may be nil.
	holder, elected *judgedEntry
	// claim is a successor's, and reservedBy the entry that reserves its epoch, of the holder or
	// the last holder: of the phases Contested and TakenOver.
	claim      *SuccessorClaim
	reservedBy *judgedEntry
	// cause of TakenOver.
	cause MoveCause
}

// phaseOf finds the phase of a Local address.
func (p *placer) phaseOf(a *Address) situation {
	s := situation{holder: p.holderOf(a), elected: p.electedOf(a)}
	lingering := p.lingeringNodes(a)
	if claim, reservedBy := p.successorClaimOf(a, s.elected); claim != nil {
		s.claim, s.reservedBy = claim, reservedBy
		s.phase, s.cause = p.phaseByClaim(claim, reservedBy)
		return s
	}
	switch {
	case s.holder != nil && s.holder.node.Liveness == Expired:
		s.phase = FailingOver
	case s.holder != nil && (reasonAgainst(s.holder.node, a, holdChecks) != "" || s.isTakeover()):
		s.phase = HandingOver
	case s.holder != nil:
		s.phase = Announced
	case s.elected != nil:
		s.phase = Probing
	case len(p.entriesByAddress[a.Addr]) > 0:
		s.phase = Unheld
	case len(p.inputs.LingeringReports[a.Addr]) == 0 && p.nodeWithFactsPending() != "": // its Announcement was lost
		s.phase = WaitingForFacts
		s.waitsFor = Explanation{
			Reason:  v1.ReasonWaitingForFacts,
			Message: fmt.Sprintf("waiting for the agent of node %s to report", p.nodeWithFactsPending()),
		}
	case len(lingering) > 0:
		s.phase = WaitingForWithdrawal
		s.waitsFor = Explanation{
			Reason:  v1.ReasonAnnouncing,
			Message: fmt.Sprintf("waiting for node %s to withdraw it", slices.Min(lingering)),
		}
	default:
		s.phase = Unheld
	}
	return s
}

// isTakeover reports whether the elected node is to have the address although the holder answers
// for it: that is not called back.
func (s *situation) isTakeover() bool {
	return s.elected != nil && s.elected.Spec.ClaimPolicy == v1.ClaimTakeover
}

// isAnswered reports whether the elected node has probed for the address, and the holder answers.
func (s *situation) isAnswered() bool {
	return s.elected != nil && s.elected.ReportedState == v1.StateWaiting
}

// placeLocal decides about a Local address, by its phase.
func (p *placer) placeLocal(a *Address, s situation) {
	if s.holder != nil {
		p.noteFailover(a, s.holder)
	}
	if s.claim != nil {
		p.hasSuccessorClaim[a.Addr] = true
	}
	switch s.phase {
	case WaitingForFacts, WaitingForWithdrawal:
		p.result.Unplaced[a.Addr] = s.waitsFor
	case Unheld:
		p.placeUnheld(a)
	case Probing:
		p.keepElected(a, s.elected)
	case Announced:
		p.keepHolder(a, s.holder)
	case HandingOver, FailingOver:
		p.moveLocal(a, s)
	case Contested:
		p.challengeHolder(a, s)
	case TakenOver:
		p.adoptClaim(a, s)
	}
}

// nodeWithFactsPending is a node whose agent is alive and expected to report, if there is one.
func (p *placer) nodeWithFactsPending() string {
	for _, n := range p.nodes {
		if n.AreFactsAwaited && n.Liveness != Expired {
			return n.Name
		}
	}
	return ""
}

// lingeringNodes returns the nodes that report an address without an entry for it, and are to
// withdraw it. What one node reports delays an address for a while, and does nothing else: an
// agent can report what it was never given.
func (p *placer) lingeringNodes(a *Address) []string {
	var names []string
	for _, l := range p.inputs.LingeringReports[a.Addr] {
		hasEnded := p.hasLasted(l.Age, LingeringTime)
		if n := p.nodeByName[l.Node]; n != nil && n.Liveness != Expired && !hasEnded {
			names = append(names, l.Node)
		}
	}
	return names
}
