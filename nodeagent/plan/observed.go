package plan

import (
	"math"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Forever is the lifetime of an address that does not expire, as the kernel
// counts it (INFINITY_LIFE_TIME in linux/if_addr.h).
const Forever = math.MaxUint32 * time.Second

// NetworkInterface is a network interface of the node.
type NetworkInterface struct {
	Name string
	// Kind as in "ip -d link": dummy, ifb, bridge, veth, …; but "device" for
	// hardware, and "tuntap" for what ip calls tun, a TAP as well as a TUN.
	Kind string
	// MAC, lower case with colons; empty if the link has none.
	MAC string
	// Master is the name of the bridge, bond or the like that the link is a port of;
	// empty for none.
	Master string
	// IsLoopback is set for lo and the like.
	IsLoopback bool
	// IsOurs means that the agent made it, as its virtual interface.
	IsOurs bool
	// IsUp means that packets pass: set up, and with a carrier as far as the
	// driver can tell.
	IsUp bool
}

// Address is an address on an interface.
type Address struct {
	Interface string
	// Prefix is the address with its mask, host bits kept.
	Prefix netip.Prefix
	// IsOurs means that the address is tagged as put there by this agent.
	IsOurs bool
	// Valid and Preferred are what remains of the address's lifetimes, in whole
	// seconds, or Forever. A preferred lifetime of 0 means that the address is
	// never chosen as a source address.
	Valid, Preferred time.Duration
	// NoPrefixRoute means that no route to the prefix comes with the address.
	NoPrefixRoute bool
	// IsTemporary is an IPv6 privacy address (RFC 8981).
	IsTemporary bool
	// HasNarrowScope is an address of another scope than global, link for instance. The kernel
	// lists such IPv4 addresses after those of global scope, as ours are.
	HasNarrowScope bool
}

// RouteOrigin is what made a route.
type RouteOrigin int

// Origins of routes.
const (
	// OriginOther is an administrator, a routing daemon, DHCP, …
	OriginOther RouteOrigin = iota
	// OriginKernel came with an address.
	OriginKernel
	// OriginRA was learnt from a router advertisement.
	OriginRA
)

// Route is a unicast route of the main table, one for each of its next hops. It is a default route, or
// the kernel made it for the network of an address, or from a router advertisement.
type Route struct {
	Interface string
	// Destination, masked; 0.0.0.0/0 or ::/0 for a default route.
	Destination netip.Prefix
	// Gateway is the next hop; the zero Addr if the destination is on the link.
	Gateway netip.Addr
	// Metric: less is preferred.
	Metric int
	Origin RouteOrigin
}

// Observed is what the kernel holds.
type Observed struct {
	Interfaces []NetworkInterface
	Addresses  []Address
	Routes     []Route
}

// interfaceNamed returns the interface of a name, and whether there is one.
func (o Observed) interfaceNamed(name string) (NetworkInterface, bool) {
	for _, l := range o.Interfaces {
		if l.Name == name {
			return l, true
		}
	}
	return NetworkInterface{}, false
}

// Gateways returns the next hops of default routes, by interface.
func Gateways(observed Observed) map[string][]netip.Addr { return gatewaysOf(observed, families) }

// gatewaysOf returns the next hops of the default routes of some families, by interface. A next hop
// may be that of both families (RFC 8950), and is listed once.
func gatewaysOf(observed Observed, of []purelbv1.IPFamily) map[string][]netip.Addr {
	gateways := map[string][]netip.Addr{}
	for _, r := range observed.Routes {
		isOfFamily := func(f purelbv1.IPFamily) bool { return isDefaultRoute(r, f) }
		hop := r.Gateway.WithZone("")
		if hop.IsValid() && slices.ContainsFunc(of, isOfFamily) && !slices.Contains(gateways[r.Interface], hop) {
			gateways[r.Interface] = append(gateways[r.Interface], hop)
		}
	}
	return gateways
}

// Sender returns an address of the node's own on an interface with which the node can ask the
// link for another address: of the same family and, if there is one, of the same subnet. The
// addresses that the agent put there do not count: they move, and neighbours learn the sender of
// a question. Sender returns the zero Addr if there is none.
func Sender(addresses []Address, iface string, target netip.Addr) netip.Addr {
	var sender netip.Addr
	for _, a := range addresses {
		addr := a.Prefix.Addr()
		if a.Interface != iface || a.IsOurs || a.IsTemporary || addr.Is4() != target.Is4() || addr == target {
			continue
		}
		if a.Prefix.Contains(target) {
			return addr
		}
		if !sender.IsValid() {
			sender = addr
		}
	}
	return sender
}
