package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

var families = []purelbv1.IPFamily{"IPv4", "IPv6"}

// NodeInterfaces returns the interfaces that a selection picks, sorted by name, each with the subnets
// that it is in: the facts from which the manager places Local addresses. Equal facts compare
// equal. It fails only if localInterface is not a regular expression.
//
// "default" picks for each family the interface of the default route with the
// lowest metric, and of that interface the subnets of that family only. An
// interface that is picked by name or by expression counts for both families. Loopback and
// virtual interfaces never count, nor do interfaces without a subnet; the addresses that the
// agent put there, and the routes that come with them, make no subnet. Interfaces that are down
// or have no carrier count, marked as down: a node cannot attract packets there, but is still in
// the subnet.
func NodeInterfaces(selection Selection, observed Observed) ([]purelbv1.NodeInterface, error) {
	var expression *regexp.Regexp
	if selection.LocalInterface != purelbv1.InterfaceDefault {
		var err error
		// Compiled by itself first, since "a)|(b" would fit into the brackets.
		if _, err = regexp.Compile(selection.LocalInterface); err == nil {
			expression, err = regexp.Compile(`^(?:` + selection.LocalInterface + `)$`)
		}
		if err != nil {
			return nil, fmt.Errorf("localInterface %q: %w", selection.LocalInterface, err)
		}
	}
	defaults := map[purelbv1.IPFamily]string{}
	for _, family := range families {
		defaults[family] = defaultInterface(selection, observed, family)
	}

	interfaces := []purelbv1.NodeInterface{}
	for _, link := range observed.Interfaces {
		if isExcluded(selection, link) {
			continue
		}
		isSelected := slices.Contains(selection.Interfaces, link.Name) ||
			expression != nil && expression.MatchString(link.Name)
		nic := purelbv1.NodeInterface{Name: purelbv1.InterfaceName(link.Name), MAC: link.MAC, Down: !link.IsUp}
		var picked []purelbv1.IPFamily
		for _, family := range families {
			isDefault := defaults[family] == link.Name
			if isSelected || expression == nil && isDefault {
				nic.Subnets = append(nic.Subnets, subnetsOf(observed, link.Name, family)...)
				picked = append(picked, family)
			}
			if isDefault {
				nic.DefaultRoute = append(nic.DefaultRoute, family)
			}
		}
		if len(nic.Subnets) == 0 {
			continue
		}
		nic.Subnets = firstN(nic.Subnets, maxSubnets)
		gateways := gatewaysOf(observed, picked)[link.Name]
		slices.SortFunc(gateways, netip.Addr.Compare)
		nic.Gateways = firstN(textlimit.Texts(gateways), maxGateways)
		interfaces = append(interfaces, nic)
	}
	slices.SortFunc(interfaces, func(a, b purelbv1.NodeInterface) int { return cmp.Compare(a.Name, b.Name) })
	return firstN(interfaces, maxInterfaces), nil
}

// NodeGateways returns the next hops of all default routes of the node, sorted, whether or not a
// selection picks the interface by which they leave: the facts from which the manager finds neighbours
// for BGP. A node with an uplink to each of two switches has one of each, and one whose uplinks have
// link-local addresses only has those of its routers.
func NodeGateways(selection Selection, observed Observed) []purelbv1.NodeGateway {
	var found []purelbv1.NodeGateway
	for iface, hops := range Gateways(observed) {
		if link, exists := observed.interfaceNamed(iface); !exists || isExcluded(selection, link) {
			continue
		}
		for _, hop := range hops {
			found = append(found, purelbv1.NodeGateway{Interface: purelbv1.InterfaceName(iface), Address: hop.String()})
		}
	}
	slices.SortFunc(found, func(a, b purelbv1.NodeGateway) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Address, b.Address))
	})
	return firstN(found, maxNodeGateways)
}

// defaultInterface returns the interface of a family's default route: with a carrier before
// without, then with the lowest metric, then the first by name; "" if there is none.
func defaultInterface(selection Selection, observed Observed, family purelbv1.IPFamily) string {
	best, bestLink := Route{}, NetworkInterface{}
	for _, r := range observed.Routes {
		link, ok := observed.interfaceNamed(r.Interface)
		if !isDefaultRoute(r, family) || !ok || isExcluded(selection, link) {
			continue
		}
		if best.Interface == "" || isPreferred(r, link, best, bestLink) {
			best, bestLink = r, link
		}
	}
	return best.Interface
}

// isPreferred reports whether a default route by a link is preferred to the best one so far.
func isPreferred(r Route, link NetworkInterface, best Route, bestLink NetworkInterface) bool {
	if link.IsUp != bestLink.IsUp {
		return link.IsUp
	}
	return r.Metric < best.Metric || r.Metric == best.Metric && r.Interface < best.Interface
}

func isDefaultRoute(r Route, family purelbv1.IPFamily) bool {
	return r.Destination.Bits() == 0 && purelbv1.FamilyOf(r.Destination.Addr()) == family
}

// isExcluded reports whether a link can hold no Local address, whatever addresses it has.
func isExcluded(selection Selection, link NetworkInterface) bool {
	return link.IsLoopback || link.IsOurs || link.Name == selection.VirtualInterface
}

// subnetsOf returns the prefixes of an interface's own addresses, and its on-link routes that say
// more: a node with a /128 still belongs to the /64 that the router advertises.
func subnetsOf(observed Observed, name string, family purelbv1.IPFamily) []string {
	var prefixes []netip.Prefix
	own, ours := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, a := range observed.Addresses {
		addr := a.Prefix.Addr()
		if a.Interface != name || purelbv1.FamilyOf(addr) != family || !isGlobal(addr) {
			continue
		}
		switch {
		case a.IsOurs:
			ours[a.Prefix.Masked()] = true
		case !a.IsTemporary:
			prefixes = append(prefixes, a.Prefix)
			own[a.Prefix.Masked()] = true
		}
	}
	for _, r := range observed.Routes {
		d := r.Destination
		if r.Interface != name || r.Gateway.IsValid() || purelbv1.FamilyOf(d.Addr()) != family {
			continue
		}
		if d.Bits() == 0 || d.IsSingleIP() || !isGlobal(d.Addr()) || own[d] {
			continue
		}
		if r.Origin == OriginRA || r.Origin == OriginKernel && !ours[d] {
			prefixes = append(prefixes, d)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return textlimit.Texts(slices.Compact(prefixes))
}

// isGlobal reports whether an address may be reached from beyond the link: private addresses may.
func isGlobal(addr netip.Addr) bool {
	return !addr.IsLinkLocalUnicast() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsUnspecified()
}

// firstN returns the first n items at the most.
func firstN[T any](items []T, n int) []T {
	return items[:min(len(items), n)]
}
