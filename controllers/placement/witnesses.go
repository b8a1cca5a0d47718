package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// scoredNode is a node with its rendezvous hash.
type scoredNode struct {
	node  *Node
	score uint64
}

// compare orders nodes by their scores, the highest first.
func (s scoredNode) compare(other scoredNode) int {
	return cmp.Or(cmp.Compare(other.score, s.score), cmp.Compare(s.node.Name, other.node.Name))
}

// chooseWitnesses chooses nodes by which a watcher can tell whether it is cut off itself: the
// first by a hash among those that are on the link and whose agents are alive.
func (p *placer) chooseWitnesses(key standbyKey, link *Interface) []v1.StandbyNode {
	var best []scoredNode
	for _, subnet := range link.Subnets {
		for _, n := range p.possibleWitnesses(subnet.Masked()) {
			if n.Name == key.watcher || n.Name == key.watched {
				continue
			}
			scored := scoredNode{n, linkScore(n.Name, holderLink{key.watcher, key.watched})}
			at, isAmong := slices.BinarySearchFunc(best, scored, scoredNode.compare)
			if at < maxWitnesses && !isAmong && n.hasSubnetOf(link) {
				best = slices.Insert(best, at, scored)
				best = best[:min(len(best), maxWitnesses)]
			}
		}
	}
	var chosen []v1.StandbyNode
	for _, s := range best {
		chosen = append(chosen, standbyNode(s.node, link))
	}
	slices.SortFunc(chosen, func(a, b v1.StandbyNode) int { return cmp.Compare(a.NodeName, b.NodeName) })
	return chosen
}

// possibleWitnesses are the nodes whose agents are alive and that have addresses of their own in a subnet.
func (p *placer) possibleWitnesses(subnet netip.Prefix) []*Node {
	witnesses, isKnown := p.witnessesOfSubnet[subnet]
	if !isKnown {
		link := &Interface{Subnets: []netip.Prefix{subnet}}
		for _, n := range p.nodes {
			if n.Liveness != Expired && !n.IsNotReady && !n.IsShuttingDown && n.hasOwnAddressOn(link) {
				witnesses = append(witnesses, n)
			}
		}
		p.witnessesOfSubnet[subnet] = witnesses
	}
	return witnesses
}

// hasOwnAddressOn reports whether an interface of another node reaches an address of the node itself on its link.
func (n *Node) hasOwnAddressOn(link *Interface) bool {
	return slices.ContainsFunc(n.Interfaces, func(i Interface) bool { return len(ownAddresses(&i, link)) > 0 })
}

// hasSubnetOf reports whether the node has an interface in a subnet with an address of another node's interface.
func (n *Node) hasSubnetOf(link *Interface) bool {
	return slices.ContainsFunc(n.Interfaces, func(i Interface) bool {
		return slices.ContainsFunc(i.Subnets, func(s netip.Prefix) bool {
			return slices.ContainsFunc(link.Subnets, func(other netip.Prefix) bool { return s.Contains(other.Addr()) })
		})
	})
}
