package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// farAway are destinations to which, as a rule, no route leads but the default one.
var farAway = map[bool]net.IP{true: net.IPv4(192, 0, 0, 8), false: net.ParseIP("2000::1")}

// GatewaysFrom returns the gateways to which the node sends what has one of its addresses as source and goes far away,
// in order; none if there is no default route of the address's family. Link-local ones have the index of their
// interface as zone. It lists nothing of the node.
func (n *Netlink) GatewaysFrom(address netip.Addr) ([]netip.Addr, error) {
	routes, err := n.handle.RouteGetWithOptions(
		farAway[address.Is4()], &netlink.RouteGetOptions{SrcAddr: address.AsSlice(), FIBMatch: true},
	)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the gateway of %s: %w", address, err)
	}
	var gateways []netip.Addr
	for i := range routes {
		for _, hop := range hopsOf(&routes[i]) {
			gateway := gatewayOf(hop)
			if gateway.Is6() && gateway.IsLinkLocalUnicast() {
				gateway = gateway.WithZone(strconv.Itoa(hop.LinkIndex))
			}
			if gateway.IsValid() && gateway.Is4() == address.Is4() {
				gateways = append(gateways, gateway)
			}
		}
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
