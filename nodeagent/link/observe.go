package link

import (
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Observe returns the links, the addresses, and the routes that plan.Observed is to have. It lists them, unless all is
// known since it did so last: Watch has heard of no change by others, and that was a short while ago. It drops from the
// OwnershipFile the addresses that no link has any more.
func (n *Netlink) Observe() (plan.Observed, error) {
	now := time.Now()
	if n.known.isToBeListed(now) {
		if err := n.relist(now); err != nil {
			n.known.markStale()
			return plan.Observed{}, err
		}
	}
	if n.ownershipFile == nil {
		return n.known.observed(now, func(ownedAddress) bool { return false }), nil
	}
	n.ownershipFile.mu.Lock()
	defer n.ownershipFile.mu.Unlock()
	present := map[ownedAddress]bool{}
	observed := n.known.observed(now, func(a ownedAddress) bool {
		present[a] = true
		return n.ownershipFile.recorded[a]
	})
	n.ownershipFile.dropMissing(present)
	return observed, nil
}

// relist lists links, addresses, and the routes that plan.Observed is to have, which are known then.
func (n *Netlink) relist(now time.Time) error {
	n.known.beginListing(now)
	listed, err := dump("links", n.handle.LinkList)
	if err != nil {
		return err
	}
	nameByIndex := map[int]string{}
	for _, l := range listed {
		nameByIndex[l.Attrs().Index] = l.Attrs().Name
	}
	var links []plan.NetworkInterface
	for _, l := range listed {
		link := toLink(l)
		link.Master = nameByIndex[l.Attrs().MasterIndex]
		links = append(links, link)
	}
	if err := n.relistAddresses(); err != nil {
		return err
	}
	var routes []plan.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		ofFamily, err := dump("routes", func() ([]plan.Route, error) { return n.listRoutes(family, nameByIndex) })
		if err != nil {
			return err
		}
		routes = append(routes, ofFamily...)
	}
	n.known.noteListed(links, nameByIndex, routes)
	return nil
}

// listRoutes lists the routes of a family by the named links that plan.Observed is to have. The
// others of the main table, which may be hundreds of thousands, it looks at one by one and keeps none.
func (n *Netlink) listRoutes(family int, nameByIndex map[int]string) ([]plan.Route, error) {
	var routes []plan.Route
	err := n.handle.RouteListFilteredIter(family, &netlink.Route{}, 0, func(r netlink.Route) bool {
		bits := 0
		if r.Dst != nil {
			bits, _ = r.Dst.Mask.Size()
		}
		if isRouteObserved(family, bits, r.Protocol) {
			routes = append(routes, toRoutes(r, family, nameByIndex)...)
		}
		return true
	})
	return routes, err
}

// isRouteObserved reports whether plan.Observed is to have a route of the main table: a default route, one to the
// network of an address, which came with the address, or one that was learnt from a router advertisement. The
// kernel has a route for each IPv6 host address, too, which says nothing that the address does not say.
func isRouteObserved(family, bits int, protocol netlink.RouteProtocol) bool {
	isHost := family == netlink.FAMILY_V4 && bits == 8*net.IPv4len || family == netlink.FAMILY_V6 && bits == 8*net.IPv6len
	return bits == 0 || protocol == unix.RTPROT_KERNEL && !isHost || protocol == unix.RTPROT_RA
}

// relistAddresses lists the addresses of all links, which are known then.
func (n *Netlink) relistAddresses() error {
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	listed, err := dump("addresses", func() ([]netlink.Addr, error) {
		return n.handle.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err == nil {
		n.known.noteListedAddresses(listed)
	}
	return err
}

// NeighbourMACs returns the MAC addresses of these neighbours by an interface, in lower case with
// colons. It returns those that the neighbour table has, and nothing for what the kernel cannot list.
func (n *Netlink) NeighbourMACs(iface string, addrs []netip.Addr) []string {
	if len(addrs) == 0 {
		return nil
	}
	link, err := n.handle.LinkByName(iface)
	if err != nil {
		return nil
	}
	var macs []string
	neighbours, _ := dump("neighbours", func() ([]netlink.Neigh, error) {
		return n.handle.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	})
	for _, entry := range neighbours {
		if addr, ok := netip.AddrFromSlice(entry.IP); ok && slices.Contains(addrs, addr.Unmap()) &&
			len(entry.HardwareAddr) > 0 {
			macs = append(macs, entry.HardwareAddr.String())
		}
	}
	return macs
}

// toLink translates what a link says of itself, which excludes the name of its Master.
func toLink(l netlink.Link) plan.NetworkInterface {
	attrs := l.Attrs()
	return plan.NetworkInterface{
		Name:       attrs.Name,
		Kind:       l.Type(),
		MAC:        attrs.HardwareAddr.String(),
		IsLoopback: attrs.Flags&net.FlagLoopback != 0,
		IsOurs:     attrs.Alias == Alias,
		IsUp: attrs.Flags&net.FlagUp != 0 &&
			(attrs.OperState == netlink.OperUp || attrs.OperState == netlink.OperUnknown),
	}
}

// toAddressWithoutInterface translates all of an address but its interface. It returns false for one that is no IP
// address.
func toAddressWithoutInterface(a *netlink.Addr) (plan.Address, bool) {
	prefix, ok := toPrefix(a.IPNet)
	if !ok {
		return plan.Address{}, false
	}
	return plan.Address{
		Prefix:        prefix,
		IsOurs:        a.Protocol == AddressProtocol,
		Valid:         time.Duration(uint32(a.ValidLft)) * time.Second,    //nolint:gosec // it is 32 bits of the kernel's
		Preferred:     time.Duration(uint32(a.PreferedLft)) * time.Second, //nolint:gosec // it is 32 bits of the kernel's
		NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0,
		// For an IPv4 address the same bit means secondary.
		IsTemporary:    prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0,
		HasNarrowScope: a.Scope != unix.RT_SCOPE_UNIVERSE,
	}, true
}

// toRoutes translates a unicast route, one result for each of its next hops by a link in
// nameByIndex.
func toRoutes(r netlink.Route, family int, nameByIndex map[int]string) []plan.Route {
	if r.Type != unix.RTN_UNICAST {
		return nil
	}
	route := plan.Route{Metric: r.Priority}
	switch r.Protocol {
	case unix.RTPROT_KERNEL:
		route.Origin = plan.OriginKernel
	case unix.RTPROT_RA:
		route.Origin = plan.OriginRA
	}
	destination, ok := toPrefix(r.Dst)
	switch {
	case ok:
		route.Destination = destination.Masked()
	case family == netlink.FAMILY_V4:
		route.Destination = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	default:
		route.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	var routes []plan.Route
	for _, hop := range hopsOf(&r) {
		route.Interface = nameByIndex[hop.LinkIndex]
		route.Gateway = gatewayOf(hop)
		if route.Interface != "" {
			routes = append(routes, route)
		}
	}
	return routes
}

// hopsOf returns the next hops of a route, which are one or several.
func hopsOf(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
}

// gatewayOf returns the gateway of a next hop; the zero Addr if it has none.
func gatewayOf(hop *netlink.NexthopInfo) netip.Addr {
	ip := hop.Gw
	if via, ok := hop.Via.(*netlink.Via); ok { // a gateway of the other address family
		ip = via.Addr
	}
	gateway, _ := netip.AddrFromSlice(ip)
	return gateway.Unmap()
}

// toPrefix translates an address with its mask, host bits kept.
func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	if n.IP.To4() != nil && len(n.Mask) == net.IPv4len {
		addr = addr.Unmap()
	}
	prefix := netip.PrefixFrom(addr, ones)
	return prefix, ok && prefix.IsValid()
}
