package placement

import (
	"fmt"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// holder is the realised entry with the highest epoch.
func (p *placer) holder(a *Address) *Entry {
	for _, e := range p.entries[a.Addr] {
		if e.State == v1.StateAnnounced && p.byName[e.Node] != nil {
			return e
		}
	}
	return nil
}

// claimant is the entry with the highest epoch, if it is not realised but may
// be yet.
func (p *placer) claimant(a *Address) *Entry {
	entries := p.entries[a.Addr]
	if len(entries) == 0 {
		return nil
	}
	e := entries[0]
	n := p.byName[e.Node]
	if n == nil || e.State == v1.StateAnnounced || e.State == v1.StateFailed || e.Spec.Leaving || refused(n, a, holding) != "" {
		return nil
	}
	return e
}

// stay keeps a Local address where it is, if it may stay there.
func (p *placer) stay(a *Address) bool {
	e := p.holder(a)
	if claimant := p.claimant(a); e == nil {
		e = claimant
	} else if claimant != nil && claimant.Spec.Claim == v1.ClaimTakeover {
		return false // a handover under way is not called back
	}
	if e == nil {
		return false
	}
	n := p.byName[e.Node]
	if refused(n, a, holding) != "" {
		return false
	}
	spec := e.Spec
	spec.Leaving = false
	p.keep(n, a, spec)
	if e.State != v1.StateAnnounced {
		p.keepFailed(a)
	}
	return true
}

// keep leaves an entry in place, with the interface and mask as they are now.
func (p *placer) keep(n *Node, a *Address, spec v1.AnnouncedAddress) {
	if i, bits := n.interfaceFor(a.Addr); i != nil {
		spec.Interface, spec.PrefixLength = v1.InterfaceName(i.Name), int32(bits)
	}
	p.load[family(a.Addr)][n.Name]++
	p.add(n, a, spec)
}

// keepFailed leaves the entries of nodes that failed to take the address, so
// that it is not offered to them again before somebody has it.
func (p *placer) keepFailed(a *Address) (found bool) {
	for _, e := range p.entries[a.Addr] {
		if n := p.byName[e.Node]; n != nil && e.State == v1.StateFailed && !n.Leaving {
			p.add(n, a, e.Spec)
			found = true
		}
	}
	return found
}

// keepPending leaves the latest claim in place, although its node may not have
// the address any more: it may have it already.
func (p *placer) keepPending(a *Address) {
	for _, e := range p.entries[a.Addr] {
		if n := p.byName[e.Node]; n != nil && e.State != v1.StateFailed && e.State != v1.StateAnnounced && !n.Leaving {
			p.add(n, a, e.Spec)
			return
		}
	}
}

// move gives a Local address to a new node, as far as that can be done now.
func (p *placer) move(a *Address) {
	holder := p.holder(a)
	if holder == nil {
		p.place(a)
		return
	}
	from := p.byName[holder.Node]
	target, spec := p.target(a, holder)
	if target == nil {
		p.moveNowhere(a, from, holder)
		return
	}
	old, claimant := holder.Spec, p.claimant(a)
	move := Move{Kind: Handover, From: from.Name, To: target.Name, Begun: claimant == nil && !old.Leaving, Message: from.Name + " " + refused(from, a, holding)}
	told := true
	if from.Liveness == Expired {
		move.Kind = Failover
		if claimant != nil && claimant.State == v1.StateStandby && from.Sick && !p.massExpiry {
			spec.Claim = v1.ClaimTakeover
		}
	} else {
		told = old.Leaving && holder.Observed
		old.Leaving = true
		if told {
			spec.Claim = v1.ClaimTakeover
		}
	}
	p.note(a, move)
	p.add(from, a, old)
	if told || claimant != nil {
		p.keep(target, a, spec)
	}
	p.keepFailed(a)
}

// moveNowhere is for an address that is to go, but no node can take.
func (p *placer) moveNowhere(a *Address, from *Node, holder *Entry) {
	p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a, p.takingUnlessFailed(a))}
	failed := p.keepFailed(a)
	if from.Leaving {
		p.keepPending(a)
		return // it is withdrawn: the node's agent cannot stay for it
	}
	// A node that has failed to take over may succeed yet: then the holder is not
	// to defend the address.
	stayed := holder.Spec
	stayed.Leaving = failed && stayed.Leaving
	p.keep(from, a, stayed)
}

// note notes that an address is on its way.
func (p *placer) note(a *Address, m Move) {
	if m.Begun {
		m.PassedOver = p.passedOver(a, m)
	}
	p.result.Moves[a.Addr] = m
}

// place gives a Local address that nobody holds to a node.
func (p *placer) place(a *Address) {
	if name := p.unheard(); name != "" && len(p.entries[a.Addr]) == 0 && len(p.facts.Lingering[a.Addr]) == 0 {
		// It may hold the address: its Announcement was lost.
		p.result.Unplaced[a.Addr] = Why{v1.ReasonWaitingForFacts, fmt.Sprintf("waiting for the agent of node %s to report", name)}
		return
	}
	for _, name := range slices.Sorted(slices.Values(p.facts.Lingering[a.Addr])) {
		n := p.byName[name]
		switch {
		case n == nil || n.Liveness == Expired:
		case refused(n, a, taking) == "":
			p.keep(n, a, p.fresh(a, n))
			return
		default:
			p.result.Unplaced[a.Addr] = Why{v1.ReasonAnnouncing, fmt.Sprintf("waiting for node %s to withdraw it", name)}
			return
		}
	}
	target, spec := p.target(a, nil)
	p.keepFailed(a)
	if target == nil {
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a, p.takingUnlessFailed(a))}
		p.keepPending(a)
		return
	}
	p.note(a, Move{Kind: Placement, To: target.Name, Begun: p.claimant(a) == nil})
	p.keep(target, a, spec)
}

// unheard is a node whose agent is alive and expected to report, if there is one.
func (p *placer) unheard() string {
	for _, n := range p.nodes {
		if n.Awaited && n.Liveness != Expired {
			return n.Name
		}
	}
	return ""
}

// target is the node that is to have the address, with its entry: the one that
// claims it already, or else an elected one.
func (p *placer) target(a *Address, holder *Entry) (*Node, v1.AnnouncedAddress) {
	if e := p.claimant(a); e != nil {
		return p.byName[e.Node], e.Spec
	}
	n := p.elect(a, holder)
	if n == nil {
		return nil, v1.AnnouncedAddress{}
	}
	return n, p.fresh(a, n)
}

// fresh is a new claim of a node: with the next epoch, and only if none but its
// previous holders' devices answers for the address.
func (p *placer) fresh(a *Address, n *Node) v1.AnnouncedAddress {
	spec := v1.AnnouncedAddress{Type: v1.AnnounceLocal, Claim: v1.ClaimProbe, Epoch: 1}
	var names []string
	if entries := p.entries[a.Addr]; len(entries) > 0 {
		spec.Epoch = entries[0].Spec.Epoch + 1
	}
	for _, e := range p.entries[a.Addr] {
		names = append(names, e.Node)
	}
	for _, name := range append(names, p.facts.Lingering[a.Addr]...) {
		if old := p.byName[name]; old != nil && old != n {
			spec.PreviousMACs = append(spec.PreviousMACs, old.macs(a.Addr)...)
		}
	}
	slices.Sort(spec.PreviousMACs)
	spec.PreviousMACs = slices.Compact(spec.PreviousMACs)
	spec.PreviousMACs = spec.PreviousMACs[:min(len(spec.PreviousMACs), v1.MaxPreviousMACs)]
	return spec
}
