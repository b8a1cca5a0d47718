package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Bounds of what the manager accepts as addresses of one node. A node has one or two addresses in
// pools, and its gateway. Its agent reports them, and whoever has stolen an agent's token may
// report anything: such reports must not take a whole pool away from Services.
const (
	// maxNodeAddresses is how many addresses of pools the manager accepts in one family.
	maxNodeAddresses = 8
	// unconfirmedDivisor is of which part of each range the manager accepts at the most what
	// the agent alone reports: one in so many, a quarter. In a range of less than four addresses that is none.
	unconfirmedDivisor = 4
)

// NodeAddresses are the addresses of one node and of its gateways. The same address may
// be in several lists.
type NodeAddresses struct {
	Node string
	// Confirmed addresses stand in the Node object, which the node's agent cannot write.
	Confirmed []netip.Addr
	// Gateways and Own are addresses that the node's agent reports.
	Gateways, Own []netip.Addr
}

// ExcessAddresses are the addresses of pools that a node reports beyond those that the manager
// accepts for it.
type ExcessAddresses struct {
	Node   string
	Family Family
	// Addresses in ascending order, each once.
	Addresses []netip.Addr
}

// AcceptNodeAddresses returns the addresses that no Service gets, each with what it is:
// those of nodes and of their gateways. Inside the ranges of pools the manager accepts at most
// eight for each node and family: first those that the Node object confirms, then the
// gateways, then the others, each in ascending order. What neither the Node object confirms nor,
// of a gateway, the agent of a second node, takes at most a quarter of each range. The rest is
// the excess, by node and family. Outside pools all are returned: the manager allocates nothing
// there, so they cost nobody an address.
func AcceptNodeAddresses(
	nodes []NodeAddresses, ranges []Range,
) (accepted map[netip.Addr]string, excess []ExcessAddresses) {
	accepted = map[netip.Addr]string{}
	pools, isShared := addressesOf(ranges), sharedGateways(nodes)
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b NodeAddresses) int { return cmp.Compare(a.Node, b.Node) })
	for i := range nodes {
		quota := newNodeQuota(ranges)
		overQuota := map[Family][]netip.Addr{}
		seen := map[netip.Addr]bool{}
		accept := func(addrs []netip.Addr, what string, isConfirmed func(netip.Addr) bool) {
			for _, a := range slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare) {
				if seen[a] {
					continue
				}
				seen[a] = true
				if pools.Contains(a) && !quota.take(a, isConfirmed(a)) {
					overQuota[FamilyOf(a)] = append(overQuota[FamilyOf(a)], a)
					continue
				}
				if accepted[a] == "" {
					accepted[a] = fmt.Sprintf("%s of node %s", what, nodes[i].Node)
				}
			}
		}
		accept(nodes[i].Confirmed, "an address", func(netip.Addr) bool { return true })
		accept(nodes[i].Gateways, "a gateway", func(a netip.Addr) bool { return isShared[a] })
		accept(nodes[i].Own, "an address", func(netip.Addr) bool { return false })
		for _, family := range []Family{IPv4, IPv6} {
			if addrs := overQuota[family]; len(addrs) > 0 {
				slices.SortFunc(addrs, netip.Addr.Compare)
				excess = append(excess, ExcessAddresses{Node: nodes[i].Node, Family: family, Addresses: addrs})
			}
		}
	}
	return accepted, excess
}

// sharedGateways returns the gateways that more than one node has.
func sharedGateways(nodes []NodeAddresses) map[netip.Addr]bool {
	firstNode, isShared := map[netip.Addr]string{}, map[netip.Addr]bool{}
	for i := range nodes {
		for _, a := range nodes[i].Gateways {
			if first, isKnown := firstNode[a]; !isKnown {
				firstNode[a] = nodes[i].Node
			} else if first != nodes[i].Node {
				isShared[a] = true
			}
		}
	}
	return isShared
}

// nodeQuota is how many more addresses the manager accepts for one node.
type nodeQuota struct {
	ranges   []Range
	byFamily map[Family]int
	// unconfirmed is how many addresses of each range, by its index in ranges, the manager has
	// accepted although the node's agent alone reports them.
	unconfirmed map[int]int64
}

func newNodeQuota(ranges []Range) nodeQuota {
	return nodeQuota{ranges, map[Family]int{IPv4: maxNodeAddresses, IPv6: maxNodeAddresses}, map[int]int64{}}
}

// take counts one more address, or reports that it is over the quota.
func (q nodeQuota) take(a netip.Addr, isConfirmed bool) bool {
	if q.byFamily[FamilyOf(a)] == 0 {
		return false
	}
	if !isConfirmed {
		var containing []int
		for i, r := range q.ranges {
			if !r.Addrs.Contains(a) {
				continue
			}
			if q.unconfirmed[i] >= r.Capacity()/unconfirmedDivisor {
				return false
			}
			containing = append(containing, i)
		}
		for _, i := range containing {
			q.unconfirmed[i]++
		}
	}
	q.byFamily[FamilyOf(a)]--
	return true
}

// ObjectionTo says why no Service can have an address of an external group in this
// cluster, whatever the group's system says, or returns an empty text.
func (in *Inputs) ObjectionTo(group string, a netip.Addr) string {
	if what, isOfNode := in.NodeAddresses[a]; isOfNode {
		return fmt.Sprintf("%s is %s: it is never allocated", a, what)
	}
	other, r, isPooled := in.Catalog.GroupContainingPreferring(group, a)
	switch {
	case isPooled && !other.IsExternal():
		return fmt.Sprintf("%s is of ServiceGroup %s", a, other.Name)
	case isPooled && !r.subnetAllows(a):
		return r.whyNotAllocatable(a)
	}
	return ""
}

// DescribeExcess says which nodes report too many addresses of a group as theirs, or
// returns an empty text if none does.
func DescribeExcess(group *Group, excess []ExcessAddresses) string {
	all := addressesOf(group.Ranges)
	var nodes []string
	for _, e := range excess {
		n := 0
		for _, a := range e.Addresses {
			if all.Contains(a) {
				n++
			}
		}
		if n > 0 {
			nodes = append(nodes, fmt.Sprintf("node %s: %s %s", e.Node, e.Family, countOf(n, "address")))
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf("nodes report more addresses of their own, or gateways, in pools than are reserved for one node: "+
		"%d of each family and, of those that only "+
		"its agent reports, a quarter of each range; the rest may be allocated (%s): "+
		"take the nodes' addresses out of the pools or, if the nodes do not have them, look into their agents",
		maxNodeAddresses,
		textlimit.List(nodes, maxNamedInMessage, ", "))
}

// NodeAddressWarnings says which addresses of the group no Service gets because nodes use
// them: one warning for each range. There are none of an external group, whose ranges may
// well be the nodes' networks.
func NodeAddressWarnings(group *Group, accepted map[netip.Addr]string) []string {
	if group.IsExternal() {
		return nil
	}
	all := addressesOf(group.Ranges)
	byRange := make([][]netip.Addr, len(group.Ranges))
	for a := range accepted {
		if !all.Contains(a) {
			continue
		}
		for i := range group.Ranges {
			if group.Ranges[i].Addrs.Contains(a) {
				byRange[i] = append(byRange[i], a)
			}
		}
	}
	var warnings []string
	for i, addrs := range byRange {
		if len(addrs) == 0 {
			continue
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		names := make([]string, len(addrs))
		for j, a := range addrs {
			names[j] = fmt.Sprintf("%s, %s", a, accepted[a])
		}
		warnings = append(warnings, fmt.Sprintf("%s: range %s covers what is never allocated: %s",
			group.Ranges[i].Path, group.Ranges[i], textlimit.List(names, maxNamedInMessage, "; ")))
	}
	return warnings
}
