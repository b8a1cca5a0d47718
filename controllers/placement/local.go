package placement

import (
	v1 "github.com/purelb/purelb-operator/api/v1"
)

// keepHolder keeps a Local address where it is.
func (p *placer) keepHolder(a *Address, holder *judgedEntry) {
	spec := holder.Spec
	spec.HandingOver = false
	p.keepEntry(holder.node, a, spec)
	p.noteHeld(a, holder)
}

// keepElected keeps the entry of the elected node of a Local address that no node holds. The elected node takes
// the address over if a node whose entry was revoked answers for it.
func (p *placer) keepElected(a *Address, elected *judgedEntry) {
	spec := elected.Spec
	if elected.ReportedState == v1.StateWaiting && p.mayBeHeldByRevokedNode(a) {
		spec.ClaimPolicy = v1.ClaimTakeover
	}
	p.keepEntry(elected.node, a, spec)
	p.keepFailedEntries(a, elected.node, &spec)
}

// moveLocal gives a Local address to another node, as far as that can be done now.
func (p *placer) moveLocal(a *Address, s situation) {
	candidate, spec := p.chooseNext(a, s)
	if candidate == nil {
		p.keepWithoutCandidate(a, s.holder)
		return
	}
	from, old := s.holder.node, s.holder.Spec
	move := Move{
		Kind: Handover, From: from.Name, To: candidate.Name, IsNew: s.elected == nil && !old.HandingOver,
		Message: from.Name + " " + reasonAgainst(from, a, holdChecks),
	}
	isFailover := s.phase == FailingOver
	if isFailover {
		move.Kind, move.Cause = Failover, CauseLease
	}
	old.HandingOver = old.HandingOver || !isFailover || reasonAgainst(from, a, holdChecksWithoutLease) != ""
	if p.mayTakeOver(a, s) {
		spec.ClaimPolicy = v1.ClaimTakeover
	}
	p.noteMove(a, move)
	var newEntry *v1.AnnouncedAddress
	if s.elected != nil || isFailover || s.holder.hasObservedHandover() || s.holder.isOverdue {
		newEntry = &spec
		p.keepEntry(candidate, a, spec)
	}
	p.addEntry(from, a, withHighestEpoch(old, newEntry))
	p.keepFailedEntries(a, candidate, newEntry)
}

// keepWithoutCandidate keeps an address that the holder is to lose, but no node can take.
func (p *placer) keepWithoutCandidate(a *Address, holder *judgedEntry) {
	why := p.explainNoEligibleNode(a, p.checksToTake(a))
	if holder.node.Liveness == Expired {
		why.SilentHolder, why.IsHolderDown = holder.Node, holder.node.IsNotReady
	}
	p.result.Unplaced[a.Addr] = why
	hasFailedEntries := p.keepFailedEntries(a, nil, nil)
	if holder.node.IsLeaving {
		p.keepLatestElected(a)
		return // the holder withdraws the address: its agent cannot stay for it
	}
	// A node that has failed to take over may succeed yet: then the holder is not
	// to defend the address.
	spec := holder.Spec
	spec.HandingOver = hasFailedEntries && (spec.HandingOver || p.isTakeoverUnderWay(a))
	p.keepEntry(holder.node, a, spec)
}

// placeUnheld gives a Local address that no node holds, and none was elected for, to a node.
func (p *placer) placeUnheld(a *Address) {
	candidate := p.electNode(a, nil)
	if candidate == nil {
		p.keepFailedEntries(a, nil, nil)
		p.result.Unplaced[a.Addr] = p.explainNoEligibleNode(a, p.checksToTake(a))
		p.keepLatestElected(a)
		return
	}
	spec := p.newEntry(a, candidate)
	p.noteMove(a, Move{Kind: FirstPlacement, To: candidate.Name, IsNew: true})
	p.keepEntry(candidate, a, spec)
	p.keepFailedEntries(a, candidate, &spec)
}

// noteMove notes that an address is on its way.
func (p *placer) noteMove(a *Address, m Move) {
	if m.IsNew {
		m.NotChosen = p.explainNotChosen(a, m)
	}
	p.result.Moves[a.Addr] = m
}

// noteFailover notes that an address has failed over to its holder, if the entry of the last
// holder still stands.
func (p *placer) noteFailover(a *Address, holder *judgedEntry) {
	for _, e := range p.entriesByAddress[a.Addr] {
		isLast := e != holder && e.ReportedState == v1.StateAnnounced && e.node != nil && e.node.Liveness == Expired
		if isLast && v1.ReservedEpochOf(e.Spec.Successors, holder.Node) != holder.Spec.Epoch {
			p.result.EndedFailovers[a.Addr] = Move{
				Kind: Failover, Cause: CauseLease, From: e.Node, To: holder.Node,
				Message: explainFailover(holder) + ": " + e.Node + " " + reasonAgainst(e.node, a, holdChecks),
			}
			return
		}
	}
}

// explainFailover says in words how a node could get the address of one whose agent is silent.
func explainFailover(holder *judgedEntry) string {
	if holder.Spec.ClaimPolicy == v1.ClaimTakeover {
		return "it was taken over, although its node still answered for it"
	}
	return "nobody answered for it"
}

// keepEntry gives an entry to a node, with the interface as it is now. A Local address is
// always one host's: with the mask of its subnet it could become the primary address of
// that subnet.
func (p *placer) keepEntry(n *Node, a *Address, spec v1.AnnouncedAddress) {
	if i := n.interfaceFor(a.Addr); i != nil {
		spec.Interface = v1.InterfaceName(i.Name)
	}
	spec.PrefixLength = int32(a.Addr.BitLen())
	p.countLocal(n, a)
	p.addEntry(n, a, spec)
}

// keepFailedEntries keeps the entries of nodes that failed to take the address, so that
// they are not elected again before another node has the address, and reports whether
// there are any. Where another node is given the address, by newEntry, entries that their
// agents have not reported on stay, too, but are handed over: those agents are not to claim the
// address any more, and may have it already.
func (p *placer) keepFailedEntries(a *Address, to *Node, newEntry *v1.AnnouncedAddress) (found bool) {
	for _, e := range p.entriesByAddress[a.Addr] {
		isToRevoke := newEntry != nil && (e.step == stepGiven || e.step == stepRevoked)
		if e.node == nil || e.node == to || e.node.IsLeaving || !isToRevoke && !e.isBarred() {
			continue
		}
		spec := withHighestEpoch(e.Spec, newEntry)
		spec.HandingOver = spec.HandingOver || isToRevoke
		p.addEntry(e.node, a, spec)
		found = true
	}
	return found
}

// keepLatestElected keeps the latest entry, although its node is not to have the address any
// more: the node may have it already.
func (p *placer) keepLatestElected(a *Address) {
	for _, e := range p.entriesByAddress[a.Addr] {
		if e.node != nil && !e.isBarred() && e.ReportedState != v1.StateAnnounced && !e.node.IsLeaving {
			p.addEntry(e.node, a, e.Spec)
			return
		}
	}
}
