package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// holderOf is the entry of the holder of a Local address: of the entries that are reported
// Announced the one with the highest epoch. It is nil if there is none.
func (p *placer) holderOf(a *Address) *judgedEntry {
	for _, e := range p.entriesByAddress[a.Addr] {
		if e.ReportedState == v1.StateAnnounced && e.node != nil {
			return e
		}
	}
	return nil
}

// electedOf is the entry with the highest epoch, if it is not realised but may be yet;
// else nil.
func (p *placer) electedOf(a *Address) *judgedEntry {
	entries := p.entriesByAddress[a.Addr]
	if len(entries) == 0 {
		return nil
	}
	e := entries[0]
	mayAnnounce := e.step == stepWaiting || e.step == stepGiven && !e.isOverdue
	if e.node == nil || !mayAnnounce || reasonAgainst(e.node, a, holdChecks) != "" {
		return nil
	}
	return e
}

// mayActOnLostEntry reports whether the agent of an elected node that did not report in time may
// still act on its entry: it has not had the time to observe that the entry is revoked.
func (p *placer) mayActOnLostEntry(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *judgedEntry) bool {
		isLost := e.step == stepGiven && e.isOverdue || e.step == stepRevoked && !e.isOverdue
		return isLost && e.node != nil && e.node.Liveness != Expired
	})
}

// hasObservedHandover reports whether the agent of a holder has observed that the holder's
// entry is handed over.
func (e *judgedEntry) hasObservedHandover() bool { return e.step == stepHandingOver && e.IsObserved }

// mayTakeOver decides whether the elected node may have the address although the holder answers for it, by
// whether the holder's agent renews its Lease.
func (p *placer) mayTakeOver(a *Address, s situation) bool {
	if s.phase == FailingOver {
		return p.mayTakeOverFromSilent(a, s)
	}
	return p.mayTakeOverFromLive(a, s)
}

// mayTakeOverFromLive decides for a holder whose agent renews its Lease and is to hand the address over: the
// elected node takes over as soon as that agent has observed it, unless an agent that lost the address before may
// still act on its entry or, if the holder's agent does not react in time, once the elected node knows that the
// holder answers.
func (p *placer) mayTakeOverFromLive(a *Address, s situation) bool {
	if s.holder.hasObservedHandover() && !p.mayActOnLostEntry(a) {
		return true
	}
	return s.holder.isOverdue && s.isAnswered()
}

// mayTakeOverFromSilent decides for a holder whose agent has not renewed its Lease. If the holder answers, it has the
// address still: the elected node takes over only if the holder's Node is NotReady for long, or if the
// holder is not to have the address any more and has had the time to observe that. Where most Leases have expired, the
// fault may be the API server's, and no node takes over.
func (p *placer) mayTakeOverFromSilent(a *Address, s situation) bool {
	if p.isMassExpiry || !s.isAnswered() {
		return false
	}
	if s.holder.node.IsNotReadyForLong {
		return true
	}
	return s.holder.isOverdue && reasonAgainst(s.holder.node, a, holdChecksWithoutLease) != ""
}

// isTakeoverUnderWay reports whether a node may take the address over once its agent acts.
func (p *placer) isTakeoverUnderWay(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *judgedEntry) bool {
		return e.Spec.ClaimPolicy == v1.ClaimTakeover && !e.Spec.HandingOver && e.ReportedState != v1.StateAnnounced
	})
}

// mayBeHeldByRevokedNode reports whether the elected node is to take over an address that no node
// reports, but some node answers for: a node in whose place the elected node was elected may
// have taken the address, and is NotReady for long, or has had the time to react.
func (p *placer) mayBeHeldByRevokedNode(a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *judgedEntry) bool {
		switch {
		case e.node == nil || e.step != stepRevoked:
			return false
		case e.node.Liveness == Expired:
			return e.node.IsNotReadyForLong && !p.isMassExpiry
		}
		return e.isOverdue
	})
}

// chooseNext returns the node that is to have the address of a holder, with its entry: the
// node that was given the address already, or else an elected one. The node is nil if there is
// none.
func (p *placer) chooseNext(a *Address, s situation) (*Node, v1.AnnouncedAddress) {
	if s.elected != nil {
		return s.elected.node, s.elected.Spec
	}
	n := p.electNode(a, s.holder.node)
	if n == nil {
		return nil, v1.AnnouncedAddress{}
	}
	return n, p.newEntry(a, n)
}

// newEntry is a new entry for a node, with the next epoch: the node may claim the address only if no device
// answers for it but those of its previous holders.
func (p *placer) newEntry(a *Address, n *Node) v1.AnnouncedAddress {
	return v1.AnnouncedAddress{
		Type: v1.AnnounceLocal, ClaimPolicy: v1.ClaimProbe, Epoch: p.highestEpoch(a.Addr) + 1,
		PreviousMACs: p.previousMACsFor(a, n),
	}
}

// withHighestEpoch notes in an entry which epoch another node is given, by newEntry. Such
// entries are written before that of the other node, and only if they are still as they
// were read: so no two leaders give the same epoch.
func withHighestEpoch(e v1.AnnouncedAddress, newEntry *v1.AnnouncedAddress) v1.AnnouncedAddress {
	if newEntry != nil {
		e.HighestEpoch = max(e.HighestEpoch, newEntry.Epoch)
	}
	return e
}

// previousMACsFor returns the MAC addresses by which nodes that have, or may have, the
// address answer for it: those on its subnet first, then those that the entries of earlier
// elected nodes list, as their nodes may be gone, then all others. The agent asks the first of
// them by unicast.
func (p *placer) previousMACsFor(a *Address, elected *Node) []string {
	var onSubnet, listed, others []string
	add := func(name string) {
		if n := p.nodeByName[name]; n != nil && n != elected {
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

// ReassignedAddresses returns the Local addresses that a result gives to a node while other
// nodes have entries for them. An Announcement that has an entry for one of them, and is
// to change, is written before that of the node: if it is not as it was read any more,
// another leader may have given the address to another node.
func ReassignedAddresses(inputs *Inputs, result *Result) map[netip.Addr]bool {
	existed, hasEntries := map[epochKey]bool{}, map[netip.Addr]bool{}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		existed[epochKey{entryKey{e.Node, e.Addr}, e.Spec.Epoch}] = true
		hasEntries[e.Addr] = true
	}
	reassigned := map[netip.Addr]bool{}
	for node, entries := range result.Entries {
		for i := range entries {
			e := &entries[i]
			if e.Type == v1.AnnounceLocal && hasEntries[e.Addr] && !existed[epochKey{entryKey{node, e.Addr}, e.Epoch}] {
				reassigned[e.Addr] = true
			}
		}
	}
	return reassigned
}
