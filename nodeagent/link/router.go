package link

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// GatewaysBeside returns the gateways of the default routes of an address's family, by the interface that has the
// address, in order; none if no interface has it. Link-local ones have the interface as their zone.
func (n *Netlink) GatewaysBeside(address netip.Addr) ([]netip.Addr, error) {
	observed, err := n.Observe()
	if err != nil {
		return nil, err
	}
	beside := map[string]bool{}
	for _, a := range observed.Addresses {
		beside[a.Interface] = beside[a.Interface] || a.Prefix.Addr() == address
	}
	var gateways []netip.Addr
	for _, r := range observed.Routes {
		gateway := r.Gateway
		if !beside[r.Interface] || r.Destination.Bits() != 0 || gateway.Is4() != address.Is4() || !gateway.IsValid() {
			continue
		}
		if gateway.IsLinkLocalUnicast() && gateway.Is6() {
			gateway = gateway.WithZone(r.Interface)
		}
		gateways = append(gateways, gateway)
	}
	slices.SortFunc(gateways, netip.Addr.Compare)
	return slices.Compact(gateways), nil
}

// RouterAddressOn returns the link-local address of the one router on an interface. The kernel knows
// routers by the router advertisements that they send (RFC 4861), whether it follows them or not.
func (n *Netlink) RouterAddressOn(iface string) (netip.Addr, error) {
	l, err := n.handle.LinkByName(iface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the node has no interface %s: %w", iface, err)
	}
	entries, err := dump("neighbours", func() ([]netlink.Neigh, error) {
		return n.handle.NeighList(l.Attrs().Index, netlink.FAMILY_V6)
	})
	if err != nil {
		return netip.Addr{}, err
	}
	var found netip.Addr
	for _, entry := range entries {
		addr, ok := netip.AddrFromSlice(entry.IP)
		if !ok || !addr.IsLinkLocalUnicast() || entry.Flags&netlink.NTF_ROUTER == 0 || len(entry.HardwareAddr) == 0 {
			continue
		}
		if found.IsValid() && found != addr {
			return netip.Addr{},
				fmt.Errorf(
					"two routers are on %s, %s and %s: a neighbour without an address has to be the only one", iface, found, addr,
				)
		}
		found = addr
	}
	if !found.IsValid() {
		return netip.Addr{},
			fmt.Errorf("no router is known on %s: the neighbour has to send IPv6 router advertisements", iface)
	}
	return found, nil
}
