package placement

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A check says why a node cannot announce an address, or nothing.
type check func(*Node, *Address) string

// holding is what a node must satisfy to go on holding a Local address.
var holding = []check{runsAgent, notLeaving, notExcluded, notOutOfService, notShuttingDown, notExpired, onSubnet, servesLocalIfAny}

// taking is what it must satisfy to be given one.
var taking = append(holding[:len(holding):len(holding)], isFresh, servesLocal)

// staying is what it must satisfy for Virtual addresses that it has, and virtual
// to be given them.
var (
	staying = []check{runsAgent, notLeaving, notExcluded}
	virtual = append(staying[:len(staying):len(staying)], serves)
)

// refused returns why a node fails the checks, or nothing.
func refused(n *Node, a *Address, checks []check) string {
	for _, c := range checks {
		if why := c(n, a); why != "" {
			return why
		}
	}
	return ""
}

func runsAgent(n *Node, _ *Address) string {
	if n.Agent == "" {
		return "runs no agent"
	}
	return ""
}

func notLeaving(n *Node, _ *Address) string {
	if n.Leaving {
		return "is leaving LBNodeAgent " + n.Agent
	}
	return ""
}

func notExcluded(n *Node, _ *Address) string {
	if n.Excluded {
		return "is labelled " + corev1.LabelNodeExcludeBalancers
	}
	return ""
}

func notOutOfService(n *Node, _ *Address) string {
	if n.OutOfService {
		return "is tainted " + corev1.TaintNodeOutOfService
	}
	return ""
}

func notShuttingDown(n *Node, _ *Address) string {
	if n.ShuttingDown {
		return "is shutting down"
	}
	return ""
}

func notExpired(n *Node, _ *Address) string {
	if n.Liveness == Expired {
		return "has an agent that does not renew its Lease"
	}
	return ""
}

func isFresh(n *Node, _ *Address) string {
	if n.Liveness != Fresh {
		return "has an agent that is late to renew its Lease"
	}
	return ""
}

func onSubnet(n *Node, a *Address) string {
	switch i, _ := n.interfaceFor(a.Addr); {
	case i == nil:
		return fmt.Sprintf("has no interface in the subnet of %s", a.Addr)
	case i.Down:
		return fmt.Sprintf("has no carrier on %s", i.Name)
	}
	return ""
}

// serves is for addresses whose traffic stays on the node.
func serves(n *Node, a *Address) string {
	if a.Only != nil && !a.Only[n.Name] {
		return "has no ready endpoint"
	}
	return ""
}

// servesLocal is serves for Local addresses.
func servesLocal(n *Node, a *Address) string {
	if a.OnlyVirtual {
		return ""
	}
	return serves(n, a)
}

// servesLocalIfAny lets a Local address stay while no node serves it.
func servesLocalIfAny(n *Node, a *Address) string {
	if len(a.Only) == 0 {
		return ""
	}
	return servesLocal(n, a)
}

// explain lists why no node can announce an address.
func explain(nodes []*Node, a *Address, checks []check) string {
	const most = 8
	var whys []string
	for i, n := range nodes {
		if len(whys) == most {
			whys = append(whys, fmt.Sprintf("and %d more", len(nodes)-i))
			break
		}
		if why := refused(n, a, checks); why != "" {
			whys = append(whys, n.Name+" "+why)
		}
	}
	if len(nodes) == 0 {
		return "there are no nodes"
	}
	return strings.Join(whys, "; ")
}
