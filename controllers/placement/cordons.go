package placement

import (
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// By default a cordon does nothing: the addresses stay. Here a node counts as cordoned only if its LBNodeAgent
// says onUnschedulable HandOver; then Node.HandsOverAsCordoned is true.
//
// A cordon says that a node takes no new pods, and not that it goes. So it takes an address from a node,
// or keeps one from it, only while a node that is not cordoned may have the address: where all nodes
// are cordoned, or those that are not have no interface in the subnet, no endpoint, or are dead,
// it is as if the node were not cordoned.

// cordonChecks are what a node that is not cordoned must pass so that the cordons of others count. A node
// whose Lease has expired may be dead, and would be the only one. One that is asked to hand an address
// over counts: no address is to go to a cordoned node, and back as soon as nobody asks any more.
var cordonChecks = []check{noAgent, leavingAgent, excluded, outOfService, shuttingDown, leaseExpired}

// noteCordons notes whether any node is cordoned, and whether cordons count for the shared entries.
func (p *placer) noteCordons() {
	p.hasCordons = slices.ContainsFunc(p.nodes, func(n *Node) bool { return n.HandsOverAsCordoned })
	p.ignoresCordonsForShared = p.hasCordons && !p.isAnyUncordoned(nil, cordonChecks)
}

// setIgnoresCordons decides whether cordons count for an address.
func (p *placer) setIgnoresCordons(a *Address, announceType v1.AnnounceType) {
	if !p.hasCordons {
		return
	}
	checks := cordonChecks[:len(cordonChecks):len(cordonChecks)]
	if announceType == v1.AnnounceLocal {
		checks = append(checks, offSubnet, p.unconfirmedReport(a.Subnet), noEndpointForLocalAddress)
	} else {
		checks = append(checks, noEndpoint)
	}
	a.ignoresCordons = !p.isAnyUncordoned(a, checks)
}

// isAnyUncordoned reports whether a node that is not cordoned passes the checks.
func (p *placer) isAnyUncordoned(a *Address, checks []check) bool {
	return slices.ContainsFunc(
		p.nodes, func(n *Node) bool { return !n.HandsOverAsCordoned && reasonAgainst(n, a, checks) == "" },
	)
}
