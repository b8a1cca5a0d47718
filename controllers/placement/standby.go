package placement

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Bounds of what a standby says.
const (
	maxWitnesses    = 3
	maxOwnAddresses = 8
	maxOthers       = 8
)

// standbyKey tells the standbys of a watcher apart: one for each link of each watched node.
type standbyKey struct{ watcher, watched, watchedInterface, iface string }

// StandbyPlan is a standby that a node, the watcher, is to have.
type StandbyPlan struct {
	Watcher string
	// LinkKey is the same for as long as the watcher watches the same node on the same link.
	LinkKey string
	Standby v1.Standby // with all addresses, sorted
}

// Announcements returns what each of the objects says that the plan needs, by its name. stored are the objects of the
// watcher as they stand.
func (p *StandbyPlan) Announcements(stored []StoredObject) map[string]*v1.AnnouncementSpec {
	specOf := func(part []v1.StandbyAddress) *v1.AnnouncementSpec {
		one := p.Standby
		one.Addresses = part
		return &v1.AnnouncementSpec{NodeName: p.Watcher, Standby: &one}
	}
	addressOf := func(a *v1.StandbyAddress) string { return a.Address }
	return distributePlan(standbyName(p.Watcher, p.LinkKey), p.Standby.Addresses, addressOf, stored, specOf)
}

// standbyName names the first object of a StandbyPlan.
func standbyName(watcher, linkKey string) string { return planName(watcher, "standby", linkKey) }

// PlanStandbys decides what each node is to do when another one dies: it tells each successor
// what the stored entries of holders name it for. What they do not name yet is told later; so
// an epoch is never told before it is reserved. The plans are sorted by watcher and key.
func PlanStandbys(inputs Inputs) []StandbyPlan {
	if !inputs.NamesSuccessors {
		return nil
	}
	p := newPlacer(inputs)
	addresses, topologyKeys := map[standbyKey][]v1.StandbyAddress{}, map[standbyKey]string{}
	for i := range inputs.Addresses {
		a := &inputs.Addresses[i]
		e := p.holderOrReservingEntry(a)
		if e == nil {
			continue
		}
		holder := e.node
		on := holder.interfaceFor(a.Addr)
		if on == nil {
			continue
		}
		for _, s := range e.Spec.Successors {
			n := p.nodeByName[s.NodeName]
			if n == nil || n.IsDeleted || n.LBNodeAgent == "" {
				continue
			}
			if link := n.interfaceFor(a.Addr); link != nil {
				key := standbyKey{n.Name, holder.Name, on.Name, link.Name}
				if a.Preference != nil { // of several groups that spread their addresses one counts, always the same
					topologyKeys[key] = max(a.Preference.TopologyKey, topologyKeys[key])
				}
				addresses[key] = append(addresses[key], v1.StandbyAddress{
					Address: e.Spec.Address, ServiceGroup: e.Spec.ServiceGroup, Epoch: e.Spec.Epoch, Successors: e.Spec.Successors,
				})
			}
		}
	}
	plans := make([]StandbyPlan, 0, len(addresses))
	for key, entries := range addresses {
		plans = append(plans, p.planStandby(key, entries, topologyKeys[key]))
	}
	slices.SortFunc(plans, func(a, b StandbyPlan) int {
		return cmp.Or(cmp.Compare(a.Watcher, b.Watcher), cmp.Compare(a.LinkKey, b.LinkKey))
	})
	return plans
}

// planStandby describes the nodes on the link to a watcher. topologyKey is the label over which addresses are spread.
func (p *placer) planStandby(key standbyKey, entries []v1.StandbyAddress, topologyKey string) StandbyPlan {
	slices.SortFunc(entries, func(a, b v1.StandbyAddress) int { return cmp.Compare(a.Address, b.Address) })
	watcher, watched := p.nodeByName[key.watcher], p.nodeByName[key.watched]
	link := watcher.interfaceNamed(key.iface)
	linkKey := strings.Join([]string{key.watched, key.watchedInterface, key.iface}, "/")
	standby := v1.Standby{
		Watched: standbyNode(watched, link), Interface: v1.InterfaceName(key.iface), Addresses: entries,
	}
	for _, n := range p.chooseWitnesses(
		key, link, p.storedWitnesses(key.watcher, standbyName(key.watcher, linkKey)), topologyKey,
	) {
		standby.Witnesses = append(standby.Witnesses, standbyNode(n, link))
	}
	var others []string
	for i := range entries {
		for _, s := range entries[i].Successors {
			if s.NodeName != key.watcher {
				others = append(others, s.NodeName)
			}
		}
	}
	slices.Sort(others)
	for _, name := range slices.Compact(others) {
		if n := p.nodeByName[name]; n != nil && len(standby.OtherSuccessors) < maxOthers {
			standby.OtherSuccessors = append(standby.OtherSuccessors, standbyNode(n, link))
		}
	}
	return StandbyPlan{Watcher: key.watcher, LinkKey: linkKey, Standby: standby}
}

// standbyNode describes a node as it is reached by an interface of another one.
func standbyNode(n *Node, link *Interface) v1.StandbyNode {
	if link == nil { // the other node's facts are unknown
		link = &Interface{}
	}
	out := v1.StandbyNode{NodeName: n.Name, Addresses: textlimit.Texts(n.ownAddressesOn(link))}
	var onLink []string
	for i := range n.Interfaces {
		if n.Interfaces[i].MAC != "" && len(ownAddresses(&n.Interfaces[i], link)) > 0 {
			onLink = append(onLink, n.Interfaces[i].MAC)
		}
	}
	out.MACs = appendMissing(nil, v1.MaxPreviousMACs, append(onLink, n.allMACs()...))
	return out
}

// describeSuccessors describes to each holder the nodes that its entries name, as the holder
// reaches them. Of too many those that say they have claimed an address come first: the holder asks for them.
func (p *placer) describeSuccessors() {
	for node, entries := range p.result.Entries {
		byName := map[string]*v1.StandbyNode{}
		seen := map[successorOnLink]bool{}
		contesting := map[string]bool{}
		for i := range entries {
			named := entries[i].Successors
			if by := entries[i].ContestedBy; by != nil {
				named = append(slices.Clone(named), *by)
				contesting[by.NodeName] = true
			}
			for _, s := range named {
				key := successorOnLink{s.NodeName, string(entries[i].Interface)}
				if n := p.nodeByName[s.NodeName]; n != nil && !seen[key] {
					seen[key] = true
					onLink := standbyNode(n, p.nodeByName[node].interfaceNamed(key.iface))
					byName[s.NodeName] = mergeStandbyNodes(byName[s.NodeName], onLink)
				}
			}
		}
		names := slices.SortedFunc(maps.Keys(byName), func(x, y string) int {
			return cmp.Or(order.TrueFirst(contesting[x], contesting[y]), cmp.Compare(x, y))
		})
		for _, name := range slices.Sorted(slices.Values(names[:min(len(names), v1.MaxSuccessorsPerNode)])) {
			p.result.Successors[node] = append(p.result.Successors[node], *byName[name])
		}
	}
}

// successorOnLink is a successor, and the interface by which the holder reaches it.
type successorOnLink struct{ node, iface string }

// mergeStandbyNodes joins what a node is by one link, which may be nil, and by another one.
func mergeStandbyNodes(one *v1.StandbyNode, other v1.StandbyNode) *v1.StandbyNode {
	if one == nil {
		return &other
	}
	one.Addresses = appendMissing(one.Addresses, maxOwnAddresses, other.Addresses)
	one.MACs = appendMissing(one.MACs, v1.MaxPreviousMACs, other.MACs)
	return one
}

// appendMissing appends to a list those of more that the list does not have yet, in their order, until
// the list has most elements.
func appendMissing(list []string, most int, more []string) []string {
	for _, s := range more {
		if len(list) < most && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// ownAddressesOn returns the addresses of the node itself that an interface of another node
// reaches on its link, IPv4 first. Of each family those of the Node object come first: another one may be that of
// software which moves it from node to node.
func (n *Node) ownAddressesOn(link *Interface) []netip.Addr {
	var own []netip.Addr
	for i := range n.Interfaces {
		own = append(own, ownAddresses(&n.Interfaces[i], link)...)
	}
	slices.SortFunc(own, func(x, y netip.Addr) int {
		return cmp.Or(
			order.TrueFirst(x.Is4(), y.Is4()),
			order.TrueFirst(slices.Contains(n.Addresses, x), slices.Contains(n.Addresses, y)),
			x.Compare(y),
		)
	})
	own = slices.Compact(own)
	return own[:min(len(own), maxOwnAddresses)]
}

// ownAddresses returns the node's own addresses of an interface that are in a subnet of
// another one. Where an interface has a route to a subnet only, the prefix has no host bits.
func ownAddresses(i, link *Interface) []netip.Addr {
	var own []netip.Addr
	for _, s := range i.Subnets {
		isOwn := s.IsSingleIP() || s.Addr() != s.Masked().Addr()
		if _, found := link.longestSubnetWith(s.Addr()); isOwn && found {
			own = append(own, s.Addr())
		}
	}
	return own
}

// interfaceNamed returns the interface of a name, or nil.
func (n *Node) interfaceNamed(name string) *Interface {
	for i := range n.Interfaces {
		if n.Interfaces[i].Name == name {
			return &n.Interfaces[i]
		}
	}
	return nil
}
