package placement

import (
	"net/netip"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// CountWithoutOtherNode counts, of each node that is alive and has Local addresses, those that no other node
// could take if that node died. What comes and goes with a Service's pods does not count, nor does a cordon,
// which does not matter where all other nodes are cordoned: it is about the nodes alone. A node whose Lease has
// expired is not counted, since its addresses are on their way, or have no node already.
func CountWithoutOtherNode(inputs Inputs, result *Result) map[string]int {
	p := newPlacerWithoutEntries(inputs)
	addressOf := make(map[netip.Addr]*Address, len(inputs.Addresses))
	for i := range inputs.Addresses {
		addressOf[inputs.Addresses[i].Addr] = &inputs.Addresses[i]
	}
	counts := map[string]int{}
	for _, holder := range p.nodes {
		if holder.Liveness == Expired {
			continue
		}
		for i := range result.Entries[holder.Name] {
			e := &result.Entries[holder.Name][i]
			a := addressOf[e.Addr]
			if a == nil || e.Type != v1.AnnounceLocal {
				continue
			}
			count := counts[holder.Name]
			if !p.hasOtherNode(a, holder) {
				count++
			}
			counts[holder.Name] = count
		}
	}
	return counts
}

// hasOtherNode reports whether a node other than the holder of a Local address could take it.
func (p *placer) hasOtherNode(a *Address, holder *Node) bool {
	checks := append(cordonChecks[:len(cordonChecks):len(cordonChecks)], offSubnet, p.unconfirmedReport(a.Subnet))
	for n := range p.nodesInSubnetOf(a.Addr) {
		if n != holder && reasonAgainst(n, a, checks) == "" {
			return true
		}
	}
	return false
}
