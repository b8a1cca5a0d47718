package placement

import (
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// A cordon says that a node takes no new pods, and not that it goes. So it takes an address from a node,
// or keeps one from it, only while a node that is not cordoned may have the address: where all nodes
// are cordoned, or those that are not have no interface in the subnet, no endpoint, or are dead,
// nothing is as if the node were not cordoned.

// sharedCordonChecks are what a node that is not cordoned must pass so that the cordons of others
// count for Virtual addresses. A node whose Lease has expired may be dead, and would be the only one.
var sharedCordonChecks = []check{runsAgent, notLeavingAgent, notExcluded, notOutOfService, notShuttingDown, notExpired}

// noteCordons notes whether any node is cordoned, and whether cordons count for the shared entries.
func (p *placer) noteCordons() {
	p.hasCordons = slices.ContainsFunc(p.nodes, func(n *Node) bool { return n.IsCordoned })
	p.ignoresSharedCordons = p.hasCordons && !p.isAnyUncordoned(nil, sharedCordonChecks)
}

// heedCordons decides whether cordons count for an address.
func (p *placer) heedCordons(a *Address, announceType v1.AnnounceType) {
	if !p.hasCordons {
		return
	}
	checks := append(sharedCordonChecks[:len(sharedCordonChecks):len(sharedCordonChecks)], hasEndpoint)
	if announceType == v1.AnnounceLocal {
		checks = append(claimChecks[:len(claimChecks):len(claimChecks)], p.checkConfirmed(a.Subnet), hasEndpointForLocalAddress)
	}
	a.ignoresCordons = !p.isAnyUncordoned(a, checks)
}

// isAnyUncordoned reports whether a node that is not cordoned passes the checks.
func (p *placer) isAnyUncordoned(a *Address, checks []check) bool {
	return slices.ContainsFunc(
		p.nodes, func(n *Node) bool { return !n.IsCordoned && reasonAgainst(n, a, checks) == "" },
	)
}
