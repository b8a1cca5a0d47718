package placement

import (
	"fmt"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// keepLocal keeps a Local address where it is, and reports whether it may stay there.
func (p *placer) keepLocal(a *Address) bool {
	e := p.holderOf(a)
	if claimant := p.claimantOf(a); e == nil {
		e = claimant
	} else if claimant != nil && claimant.Spec.Claim == v1.ClaimTakeover {
		return false // a handover under way is not called back
	}
	if e == nil {
		return false
	}
	n := p.nodeByName[e.Node]
	if reasonAgainst(n, a, holdChecks) != "" {
		return false
	}
	spec := e.Spec
	spec.Leaving = false
	if e.ReportedState == v1.StateStandby && p.isHeldUnreported(a) {
		spec.Claim = v1.ClaimTakeover
	}
	p.keepEntry(n, a, spec)
	p.noteHeld(a, n, e)
	if e.ReportedState != v1.StateAnnounced {
		p.keepFailedEntries(a, n, &spec)
	}
	return true
}

// moveLocal gives a Local address to another node, as far as that can be done now.
func (p *placer) moveLocal(a *Address) {
	holder := p.holderOf(a)
	if holder == nil {
		p.placeUnheld(a)
		return
	}
	from := p.nodeByName[holder.Node]
	candidate, spec := p.chooseClaim(a, holder)
	if candidate == nil {
		p.keepWithoutCandidate(a, from, holder)
		return
	}
	old, claimant := holder.Spec, p.claimantOf(a)
	move := Move{Kind: Handover, From: from.Name, To: candidate.Name, IsNew: claimant == nil && !old.Leaving, Message: from.Name + " " + reasonAgainst(from, a, holdChecks)}
	if from.Liveness == Expired {
		move.Kind, move.Cause = Failover, CauseLease
	}
	old.Leaving = old.Leaving || from.Liveness != Expired || reasonAgainst(from, a, holdChecksWithoutLease) != ""
	if p.mayTakeOver(a, holder, claimant) {
		spec.Claim = v1.ClaimTakeover
	}
	p.noteMove(a, move)
	var given *v1.AnnouncedAddress
	if claimant != nil || from.Liveness == Expired || hasObservedLeaving(holder) || isOverdueLeaving(holder) {
		given = &spec
		p.keepEntry(candidate, a, spec)
	}
	p.addEntry(from, a, withHighestEpoch(old, given))
	p.keepFailedEntries(a, candidate, given)
}

// keepWithoutCandidate keeps an address that the holder is to lose, but no node can take.
func (p *placer) keepWithoutCandidate(a *Address, from *Node, holder *Entry) {
	p.result.Unplaced[a.Addr] = p.noEligibleNode(a)
	hasFailedEntries := p.keepFailedEntries(a, nil, nil)
	if from.IsLeaving {
		p.keepLatestClaim(a)
		return // the holder withdraws the address: its agent cannot stay for it
	}
	// A node that has failed to take over may succeed yet: then the holder is not
	// to defend the address.
	spec := holder.Spec
	spec.Leaving = hasFailedEntries && (spec.Leaving || p.isTakeoverUnderWay(a))
	p.keepEntry(from, a, spec)
}

// placeUnheld gives a Local address that no node holds to a node.
func (p *placer) placeUnheld(a *Address) {
	if len(p.entriesByAddress[a.Addr]) == 0 {
		if why := p.reasonToWait(a); why != (Explanation{}) {
			p.result.Unplaced[a.Addr] = why
			return
		}
	}
	candidate, spec := p.chooseClaim(a, nil)
	if candidate == nil {
		p.keepFailedEntries(a, nil, nil)
		p.result.Unplaced[a.Addr] = p.noEligibleNode(a)
		p.keepLatestClaim(a)
		return
	}
	p.noteMove(a, Move{Kind: Placement, To: candidate.Name, IsNew: p.claimantOf(a) == nil})
	p.keepEntry(candidate, a, spec)
	p.keepFailedEntries(a, candidate, &spec)
}

// reasonToWait says why an address without entries is not given to a node yet, or nothing.
// What one node reports of the address delays it for a while, and does nothing else: an
// agent can report what it was never given.
func (p *placer) reasonToWait(a *Address) Explanation {
	lingering := p.inputs.LingeringReports[a.Addr]
	if name := p.awaitedNode(); name != "" && len(lingering) == 0 {
		// The node may hold the address: its Announcement was lost.
		return Explanation{v1.ReasonWaitingForFacts, fmt.Sprintf("waiting for the agent of node %s to report", name)}
	}
	var names []string
	for _, l := range lingering {
		if n := p.nodeByName[l.Node]; n != nil && n.Liveness != Expired && l.Age < LingeringTime {
			names = append(names, l.Node)
		}
	}
	if len(names) == 0 {
		return Explanation{}
	}
	return Explanation{v1.ReasonAnnouncing, fmt.Sprintf("waiting for node %s to withdraw it", slices.Min(names))}
}

// awaitedNode is a node whose agent is alive and expected to report, if there is one.
func (p *placer) awaitedNode() string {
	for _, n := range p.nodes {
		if n.AreFactsAwaited && n.Liveness != Expired {
			return n.Name
		}
	}
	return ""
}

// noteMove notes that an address is on its way.
func (p *placer) noteMove(a *Address, m Move) {
	if m.IsNew {
		m.PassedOver = p.explainPassedOver(a, m)
	}
	p.result.Moves[a.Addr] = m
}

// keepEntry gives an entry to a node, with the interface as it is now. A Local address is
// always one host's: with the mask of its subnet it could become the primary address of
// that subnet.
func (p *placer) keepEntry(n *Node, a *Address, spec v1.AnnouncedAddress) {
	if i := n.interfaceFor(a.Addr); i != nil {
		spec.Interface = v1.InterfaceName(i.Name)
	}
	spec.PrefixLength = int32(a.Addr.BitLen())
	p.localsOfNode[familyBits(a.Addr)][n.Name]++
	p.addEntry(n, a, spec)
}

// keepFailedEntries keeps the entries of nodes that failed to take the address, so that
// they are not elected again before another node has the address, and reports whether
// there are any. Where another node is given the address, entries that their agents have
// not reported on stay, too, but are leaving: those agents are not to claim the address any
// more, and may have it already.
func (p *placer) keepFailedEntries(a *Address, to *Node, given *v1.AnnouncedAddress) (found bool) {
	for _, e := range p.entriesByAddress[a.Addr] {
		n := p.nodeByName[e.Node]
		isToRevoke := given != nil && !e.hasReported() && (!e.Spec.Leaving || !e.IsObserved)
		if n == nil || n == to || n.IsLeaving || !isToRevoke && !p.hasFailed(e) {
			continue
		}
		spec := withHighestEpoch(e.Spec, given)
		spec.Leaving = spec.Leaving || isToRevoke
		p.addEntry(n, a, spec)
		found = true
	}
	return found
}

// keepLatestClaim keeps the latest claim, although its node is not to have the address any
// more: the node may have it already.
func (p *placer) keepLatestClaim(a *Address) {
	for _, e := range p.entriesByAddress[a.Addr] {
		if n := p.nodeByName[e.Node]; n != nil && !p.hasFailed(e) && e.ReportedState != v1.StateAnnounced && !n.IsLeaving {
			p.addEntry(n, a, e.Spec)
			return
		}
	}
}
