package placement

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// isVirtual reports whether an address is announced as a Virtual one.
func (p *placer) isVirtual(a *Address) bool {
	if entries := p.entriesByAddress[a.Addr]; len(entries) > 0 {
		return entries[0].Spec.Type == v1.AnnounceVirtual
	}
	return len(p.sharedByAddress[a.Addr]) > 0
}

// typeOf decides whether an address is Local or Virtual. The type does not change while
// the address is announced, and is undecided until all live nodes have reported their
// interfaces. While addresses of a pool are announced Virtual, new ones are, too: else one
// node could attract, by what it reports, what all nodes announced.
func (p *placer) typeOf(a *Address) (v1.AnnounceType, Explanation) {
	if entries := p.entriesByAddress[a.Addr]; len(entries) > 0 {
		return entries[0].Spec.Type, Explanation{}
	}
	if a.PoolType == v1.PoolTypeRemote || p.isVirtual(a) || p.virtualPools[a.pool()] {
		return v1.AnnounceVirtual, Explanation{}
	}
	hasFacts := false
	awaited := ""
	unconfirmed := p.unconfirmedReport(a.Subnet)
	for _, n := range p.nodes {
		if n.interfaceFor(a.Addr) != nil && unconfirmed(n, a) == "" {
			return v1.AnnounceLocal, Explanation{}
		}
		hasFacts = hasFacts || n.HasReportedFacts
		if !n.HasReportedFacts && (n.AreFactsAwaited || n.Liveness == Fresh && !n.AreFactsOverdue) && awaited == "" {
			awaited = n.Name
		}
	}
	switch {
	case awaited != "":
		return "", Explanation{
			Reason:  v1.ReasonWaitingForFacts,
			Message: fmt.Sprintf("waiting for the agent of node %s to report its interfaces", awaited),
		}
	case !hasFacts:
		return "", Explanation{
			Reason: v1.ReasonWaitingForFacts, Message: "no agent has reported its node's interfaces yet",
		}
	}
	return v1.AnnounceVirtual, Explanation{}
}

// AnnounceTypeBy returns a function that says of an address of a local pool, given the pool's subnet, whether it is to
// be Local or Virtual while no node announces it, by what the nodes have reported, whether more is awaited or not. It
// returns an empty type if no node has reported anything. The function is not for concurrent use.
func AnnounceTypeBy(nodes []Node) func(addr netip.Addr, subnet netip.Prefix) v1.AnnounceType {
	p := newPlacerWithoutEntries(Inputs{Nodes: nodes})
	return func(addr netip.Addr, subnet netip.Prefix) v1.AnnounceType {
		announceType, _ := p.typeOf(&Address{Addr: addr, PoolType: v1.PoolTypeLocal, Subnet: subnet})
		return announceType
	}
}

// placeVirtual gives a Virtual address to the nodes that serve it.
func (p *placer) placeVirtual(a *Address) {
	if a.isOnAllNodes() {
		p.placeOnAllNodes(a)
		return
	}
	mask, isAnnouncedBy, isOverdueOn := p.maskOf(a), map[string]bool{}, map[string]bool{}
	for _, e := range p.entriesByAddress[a.Addr] {
		isAnnouncedBy[e.Node] = e.ReportedState == v1.StateAnnounced
		isOverdueOn[e.Node] = e.isOverdue
	}
	areAllDone := true
	var announcers, ending []*Node
	for _, n := range p.nodes {
		switch {
		case p.mayHaveVirtual(n, a):
			p.addVirtual(n, a, mask)
			announcers, areAllDone = append(announcers, n), areAllDone && (isAnnouncedBy[n.Name] || isOverdueOn[n.Name])
		case isAnnouncedBy[n.Name] && p.mayEndLater(n, a):
			ending = append(ending, n)
		}
	}
	if !areAllDone { // make before break
		for _, n := range ending {
			p.addVirtual(n, a, mask)
		}
	}
	if len(announcers) == 0 {
		p.result.Unplaced[a.Addr] = p.explainNoEligibleNode(a, takeVirtualChecks)
	}
	if why := explainSilence(append(announcers, ending...)); why.AreAllSilent {
		p.result.Silent[a.Addr] = why
	}
	p.keepSharedUntilObserved(a, mask)
}

// explainSilence says of nodes that are to announce a Virtual address that the agents of all of them do not renew their
// Leases. The explanation is empty if one does, or if there are no nodes.
func explainSilence(nodes []*Node) Explanation {
	why := Explanation{Reason: v1.ReasonHolderSilent, AreAllSilent: len(nodes) > 0, IsHolderDown: true}
	for _, n := range nodes {
		why.AreAllSilent = why.AreAllSilent && n.Liveness == Expired
		why.IsHolderDown = why.IsHolderDown && n.IsNotReady
	}
	if !why.AreAllSilent {
		return Explanation{}
	}
	why.Message = explainReasons(nodes, nil, []check{leaseExpired})
	return why
}

// mayHaveVirtual reports whether a node is to have an entry of its own for a Virtual address.
func (p *placer) mayHaveVirtual(n *Node, a *Address) bool {
	isCordoned := cordoned(n, a) != ""
	switch {
	case reasonAgainst(n, a, keepVirtualChecks) != "" || noEndpoint(n, a) != "":
		return false
	case n.IsExcluded || isCordoned:
		return (!isCordoned || n.MayHaveRoutes) && p.hasVirtual(n, a)
	}
	return true
}

// mayEndLater reports whether a node that is not to have a Virtual address any more keeps that until
// others announce it: its endpoints terminate, or it is cordoned.
func (p *placer) mayEndLater(n *Node, a *Address) bool {
	return reasonAgainst(n, a, keepVirtualChecks) == "" &&
		(a.TerminatingNodes[n.Name] || n.HandsOverAsCordoned && noEndpoint(n, a) == "")
}

// hasVirtual reports whether a node is to announce a Virtual address already, by its own entry or by a
// shared one.
func (p *placer) hasVirtual(n *Node, a *Address) bool {
	return slices.ContainsFunc(p.entriesByAddress[a.Addr], func(e *judgedEntry) bool { return e.Node == n.Name }) ||
		n.AnnouncesShared && slices.ContainsFunc(
			p.sharedByAddress[a.Addr], func(e *SharedEntry) bool { return e.LBNodeAgent == n.LBNodeAgent },
		)
}

// addVirtual gives a node an entry of its own for a Virtual address.
func (p *placer) addVirtual(n *Node, a *Address, mask int32) {
	e := virtualEntry(n.VirtualInterface, mask)
	e.HealthCheckNodePort = a.HealthPort
	p.addEntry(n, a, e)
}

func virtualEntry(iface string, mask int32) v1.AnnouncedAddress {
	return v1.AnnouncedAddress{
		PrefixLength: mask, Interface: v1.InterfaceName(iface), Type: v1.AnnounceVirtual, ClaimPolicy: v1.ClaimProbe,
	}
}

// maskOf is the mask of a Virtual address. An address whose group is gone keeps the mask
// that it has.
func (p *placer) maskOf(a *Address) int32 {
	entries, shared := p.entriesByAddress[a.Addr], p.sharedByAddress[a.Addr]
	switch {
	case a.Mask != 0:
		return int32(a.Mask)
	case len(entries) > 0:
		return entries[0].Spec.PrefixLength
	case len(shared) > 0:
		return shared[0].Spec.PrefixLength
	}
	return int32(a.Addr.BitLen())
}

// noteAnnouncer notes that a node announces the shared entries, if the node does. One that is excluded
// or cordoned goes on to announce them while its routes are being withdrawn, and does not begin to.
func (p *placer) noteAnnouncer(n *Node) {
	isCordoned := n.HandsOverAsCordoned && !p.ignoresCordonsForShared
	mayKeep := n.AnnouncesShared && (!isCordoned || n.MayHaveRoutes)
	if reasonAgainst(n, nil, keepVirtualChecks) != "" || (n.IsExcluded || isCordoned) && !mayKeep {
		return
	}
	p.result.AnnouncesShared[n.Name] = true
	p.sharedInterfaces[n.LBNodeAgent] = n.VirtualInterface
}

// placeOnAllNodes makes a Virtual address a shared entry. A node that has an entry of its
// own for the address keeps that until the node has realised the shared one.
func (p *placer) placeOnAllNodes(a *Address) {
	if len(p.sharedInterfaces) == 0 {
		p.result.Unplaced[a.Addr] = p.explainNoEligibleNode(a, takeVirtualChecks)
		return
	}
	mask := p.maskOf(a)
	for lbNodeAgent, iface := range p.sharedInterfaces {
		p.addSharedEntry(lbNodeAgent, a, virtualEntry(iface, mask))
	}
	if why := p.explainSharedSilence(); why.AreAllSilent {
		p.result.Silent[a.Addr] = why
	}
	for _, e := range p.entriesByAddress[a.Addr] {
		if n := e.node; n != nil && p.result.AnnouncesShared[n.Name] && !p.hasRealisedShared(n, a) {
			p.addVirtual(n, a, mask)
		}
	}
}

// explainSharedSilence does so of the nodes that announce the shared entries, which are the same for all of these.
func (p *placer) explainSharedSilence() Explanation {
	if p.sharedSilence == nil {
		why := explainSilence(slices.DeleteFunc(
			slices.Clone(p.nodes), func(n *Node) bool { return !p.result.AnnouncesShared[n.Name] },
		))
		p.sharedSilence = &why
	}
	return *p.sharedSilence
}

// hasRealisedShared reports whether a node has realised the shared entry of an address.
func (p *placer) hasRealisedShared(n *Node, a *Address) bool {
	return slices.ContainsFunc(p.sharedByAddress[a.Addr], func(e *SharedEntry) bool {
		return e.LBNodeAgent == n.LBNodeAgent && e.Spec.Epoch <= n.SharedRevision
	})
}

// keepSharedUntilObserved keeps the shared entry of an address that from now on is to be
// on some nodes only, until those nodes have observed that they have entries of their own. A node
// whose Lease has expired observes nothing: of it, which may announce the address all the same, it
// is enough that the API server has stored the entry, which its agent sees when it is back.
func (p *placer) keepSharedUntilObserved(a *Address, mask int32) {
	if len(p.sharedByAddress[a.Addr]) == 0 {
		return
	}
	isObservedBy := map[string]bool{}
	for _, e := range p.entriesByAddress[a.Addr] {
		isDead := e.node != nil && e.node.Liveness == Expired
		isObservedBy[e.Node] = e.IsObserved || e.isOverdue || isDead // one node holds up no other
	}
	for _, e := range p.sharedByAddress[a.Addr] {
		iface, hasAnnouncers := p.sharedInterfaces[e.LBNodeAgent]
		if hasAnnouncers && slices.ContainsFunc(p.nodes, func(n *Node) bool {
			return n.LBNodeAgent == e.LBNodeAgent && !isObservedBy[n.Name] && p.mayHaveVirtual(n, a)
		}) {
			p.addSharedEntry(e.LBNodeAgent, a, virtualEntry(iface, mask))
		}
	}
}

func (p *placer) addSharedEntry(lbNodeAgent string, a *Address, e v1.AnnouncedAddress) {
	p.result.SharedEntries[lbNodeAgent] = append(p.result.SharedEntries[lbNodeAgent], a.placedEntry(e))
}
