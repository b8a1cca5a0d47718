package placement

import (
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Stranded returns the addresses, sorted, that a node could announce before a change of
// LBNodeAgents, and that no node could announce after it.
//
// Only what lasts counts: which nodes run an agent, which are excluded from load balancing,
// and which have an interface in the subnet of a Local address. Leases, taints, carriers and
// endpoints do not count, because they come and go without a change of LBNodeAgents. A node
// whose agent has not reported its interfaces counts as one that has all of them.
func Stranded(before, after Inputs) []Address {
	was, is := newPlacer(before), newPlacer(after)
	candidatesBefore, candidatesAfter := was.lastingCandidates(), is.lastingCandidates()
	var stranded []Address
	for i := range before.Addresses {
		a := &before.Addresses[i]
		announceType, _ := was.typeOf(a)
		if announceType == "" || is.canAnnounce(candidatesAfter, a, announceType) {
			continue
		}
		if was.canAnnounce(candidatesBefore, a, announceType) {
			stranded = append(stranded, *a)
		}
	}
	slices.SortFunc(stranded, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	return stranded
}

// lastingCandidates returns the nodes that run an agent and are not excluded.
func (p *placer) lastingCandidates() []*Node {
	return slices.DeleteFunc(slices.Clone(p.nodes), func(n *Node) bool { return n.LBNodeAgent == "" || n.IsExcluded })
}

// canAnnounce reports whether one of the candidates could announce an address.
func (p *placer) canAnnounce(candidates []*Node, a *Address, announceType v1.AnnounceType) bool {
	if announceType == v1.AnnounceVirtual {
		return len(candidates) > 0
	}
	unconfirmed := p.unconfirmedReport(a.Subnet)
	return slices.ContainsFunc(candidates, func(n *Node) bool {
		return (!n.HasReportedFacts || n.interfaceFor(a.Addr) != nil) && unconfirmed(n, a) == ""
	})
}
