package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// holderOf is the entry of the holder of a Local address: of the entries that are reported
// Announced the one with the highest epoch. It is nil if there is none.
func (p *placer) holderOf(a *Address) *Entry {
	for _, e := range p.entriesByAddress[a.Addr] {
		if e.ReportedState == v1.StateAnnounced && p.nodeByName[e.Node] != nil {
			return e
		}
	}
	return nil
}

// claimantOf is the entry with the highest epoch, if it is not realised but may be yet;
// else nil.
func (p *placer) claimantOf(a *Address) *Entry {
	entries := p.entriesByAddress[a.Addr]
	if len(entries) == 0 {
		return nil
	}
	e := entries[0]
	n := p.nodeByName[e.Node]
	if n == nil || e.ReportedState == v1.StateAnnounced || p.hasFailed(e) || e.Spec.Leaving || reasonAgainst(n, a, holdChecks) != "" {
		return nil
	}
	return e
}

// isOverdueClaimant reports whether the agent of a claimant should have reported by now
// what became of the claim.
func (p *placer) isOverdueClaimant(e *Entry) bool {
	n := p.nodeByName[e.Node]
	return n != nil && !e.Spec.Leaving && !e.hasReported() && e.UnchangedFor >= ReactionTime+n.ProbeTime
}

// isRevoked reports whether an entry is of a claimant in whose place another node was
// elected, and whose agent, which has not reported, may not have observed that yet.
func isRevoked(e *Entry) bool { return e.Spec.Leaving && !e.hasReported() && !e.IsObserved }

// hasFailed reports whether the node of an entry is not to be elected again: it has failed
// to take the address, or its agent does not act.
func (p *placer) hasFailed(e *Entry) bool {
	return e.ReportedState == v1.StateFailed || p.isOverdueClaimant(e) || isRevoked(e)
}

// mayClaimUnobserved reports whether the agent of an overdue claimant may still act on a
// claim that it has lost: it has not had the time to observe that.
func (p *placer) mayClaimUnobserved(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *Entry) bool {
		n := p.nodeByName[e.Node]
		return n != nil && n.Liveness != Expired && (p.isOverdueClaimant(e) || isRevoked(e) && e.UnchangedFor < ReactionTime)
	})
}

// hasObservedLeaving reports whether the agent of a holder has observed that the holder's
// entry is leaving.
func hasObservedLeaving(holder *Entry) bool { return holder.Spec.Leaving && holder.IsObserved }

// isOverdueLeaving reports whether the agent of a holder should have observed by now that
// the holder's entry is leaving.
func isOverdueLeaving(holder *Entry) bool {
	return holder.Spec.Leaving && holder.UnchangedFor >= ReactionTime
}

// mayTakeOver decides whether the claimant may have the address although the holder
// answers for it. The claimant may as soon as the holder's agent has observed that the
// holder's entry is leaving. Where the holder's agent does not react, the claimant first
// asks on the link: when the holder is known to answer, the claimant takes over if the
// holder's Node is NotReady for long, or if the holder is not to have the address any more
// and has had the time to observe that.
func (p *placer) mayTakeOver(a *Address, holder, claimant *Entry) bool {
	from := p.nodeByName[holder.Node]
	answers := claimant != nil && claimant.ReportedState == v1.StateStandby
	isUnwanted := reasonAgainst(from, a, holdChecksWithoutLease) != ""
	if from.Liveness == Expired {
		return answers && (from.IsNotReadyForLong || isUnwanted && isOverdueLeaving(holder)) && !p.isMassExpiry
	}
	return hasObservedLeaving(holder) && !p.mayClaimUnobserved(a) || answers && isOverdueLeaving(holder)
}

// isTakeoverUnderWay reports whether a node may take the address over once its agent acts.
func (p *placer) isTakeoverUnderWay(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *Entry) bool {
		return e.Spec.Claim == v1.ClaimTakeover && !e.Spec.Leaving && e.ReportedState != v1.StateAnnounced
	})
}

// isHeldUnreported reports whether the claimant is to take over an address that no node
// reports, but some node answers for: a node in whose place the claimant was elected may
// have taken the address, and is NotReady for long, or has had the time to react.
func (p *placer) isHeldUnreported(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *Entry) bool {
		n := p.nodeByName[e.Node]
		switch {
		case n == nil || !isRevoked(e):
			return false
		case n.Liveness == Expired:
			return n.IsNotReadyForLong && !p.isMassExpiry
		}
		return e.UnchangedFor >= ReactionTime
	})
}

// chooseClaim returns the node that is to have the address, with its entry: the node that
// claims the address already, or else an elected one. The node is nil if there is none.
func (p *placer) chooseClaim(a *Address, holder *Entry) (*Node, v1.AnnouncedAddress) {
	if e := p.claimantOf(a); e != nil {
		return p.nodeByName[e.Node], e.Spec
	}
	n := p.electNode(a, holder)
	if n == nil {
		return nil, v1.AnnouncedAddress{}
	}
	return n, p.newClaim(a, n)
}

// newClaim is a new claim of a node: with the next epoch, and only if no device answers
// for the address but those of its previous holders.
func (p *placer) newClaim(a *Address, n *Node) v1.AnnouncedAddress {
	return v1.AnnouncedAddress{
		Type: v1.AnnounceLocal, Claim: v1.ClaimProbe, Epoch: p.highestEpoch(a.Addr) + 1, PreviousMACs: p.previousMACsFor(a, n),
	}
}

// withHighestEpoch notes in an entry which epoch another node is given, if one is. Such
// entries are written before that of the other node, and only if they are still as they
// were read: so no two leaders give the same epoch.
func withHighestEpoch(e v1.AnnouncedAddress, given *v1.AnnouncedAddress) v1.AnnouncedAddress {
	if given != nil {
		e.HighestEpoch = max(e.HighestEpoch, given.Epoch)
	}
	return e
}

// previousMACsFor returns the MAC addresses by which nodes that have, or may have, the
// address answer for it: those on its subnet first, then those that the entries of earlier
// claimants list, as their nodes may be gone, then all others. The agent asks the first of
// them by unicast.
func (p *placer) previousMACsFor(a *Address, claimant *Node) []string {
	var onSubnet, listed, others []string
	add := func(name string) {
		if n := p.nodeByName[name]; n != nil && n != claimant {
			onSubnet, others = append(onSubnet, n.macsInSubnet(a.Addr)...), append(others, n.allMACs()...)
		}
	}
	for _, e := range p.entriesByAddress[a.Addr] {
		add(e.Node)
		if e.ReportedState != v1.StateAnnounced {
			listed = append(listed, e.Spec.PreviousMACs...)
		}
	}
	lingering := slices.Clone(p.inputs.LingeringReports[a.Addr])
	slices.SortFunc(lingering, func(x, y LingeringReport) int { return cmp.Compare(x.Node, y.Node) })
	for _, l := range lingering {
		add(l.Node)
	}
	return appendMissing(nil, v1.MaxPreviousMACs, slices.Concat(onSubnet, listed, others))
}

// ContestedClaims returns the Local addresses that a result gives to a node while other
// nodes have entries for them. An Announcement that has an entry for one of them, and is
// to change, is written before that of the node: if it is not as it was read any more,
// another leader may have given the address to another node.
func ContestedClaims(inputs *Inputs, result *Result) map[netip.Addr]bool {
	type key struct {
		node  string
		addr  string
		epoch int64
	}
	existed, hasEntries := map[key]bool{}, map[string]bool{}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		existed[key{e.Node, e.Spec.Address, e.Spec.Epoch}] = true
		hasEntries[e.Spec.Address] = true
	}
	claims := map[netip.Addr]bool{}
	for node, entries := range result.Entries {
		for i := range entries {
			e := &entries[i]
			if e.Type != v1.AnnounceLocal || !hasEntries[e.Address] || existed[key{node, e.Address, e.Epoch}] {
				continue
			}
			if addr, err := netip.ParseAddr(e.Address); err == nil {
				claims[addr] = true
			}
		}
	}
	return claims
}
