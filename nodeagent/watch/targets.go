package watch

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Key tells the nodes apart that a node watches.
type Key struct {
	// Interface of the watching node, and Node that is watched.
	Interface, Node string
}

// Compare orders Keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Interface, other.Interface), strings.Compare(k.Node, other.Node))
}

// KeyOf returns the Key of a standby.
func KeyOf(standby *v1.Standby) Key {
	return Key{string(standby.Interface), standby.Watched.NodeName}
}

// Targets returns what the Announcements with standby of a node ask the node to watch. hasSenderFor
// says whether the node can ask for an address by an interface, and gateways are the next hops of the
// interface's default routes.
func Targets(
	standbys []v1.Announcement, nodeName string,
	hasSenderFor func(iface string, addr netip.Addr) bool, gateways map[string][]netip.Addr,
) map[Key]Target {
	targets := map[Key]Target{}
	for i := range standbys {
		s := standbys[i].Spec.Standby
		key := KeyOf(s)
		t, isKnown := targets[key]
		if !isKnown {
			t.Watched, _ = nodeOf(&s.Watched, key.Interface, hasSenderFor)
			t.Witnesses = askableNodes(s.Witnesses, key.Interface, hasSenderFor)
			t.Gateways = slices.Compact(slices.SortedFunc(slices.Values(gateways[key.Interface]), netip.Addr.Compare))
			t.Gateways = t.Gateways[:min(len(t.Gateways), maxGateways)]
		}
		for _, n := range askableNodes(s.OtherSuccessors, key.Interface, hasSenderFor) {
			if t.otherSuccessor(n.Name) == nil {
				t.OtherSuccessors = append(t.OtherSuccessors, n)
			}
		}
		for j := range s.Addresses {
			if a, isSuccessor := claimableAddress(&s.Addresses[j], nodeName); isSuccessor {
				t.Addresses = append(t.Addresses, a)
			}
		}
		targets[key] = t
	}
	for key, t := range targets {
		slices.SortFunc(t.Addresses, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
		// While an address moves from one Announcement to another it may be in both.
		t.Addresses = slices.CompactFunc(t.Addresses, func(a, b Address) bool { return a.Addr == b.Addr })
		targets[key] = t
	}
	return targets
}

// askableNodes returns those nodes that can be asked.
func askableNodes(nodes []v1.StandbyNode, iface string, hasSenderFor func(string, netip.Addr) bool) []Node {
	var all []Node
	for i := range nodes {
		if n, isReachable := nodeOf(&nodes[i], iface, hasSenderFor); isReachable {
			all = append(all, n)
		}
	}
	return all
}

// nodeOf returns a node with the address at which it is asked, and whether it has one.
func nodeOf(n *v1.StandbyNode, iface string, hasSenderFor func(string, netip.Addr) bool) (Node, bool) {
	node := Node{Name: n.NodeName, MACs: n.MACs}
	for _, text := range n.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil && hasSenderFor(iface, addr) {
			node.Addr = addr
			return node, len(node.MACs) > 0
		}
	}
	return node, false
}

// claimableAddress returns an address with the rank that a node has, and whether it has one.
func claimableAddress(a *v1.StandbyAddress, nodeName string) (Address, bool) {
	addr, err := netip.ParseAddr(a.Address)
	rank := slices.IndexFunc(a.Successors, func(s v1.Successor) bool { return s.NodeName == nodeName })
	if err != nil || rank < 0 {
		return Address{}, false
	}
	address := Address{Addr: addr, Rank: rank, HolderEpoch: a.Epoch, Epoch: a.Successors[rank].Epoch}
	for _, s := range a.Successors {
		if s.NodeName != nodeName {
			address.OtherSuccessor = s.NodeName
		}
	}
	return address, true
}
