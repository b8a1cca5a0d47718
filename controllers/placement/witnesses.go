package placement

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/purelb/purelb-operator/internal/order"
)

// scoredWitness is a node that may be a witness, with its rendezvous hash and its domain: the value of the label over
// which addresses are spread. isCurrent means that it is one already.
type scoredWitness struct {
	node      *Node
	isCurrent bool
	score     uint64
	domain    string
}

// compare orders nodes by preference: those that are witnesses already, and then those of the highest scores.
func (w scoredWitness) compare(other scoredWitness) int {
	return cmp.Or(
		order.TrueFirst(w.isCurrent, other.isCurrent), cmp.Compare(other.score, w.score),
		cmp.Compare(w.node.Name, other.node.Name),
	)
}

// chooseWitnesses chooses nodes by which a watcher can tell whether it is cut off itself, sorted by name: current are
// its witnesses until now, and may name one more than once. A current witness remains if mayRemainWitness says so. The
// others are the first by a hash among the nodes that are on the link and whose agents are alive. The witnesses have as
// many values of the label topologyKey as possible, even if a current one is replaced for that: nodes that are cut off
// together, as those of a rack are, are then few of them.
func (p *placer) chooseWitnesses(key standbyKey, link *Interface, current []string, topologyKey string) []*Node {
	bestOfDomain, found := map[string][]scoredWitness{}, 0
	consider := func(n *Node) {
		w := scoredWitness{
			n, slices.Contains(current, n.Name), linkScore(n.Name, holderLink{key.watcher, key.watched}), n.Labels[topologyKey],
		}
		best := bestOfDomain[w.domain]
		at, isAmong := slices.BinarySearchFunc(best, w, scoredWitness.compare)
		if at < maxWitnesses && !isAmong && n.Name != key.watcher && n.Name != key.watched && n.hasSubnetOf(link) {
			best = slices.Insert(best, at, w)
			bestOfDomain[w.domain] = best[:min(len(best), maxWitnesses)]
			found++
		}
	}
	for _, name := range current {
		if n := p.nodeByName[name]; n != nil && n.mayRemainWitness() && n.hasOwnAddressOn(link) {
			consider(n)
		}
	}
	mayBeSpreadFurther := slices.ContainsFunc(link.Subnets, func(subnet netip.Prefix) bool {
		return len(bestOfDomain) < min(p.countDomains(subnet.Masked(), topologyKey), maxWitnesses)
	})
	if found < maxWitnesses || mayBeSpreadFurther {
		for _, subnet := range link.Subnets {
			for _, n := range p.possibleWitnesses(subnet.Masked()) {
				consider(n)
			}
		}
	}
	chosen := spreadWitnesses(slices.Concat(slices.Collect(maps.Values(bestOfDomain))...))
	slices.SortFunc(chosen, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	return chosen
}

// spreadWitnesses chooses up to maxWitnesses nodes: again and again one of the domains that have the fewest, and there
// one that is a witness already before others.
func spreadWitnesses(candidates []scoredWitness) []*Node {
	var chosen []*Node
	countByDomain := map[string]int{}
	for len(chosen) < maxWitnesses && len(candidates) > 0 {
		next := slices.MinFunc(candidates, func(x, y scoredWitness) int {
			return cmp.Or(cmp.Compare(countByDomain[x.domain], countByDomain[y.domain]), x.compare(y))
		})
		chosen = append(chosen, next.node)
		countByDomain[next.domain]++
		candidates = slices.DeleteFunc(candidates, func(w scoredWitness) bool { return w.node == next.node })
	}
	return chosen
}

// storedWitnesses are the names of the nodes that stored objects of a watcher's plan name as witnesses, once for each
// object. first is the name of the plan's first object.
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

// countDomains returns how many values of the label topologyKey the possibleWitnesses in a subnet have.
func (p *placer) countDomains(subnet netip.Prefix, topologyKey string) int {
	if topologyKey == "" {
		return min(len(p.possibleWitnesses(subnet)), 1)
	}
	key := subnetAndLabel{subnet, topologyKey}
	count, isKnown := p.domainCounts[key]
	if !isKnown {
		domains := map[string]bool{}
		for _, n := range p.possibleWitnesses(subnet) {
			domains[n.Labels[topologyKey]] = true
		}
		count = len(domains)
		p.domainCounts[key] = count
	}
	return count
}

// subnetAndLabel is a subnet, and a label over which addresses are spread.
type subnetAndLabel struct {
	subnet netip.Prefix
	label  string
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
