package placement

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// A check says why a node cannot announce an address, or nothing, and has its name from that
// reason. Its text follows the name of the node.
type check func(*Node, *Address) string

// holdChecks are what a node must pass to go on holding a Local address.
// holdChecksWithoutLease are those of them that do not depend on the Lease: a node that
// fails one of these is to lose the address even if its kernel serves on without an agent.
var (
	holdChecksWithoutLease = slices.Concat(checksOfNode, checksOfLink)
	holdChecks             = slices.Concat(checksOfNode, []check{leaseExpired}, checksOfLink)

	checksOfNode = []check{
		nodeGone, noAgent, leavingAgent, excluded, outOfService, shuttingDown, cordoned,
		askedToHandOver,
	}
	checksOfLink = []check{offSubnetIfReported, noEndpointForLocalAddressThoughAnyHas}
)

// takeChecks are what a node must pass to be given a Local address.
var takeChecks = append(holdChecks[:len(holdChecks):len(holdChecks)], offSubnet, notFresh, noEndpointForLocalAddress)

// successorClaimChecks are what a node must pass so that its claim of a Local address counts. A node that is to hand
// its addresses over, as it is unschedulable or shuts down, has the address all the same: it hands it over once the
// claim has been adopted, and no client misses it meanwhile.
var successorClaimChecks = []check{nodeGone, noAgent, outOfService, leaseExpired, offSubnet}

// keepVirtualChecks are what a node must pass to keep a Virtual address, and takeVirtualChecks to be
// given one. A node whose routes are being withdrawn keeps what it has, and gets nothing new.
var (
	keepVirtualChecks = []check{noAgent, leavingAgent, excludedUnlessRouted}
	takeVirtualChecks = []check{noAgent, leavingAgent, excluded, cordoned, noEndpoint}
)

// reasonAgainst returns why a node fails the checks, or nothing.
func reasonAgainst(n *Node, a *Address, checks []check) string {
	for _, c := range checks {
		if why := c(n, a); why != "" {
			return why
		}
	}
	return ""
}

func nodeGone(n *Node, _ *Address) string {
	if n.IsDeleted {
		return "has no Node object any more"
	}
	return ""
}

func noAgent(n *Node, _ *Address) string {
	if n.LBNodeAgent == "" {
		return "runs no agent"
	}
	return ""
}

func leavingAgent(n *Node, _ *Address) string {
	if n.IsLeaving {
		return "is leaving LBNodeAgent " + n.LBNodeAgent
	}
	return ""
}

func excluded(n *Node, _ *Address) string {
	if n.IsExcluded {
		return "is labelled " + corev1.LabelNodeExcludeBalancers
	}
	return ""
}

// excludedUnlessRouted lets an excluded node keep its Virtual addresses until routers send no
// traffic for them any more.
func excludedUnlessRouted(n *Node, a *Address) string {
	if n.MayHaveRoutes {
		return ""
	}
	return excluded(n, a)
}

func outOfService(n *Node, _ *Address) string {
	if n.IsOutOfService {
		return "is tainted " + corev1.TaintNodeOutOfService
	}
	return ""
}

func shuttingDown(n *Node, _ *Address) string {
	if n.IsShuttingDown {
		return "is shutting down"
	}
	return ""
}

// cordoned is of nodes that hand their addresses over while they are unschedulable.
func cordoned(n *Node, a *Address) string {
	if n.HandsOverAsCordoned && !a.ignoresCordons {
		return "is unschedulable, and its LBNodeAgent has spec.onUnschedulable: HandOver"
	}
	return ""
}

func askedToHandOver(n *Node, a *Address) string {
	if n.AddressToHandOver == a.Addr {
		return "is annotated " + v1.AnnotationHandover
	}
	return ""
}

func leaseExpired(n *Node, _ *Address) string {
	if n.Liveness == Expired {
		return "has an agent that does not renew its Lease"
	}
	return ""
}

func notFresh(n *Node, _ *Address) string {
	if n.Liveness != Fresh {
		return "has an agent that is late to renew its Lease"
	}
	return ""
}

func offSubnet(n *Node, a *Address) string {
	switch i := n.interfaceFor(a.Addr); {
	case i == nil:
		return fmt.Sprintf("has no interface in the subnet of %s", a.Addr)
	case i.IsDown:
		return fmt.Sprintf("has no carrier on %s", i.Name)
	}
	return ""
}

// unconfirmedReport returns the check that a node's report of an interface in the subnet of an
// address can be true. What an agent reports attracts addresses, so it is held against what
// the agent cannot write: the subnets of its LBNodeAgent or, where that names none, the
// addresses of the Node objects. Those contradict a report if the pool's subnet is a network
// of nodes, and this Node has addresses of that family elsewhere only.
func (p *placer) unconfirmedReport(subnet netip.Prefix) check {
	isNodeNetwork := p.isNodeNetwork(subnet)
	return func(n *Node, a *Address) string {
		if len(n.AllowedSubnets) > 0 {
			if slices.ContainsFunc(n.AllowedSubnets, func(s netip.Prefix) bool { return s.Contains(a.Addr) }) {
				return ""
			}
			return fmt.Sprintf("is in LBNodeAgent %s, whose spec.local.subnets do not contain %s", n.LBNodeAgent, a.Addr)
		}
		if !isNodeNetwork {
			return ""
		}
		hasOther := false
		for _, own := range n.Addresses {
			if subnet.Contains(own) {
				return ""
			}
			hasOther = hasOther || own.Is4() == a.Addr.Is4()
		}
		if !hasOther {
			return ""
		}
		return fmt.Sprintf(
			"reports an interface in the subnet of %s, but its Node object has no address in %s, as others have, and "+
				"spec.local.subnets of its LBNodeAgent does not name that subnet",
			a.Addr, subnet,
		)
	}
}

// isNodeNetwork reports whether some Node object has an address in a subnet.
func (p *placer) isNodeNetwork(subnet netip.Prefix) bool {
	if !subnet.IsValid() {
		return false
	}
	is, known := p.nodeNetworks[subnet]
	if !known {
		is = slices.ContainsFunc(p.nodes, func(n *Node) bool { return slices.ContainsFunc(n.Addresses, subnet.Contains) })
		p.nodeNetworks[subnet] = is
	}
	return is
}

// offSubnetIfReported lets a Local address stay on a node whose agent has not reported its
// interfaces, as when its Announcement was just created anew: a node loses nothing because
// its facts are unknown.
func offSubnetIfReported(n *Node, a *Address) string {
	if !n.HasReportedFacts {
		return ""
	}
	return offSubnet(n, a)
}

// withoutEndpoint is the reason against a node without a ready endpoint.
const withoutEndpoint = "has no ready endpoint"

// noEndpoint lets a node without a ready endpoint have no address whose traffic stays on the node.
func noEndpoint(n *Node, a *Address) string {
	if a.ServingNodes != nil && !a.ServingNodes[n.Name] {
		return withoutEndpoint
	}
	return ""
}

// noEndpointForLocalAddress does so for a Local address, unless only Virtual ones are restricted.
func noEndpointForLocalAddress(n *Node, a *Address) string {
	if a.IsUnrestrictedIfLocal {
		return ""
	}
	return noEndpoint(n, a)
}

// noEndpointForLocalAddressThoughAnyHas lets a Local address stay while no node has a ready endpoint.
func noEndpointForLocalAddressThoughAnyHas(n *Node, a *Address) string {
	if len(a.ServingNodes) == 0 {
		return ""
	}
	return noEndpointForLocalAddress(n, a)
}

// explainReasons says of up to eight nodes why they fail the checks.
func explainReasons(nodes []*Node, a *Address, checks []check) string {
	const maxNodes = 8
	var reasons []string
	for i, n := range nodes {
		if len(reasons) == maxNodes {
			reasons = append(reasons, fmt.Sprintf("and %d more", len(nodes)-i))
			break
		}
		if why := reasonAgainst(n, a, checks); why != "" {
			reasons = append(reasons, n.Name+" "+why)
		}
	}
	if len(nodes) == 0 {
		return "there are no nodes"
	}
	return strings.Join(reasons, "; ")
}
