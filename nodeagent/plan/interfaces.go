package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

var families = []purelbv1.IPFamily{"IPv4", "IPv6"}

func familyOf(addr netip.Addr) purelbv1.IPFamily {
	if addr.Is4() {
		return families[0]
	}
	return families[1]
}

// Interfaces returns the interfaces that a selection picks, sorted by name,
// each with the subnets that it is in. Equal facts compare equal. It fails only
// if localInterface is not a regular expression.
//
// "default" picks for each family the interface of the default route with the
// lowest metric, and of that interface the subnets of that family only. An
// interface that is picked by name or by expression counts for both. Loopback,
// the virtual interface and interfaces that hold only our addresses never
// count, nor do interfaces without a subnet. Those that are down or have no
// carrier count, marked so: a node cannot attract packets there, but is still in
// the subnet.
func Interfaces(selection Selection, observed Observed) ([]purelbv1.NodeInterface, error) {
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
	preferred := map[purelbv1.IPFamily]string{}
	for _, family := range families {
		preferred[family] = defaultInterface(selection, observed, family)
	}

	interfaces := []purelbv1.NodeInterface{}
	for _, link := range observed.Links {
		if excluded(selection, observed, link) {
			continue
		}
		named := slices.Contains(selection.Interfaces, link.Name) || expression != nil && expression.MatchString(link.Name)
		nic := purelbv1.NodeInterface{Name: purelbv1.InterfaceName(link.Name), MAC: link.MAC, Down: !link.Up}
		for _, family := range families {
			isDefault := preferred[family] == link.Name
			if named || expression == nil && isDefault {
				nic.Subnets = append(nic.Subnets, subnets(observed, link.Name, family)...)
				nic.Gateways = append(nic.Gateways, gateways(observed, link.Name, family)...)
			}
			if isDefault {
				nic.DefaultRoute = append(nic.DefaultRoute, family)
			}
		}
		if len(nic.Subnets) == 0 {
			continue
		}
		nic.Subnets = bounded(nic.Subnets, maxSubnets)
		nic.Gateways = bounded(nic.Gateways, maxGateways)
		interfaces = append(interfaces, nic)
	}
	slices.SortFunc(interfaces, func(a, b purelbv1.NodeInterface) int { return cmp.Compare(a.Name, b.Name) })
	return bounded(interfaces, maxInterfaces), nil
}

// defaultInterface is the interface of a family's default route with the lowest
// metric, the first by name if several have it, one with a carrier before one
// without; "" if there is none.
func defaultInterface(selection Selection, observed Observed, family purelbv1.IPFamily) string {
	best, bestLink := Route{}, Link{}
	for _, r := range observed.Routes {
		link, ok := observed.link(r.Interface)
		if !isDefault(r, family) || !ok || excluded(selection, observed, link) {
			continue
		}
		if best.Interface == "" || better(link, bestLink, r, best) {
			best, bestLink = r, link
		}
	}
	return best.Interface
}

func better(link, than Link, r, best Route) bool {
	if link.Up != than.Up {
		return link.Up
	}
	return r.Metric < best.Metric || r.Metric == best.Metric && r.Interface < best.Interface
}

func isDefault(r Route, family purelbv1.IPFamily) bool {
	return r.Destination.Bits() == 0 && familyOf(r.Destination.Addr()) == family
}

func excluded(selection Selection, observed Observed, link Link) bool {
	if link.Loopback || link.Name == selection.VirtualInterface {
		return true
	}
	ours := false
	for _, a := range observed.Addresses {
		switch {
		case a.Interface != link.Name || !global(a.Prefix.Addr()):
		case a.Ours:
			ours = true
		default:
			return false
		}
	}
	return ours
}

// subnets are the prefixes of an interface's own addresses, and its on-link
// routes that say more: a node with a /128 still belongs to the /64 that the
// router advertises.
func subnets(observed Observed, name string, family purelbv1.IPFamily) []string {
	var prefixes []netip.Prefix
	own, ours := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, a := range observed.Addresses {
		addr := a.Prefix.Addr()
		if a.Interface != name || familyOf(addr) != family || !global(addr) {
			continue
		}
		switch {
		case a.Ours:
			ours[a.Prefix.Masked()] = true
		case !a.Temporary:
			prefixes = append(prefixes, a.Prefix)
			own[a.Prefix.Masked()] = true
		}
	}
	for _, r := range observed.Routes {
		d := r.Destination
		if r.Interface != name || r.Gateway.IsValid() || familyOf(d.Addr()) != family {
			continue
		}
		if d.Bits() == 0 || d.IsSingleIP() || !global(d.Addr()) || own[d] {
			continue
		}
		if r.Origin == OriginRA || r.Origin == OriginKernel && !ours[d] {
			prefixes = append(prefixes, d)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return texts(slices.Compact(prefixes))
}

func gateways(observed Observed, name string, family purelbv1.IPFamily) []string {
	var hops []netip.Addr
	for _, r := range observed.Routes {
		if r.Interface == name && r.Gateway.IsValid() && isDefault(r, family) {
			hops = append(hops, r.Gateway.WithZone(""))
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return texts(slices.Compact(hops))
}

// global is true for addresses that can be reached from beyond the link, or may
// be: private ones count.
func global(addr netip.Addr) bool {
	return !addr.IsLinkLocalUnicast() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsUnspecified()
}

func texts[T fmt.Stringer](items []T) []string {
	var result []string
	for _, item := range items {
		result = append(result, item.String())
	}
	return result
}

func bounded[T any](items []T, n int) []T {
	return items[:min(len(items), n)]
}
