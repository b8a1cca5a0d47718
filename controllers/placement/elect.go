package placement

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// electNode chooses among the nodes that may take the address and have not failed to. Nodes that
// are NotReady are chosen only if no other can be. Of the others those count that the address's
// group prefers the most, and of these those in the domains with the fewest addresses of the group.
// The one with the highest hash is chosen among those of them that have less than their share. The
// result is nil if there is no candidate. An address that its holder is asked to hand over goes to
// the one of them that has the fewest, as whoever asks wants to spread them.
func (p *placer) electNode(a *Address, holder *Node) *Node {
	var candidates []*Node
	checks := p.checksToTake(a)
	for _, n := range p.nodes {
		if n != holder && reasonAgainst(n, a, checks) == "" {
			candidates = append(candidates, n)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	if slices.ContainsFunc(candidates, func(n *Node) bool { return !n.IsNotReady }) {
		candidates = slices.DeleteFunc(candidates, func(n *Node) bool { return n.IsNotReady })
	}
	candidates = onlyLargest(candidates, a.WeightOf)
	count := p.localCountOfNode[familyBits(a.Addr)]
	share := (p.localCount[familyBits(a.Addr)] + len(candidates) - 1) / len(candidates) // of each, if all have as many
	candidates = onlyLargest(candidates, func(n *Node) int { return -p.localCountOfGroupDomain[a.DomainOf(n)] })
	isAskedFor := holder != nil && holder.AddressToHandOver == a.Addr
	load := func(n *Node) int {
		if isAskedFor {
			return count[n.Name]
		}
		return max(count[n.Name]+1-share, 0) // by how much it would exceed its share: 0 for all that do not
	}
	return slices.MaxFunc(candidates, func(x, y *Node) int {
		return cmp.Or(
			cmp.Compare(load(y), load(x)),
			cmp.Compare(rendezvousScore(x.Name, a.Addr), rendezvousScore(y.Name, a.Addr)),
			cmp.Compare(y.Name, x.Name),
		)
	})
}

// explainNoEligibleNode says of up to eight nodes why it cannot take an address, by the checks for that.
func (p *placer) explainNoEligibleNode(a *Address, checks []check) Explanation {
	why := explainReasons(p.nodes, a, checks)
	lacksEndpoint := func(n *Node) bool { return reasonAgainst(n, a, checks) == withoutEndpoint }
	if a.ServingNodes != nil && slices.ContainsFunc(p.nodes, lacksEndpoint) {
		why += "; policy Local needs a pod that is ready on a node that may have the address: see the pods of the Service"
	}
	return Explanation{Reason: v1.ReasonNoEligibleNode, Message: why}
}

// explainNotChosen says of the nodes that an address does not go to why not.
func (p *placer) explainNotChosen(a *Address, m Move) string {
	checks := p.checksToTake(a)
	return explainReasons(p.nodes, a, []check{func(n *Node, a *Address) string {
		switch why := reasonAgainst(n, a, checks); {
		case n.Name == m.To:
			return ""
		case why != "" || n.Name == m.From:
			return why
		case n.IsNotReady:
			return "is not Ready"
		default:
			return p.reasonForOther(n, p.nodeByName[m.To], a)
		}
	}})
}

// checksToTake are takeChecks, that what the node reports can be true, and that it has not
// failed to take the address.
func (p *placer) checksToTake(a *Address) []check {
	entries := p.entriesByAddress[a.Addr]
	return append(takeChecks[:len(takeChecks):len(takeChecks)], p.unconfirmedReport(a.Subnet),
		func(n *Node, _ *Address) string {
			for _, e := range entries {
				switch {
				case e.Node != n.Name || !e.isBarred():
				case e.step == stepFailed:
					return "has failed to take it"
				default:
					return "has an agent that does not act on its entry"
				}
			}
			return ""
		})
}

// rendezvousScore is the rendezvous hash of a node and an address.
func rendezvousScore(node string, a netip.Addr) uint64 {
	d := xxhash.New()
	_, _ = d.WriteString(node)
	_, _ = d.Write([]byte{0})
	_, _ = d.Write(a.AsSlice())
	return d.Sum64()
}
