package placement

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/purelb/purelb-operator/internal/order"
)

// scoredWitness is a node that may be a witness, with its rendezvous hash. isCurrent means that it is one already.
type scoredWitness struct {
	node      *Node
	isCurrent bool
	score     uint64
}

// compare orders nodes by preference: those that are witnesses already, and then those of the highest scores.
func (w scoredWitness) compare(other scoredWitness) int {
	return cmp.Or(
		order.TrueFirst(w.isCurrent, other.isCurrent), cmp.Compare(other.score, w.score),
		cmp.Compare(w.node.Name, other.node.Name),
	)
}

// chooseWitnesses chooses nodes by which a watcher can tell whether it is cut off itself, sorted by name: current are
// its witnesses until now, which remain if they may. The others are the first by a hash among the nodes that are on
// the link and whose agents are alive.
func (p *placer) chooseWitnesses(key standbyKey, link *Interface, current []string) []*Node {
	var best []scoredWitness
	consider := func(n *Node) {
		w := scoredWitness{
			n, slices.Contains(current, n.Name), linkScore(n.Name, holderLink{key.watcher, key.watched}),
		}
		at, isAmong := slices.BinarySearchFunc(best, w, scoredWitness.compare)
		if at < maxWitnesses && !isAmong && n.Name != key.watcher && n.Name != key.watched && n.hasSubnetOf(link) {
			best = slices.Insert(best, at, w)
			best = best[:min(len(best), maxWitnesses)]
		}
	}
	for _, name := range current {
		if n := p.nodeByName[name]; n != nil && n.mayRemainWitness() && n.hasOwnAddressOn(link) {
			consider(n)
		}
	}
	if len(best) < maxWitnesses {
		for _, subnet := range link.Subnets {
			for _, n := range p.possibleWitnesses(subnet.Masked()) {
				consider(n)
			}
		}
	}
	chosen := make([]*Node, 0, len(best))
	for _, w := range best {
		chosen = append(chosen, w.node)
	}
	slices.SortFunc(chosen, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return chosen
}

// storedWitnesses are the names of the nodes that stored objects of a watcher's plan name as witnesses. first is the
// name of the plan's first object.
func (p *placer) storedWitnesses(watcher, first string) []string {
	var witnesses []string
	for i := range p.inputs.Standbys[watcher] {
		if o := &p.inputs.Standbys[watcher][i]; o.isOf(first) {
			witnesses = append(witnesses, o.Witnesses...)
		}
	}
	return witnesses
}

// mayRemainWitness reports whether a witness needs not be replaced. An agent that restarts, or a Node that is NotReady
// for a moment, costs no write: the kernel answers on, and the other witnesses do.
func (n *Node) mayRemainWitness() bool {
	return !n.IsDeleted && !n.IsExpiredForLong && !n.IsNotReadyForLong && !n.IsShuttingDown
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
