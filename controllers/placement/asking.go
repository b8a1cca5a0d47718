package placement

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// askingKey tells what an asker is to find out apart: one for each link of each holder, and there
// for each group of askers.
type askingKey struct{ asker, holder, holderInterface, iface, group string }

// AskingPlan is what a node, the asker, is to find out about addresses of another one.
type AskingPlan struct {
	Asker string
	// LinkKey is the same for as long as the asker asks for addresses of the same node on the same link.
	LinkKey string
	Asking  v1.Asking // with all addresses, sorted
}

// Announcements returns what each of the objects says that the plan needs, by its name. stored are the objects of the
// asker as they stand.
func (p *AskingPlan) Announcements(stored []StoredObject) map[string]*v1.AnnouncementSpec {
	specOf := func(part []v1.AskedAddress) *v1.AnnouncementSpec {
		one := p.Asking
		one.Addresses = part
		return &v1.AnnouncementSpec{NodeName: p.Asker, Asking: &one}
	}
	addressOf := func(a *v1.AskedAddress) string { return a.Address }
	return distributePlan(planName(p.Asker, "asking", p.LinkKey), p.Asking.Addresses, addressOf, stored, specOf)
}

// PlanAsking decides which nodes ask for which Local addresses: up to v1.MaxAskersPerAddress nodes for each
// address that a node announces and keeps, and the same ones for all addresses of a node on a link
// where that is possible. The plans are sorted by asker, then by holder and interfaces. They change nothing about where
// addresses are.
func PlanAsking(inputs Inputs) []AskingPlan {
	if !slices.ContainsFunc(inputs.Nodes, func(n Node) bool { return n.AsksOthers }) {
		return nil
	}
	p := newPlacer(inputs)
	ranked := map[subnetOfLink][]*Node{}
	addresses := map[askingKey][]v1.AskedAddress{}
	for i := range inputs.Addresses {
		a := &inputs.Addresses[i]
		e := p.holderOf(a)
		if e == nil || e.step != stepAnnounced || !e.node.AsksOthers || e.node.IsDeleted ||
			len(p.claimsByAddress[a.Addr]) > 0 {
			continue
		}
		askers := p.chooseAskers(a.Addr, e, ranked)
		group := strings.Join(namesOf(askers), " ")
		for _, n := range askers {
			key := askingKey{n.Name, e.Node, string(e.Spec.Interface), n.interfaceFor(a.Addr).Name, group}
			addresses[key] = append(addresses[key], v1.AskedAddress{
				Address: e.Spec.Address, Epoch: e.Spec.Epoch, Services: e.Spec.Services,
			})
		}
	}
	return p.planAskings(addresses)
}

// subnetOfLink is a subnet on a link of a holder.
type subnetOfLink struct {
	holderLink
	subnet netip.Prefix
}

// chooseAskers chooses the askers of an address, sorted by name. ranked keeps the order in which
// nodes are chosen for the subnets of each holder.
func (p *placer) chooseAskers(addr netip.Addr, e *judgedEntry, ranked map[subnetOfLink][]*Node) []*Node {
	link := holderLink{e.Node, string(e.Spec.Interface)}
	on := e.node.interfaceNamed(link.iface)
	if on == nil {
		return nil // the holder's facts are unknown
	}
	bits, _ := on.longestSubnetWith(addr)
	subnet, err := addr.Prefix(bits)
	if err != nil || bits == 0 {
		return nil
	}
	key := subnetOfLink{link, subnet}
	candidates, isRanked := ranked[key]
	if !isRanked {
		for n := range p.nodesInSubnetOf(addr) {
			if p.mayAsk(n, link.holder) && !slices.Contains(candidates, n) {
				candidates = append(candidates, n)
			}
		}
		slices.SortFunc(candidates, func(x, y *Node) int {
			return cmp.Or(
				cmp.Compare(linkScore(y.Name, link), linkScore(x.Name, link)), cmp.Compare(x.Name, y.Name),
			)
		})
		ranked[key] = candidates
	}
	var askers []*Node
	for _, n := range candidates {
		if len(askers) < v1.MaxAskersPerAddress && n.canAskFor(addr) {
			askers = append(askers, n)
		}
	}
	slices.SortFunc(askers, func(x, y *Node) int { return cmp.Compare(x.Name, y.Name) })
	return askers
}

// mayAsk reports whether a node may be an asker for addresses of a holder. While most agents do
// not renew their Leases, that is no reason against one of them.
func (p *placer) mayAsk(n *Node, holder string) bool {
	return n.Name != holder && n.AsksOthers && n.LBNodeAgent != "" && !n.IsLeaving && !n.IsOutOfService &&
		!n.IsShuttingDown && (n.Liveness != Expired || p.isMassExpiry)
}

// canAskFor reports whether a node has an interface with a carrier in the subnet of an address, and
// there an address of its own to ask from. For IPv6 the link-local address will do.
func (n *Node) canAskFor(addr netip.Addr) bool {
	link := n.interfaceFor(addr)
	return link != nil && !link.IsDown && (addr.Is6() || slices.ContainsFunc(
		ownAddresses(link, link), func(own netip.Addr) bool { return own.Is4() && own != addr },
	))
}

// planAskings makes the plans of all askers, one for each key, in the order of the keys. A plan describes the holder
// and all askers of its addresses, the asker itself included, as they are reached by the asker's interface.
func (p *placer) planAskings(addresses map[askingKey][]v1.AskedAddress) []AskingPlan {
	keys := make([]askingKey, 0, len(addresses))
	for key := range addresses {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b askingKey) int {
		return cmp.Or(
			cmp.Compare(a.asker, b.asker), cmp.Compare(a.holder, b.holder), cmp.Compare(a.holderInterface, b.holderInterface),
			cmp.Compare(a.iface, b.iface), cmp.Compare(a.group, b.group),
		)
	})
	plans := make([]AskingPlan, 0, len(keys))
	ofKey := map[string]int{} // an asker that is replaced leaves the others what they have found out
	for _, key := range keys {
		link := p.nodeByName[key.asker].interfaceNamed(key.iface)
		asking := v1.Asking{
			Holder: standbyNode(p.nodeByName[key.holder], link), Interface: v1.InterfaceName(key.iface),
			Addresses: slices.SortedFunc(slices.Values(addresses[key]), func(a, b v1.AskedAddress) int {
				return cmp.Compare(a.Address, b.Address)
			}),
		}
		for name := range strings.FieldsSeq(key.group) {
			asking.Askers = append(asking.Askers, standbyNode(p.nodeByName[name], link))
		}
		text := strings.Join([]string{key.holder, key.holderInterface, key.iface}, "/")
		unique := key.asker + "/" + text
		plan := AskingPlan{Asker: key.asker, LinkKey: text + strings.Repeat("+", ofKey[unique]), Asking: asking}
		ofKey[unique]++
		plans = append(plans, plan)
	}
	return plans
}

func namesOf(nodes []*Node) []string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}
