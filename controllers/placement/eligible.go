package placement

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A check says why a node cannot announce an address, or nothing.
type check func(*Node, netip.Addr) string

// holding is what a node must satisfy to go on holding a Local address.
var holding = []check{runsAgent, notExcluded, notOutOfService, notShuttingDown, notExpired, onSubnet}

// taking is what it must satisfy to be given one.
var taking = append(holding[:len(holding):len(holding)], isFresh)

// virtual is what it must satisfy for Virtual addresses.
var virtual = []check{runsAgent, notExcluded}

// refused returns why a node fails the checks, or nothing.
func refused(n *Node, a netip.Addr, checks []check) string {
	for _, c := range checks {
		if why := c(n, a); why != "" {
			return why
		}
	}
	return ""
}

func runsAgent(n *Node, _ netip.Addr) string {
	if n.Agent == "" {
		return "runs no agent"
	}
	return ""
}

func notExcluded(n *Node, _ netip.Addr) string {
	if n.Excluded {
		return "is labelled " + corev1.LabelNodeExcludeBalancers
	}
	return ""
}

func notOutOfService(n *Node, _ netip.Addr) string {
	if n.OutOfService {
		return "is tainted " + corev1.TaintNodeOutOfService
	}
	return ""
}

func notShuttingDown(n *Node, _ netip.Addr) string {
	if n.ShuttingDown {
		return "is shutting down"
	}
	return ""
}

func notExpired(n *Node, _ netip.Addr) string {
	if n.Liveness == Expired {
		return "has an agent that does not renew its Lease"
	}
	return ""
}

func isFresh(n *Node, _ netip.Addr) string {
	if n.Liveness != Fresh {
		return "has an agent that is late to renew its Lease"
	}
	return ""
}

func onSubnet(n *Node, a netip.Addr) string {
	if _, _, ok := n.interfaceFor(a); !ok {
		return fmt.Sprintf("has no interface in the subnet of %s", a)
	}
	return ""
}

// explain lists why no node can announce an address.
func explain(nodes []*Node, a netip.Addr, checks []check) string {
	const most = 8
	var whys []string
	for i, n := range nodes {
		if i == most {
			whys = append(whys, fmt.Sprintf("and %d more", len(nodes)-most))
			break
		}
		if why := refused(n, a, checks); why != "" {
			whys = append(whys, n.Name+" "+why)
		}
	}
	if len(whys) == 0 {
		return "there are no nodes"
	}
	return strings.Join(whys, "; ")
}
