// Package link is what the node agent does to the kernel's network interfaces,
// and the only package that speaks netlink.
//
// Addresses that the agent puts on an interface are tagged with Protocol, by
// which it knows them again after a restart, and with which "ip address" shows
// them. The kernel keeps the tag from 5.18 on. An older one ignores it, and the agent
// notes in a file which addresses are its own; without such a file it would never
// know them again, so none stays there.
package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Protocol is the IFA_PROTO of our addresses (if_addr.h: who or what put the
// address there). The kernel itself uses 0 to 3; the rest is for user space,
// where nobody assigns numbers.
const Protocol = 0x70

// dumpAttempts is how often a listing is repeated that changes interrupted.
const dumpAttempts = 5

// Netlink is the kernel of the network namespace in which it was opened.
type Netlink struct {
	handle *netlink.Handle
	// add is the handle's AddrAdd.
	add func(netlink.Link, *netlink.Addr) error
	// ledger is for a kernel that keeps no tags; nil for none.
	ledger *Ledger
	// tagging is whether the kernel keeps tags; nil until an address was added.
	// It is not for concurrent use, as Add is not.
	tagging *bool
}

// errUntagged means that the kernel ignores IFA_PROTO.
var errUntagged = errors.New("the kernel does not keep the tag by which the agent knows its addresses again: kernel 5.18 or later is needed, or a file to note them in (--checkpoint)")

// Open opens a netlink socket. It is never closed: the agent uses it for as
// long as it lives. The ledger, if it is not nil, is used where the kernel keeps no
// tags.
func Open(ledger *Ledger) (*Netlink, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	n := &Netlink{handle: handle, add: handle.AddrAdd, ledger: ledger}
	if ledger != nil && len(ledger.entries) > 0 {
		n.tagging = new(bool) // it did not before, since the machine booted
	}
	return n, nil
}

// Observe lists links, addresses, and the unicast routes of the main table.
func (n *Netlink) Observe() (plan.Observed, error) {
	var o plan.Observed
	links, err := dump("links", n.handle.LinkList)
	if err != nil {
		return o, err
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		o.Links = append(o.Links, linkOf(l))
	}
	if o.Addresses, err = n.addresses(names); err != nil {
		return o, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump("routes", func() ([]netlink.Route, error) { return n.handle.RouteList(nil, family) })
		if err != nil {
			return o, err
		}
		for _, r := range routes {
			o.Routes = append(o.Routes, routesOf(r, family, names)...)
		}
	}
	return o, nil
}

// addresses lists those on the links with these names, by index.
func (n *Netlink) addresses(names map[int]string) ([]plan.Address, error) {
	if n.ledger != nil {
		n.ledger.mu.Lock()
		defer n.ledger.mu.Unlock()
	}
	listed, err := dump("addresses", func() ([]netlink.Addr, error) {
		return n.handle.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, err
	}
	var addresses []plan.Address
	there := map[owned]bool{}
	for _, a := range listed {
		if address, ok := addressOf(a, names); ok {
			o := owned{a.LinkIndex, address.Prefix}
			there[o] = true
			address.Ours = address.Ours || n.ledger != nil && n.ledger.entries[o]
			addresses = append(addresses, address)
		}
	}
	if n.ledger != nil {
		n.ledger.prune(there)
	}
	return addresses, nil
}

// dump lists, and lists again if the kernel says that a change got in between:
// what is missing from an interrupted listing is not gone.
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	var err error
	for range dumpAttempts {
		var items []T
		if items, err = list(); err == nil {
			return items, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, fmt.Errorf("list %s: %w", what, err)
}

func linkOf(l netlink.Link) plan.Link {
	attrs := l.Attrs()
	return plan.Link{
		Name:     attrs.Name,
		Kind:     l.Type(),
		MAC:      attrs.HardwareAddr.String(),
		Loopback: attrs.Flags&net.FlagLoopback != 0,
		Ours:     attrs.Alias == Alias,
		Up:       attrs.Flags&net.FlagUp != 0 && (attrs.OperState == netlink.OperUp || attrs.OperState == netlink.OperUnknown),
	}
}

func addressOf(a netlink.Addr, names map[int]string) (plan.Address, bool) {
	prefix, ok := prefixOf(a.IPNet)
	name := names[a.LinkIndex]
	if !ok || name == "" {
		return plan.Address{}, false // the interface came or went in between
	}
	return plan.Address{
		Interface:     name,
		Prefix:        prefix,
		Ours:          a.Protocol == Protocol,
		Valid:         time.Duration(uint32(a.ValidLft)) * time.Second,
		Preferred:     time.Duration(uint32(a.PreferedLft)) * time.Second,
		NoPrefixRoute: a.Flags&unix.IFA_F_NOPREFIXROUTE != 0,
		// Of an IPv4 address the same bit means secondary.
		Temporary: prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0,
	}, true
}

func routesOf(r netlink.Route, family int, names map[int]string) []plan.Route {
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
	destination, ok := prefixOf(r.Dst)
	switch {
	case ok:
		route.Destination = destination.Masked()
	case family == netlink.FAMILY_V4:
		route.Destination = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	default:
		route.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	var routes []plan.Route
	for _, hop := range hops {
		route.Interface = names[hop.LinkIndex]
		route.Gateway = gatewayOf(hop)
		if route.Interface != "" {
			routes = append(routes, route)
		}
	}
	return routes
}

func gatewayOf(hop *netlink.NexthopInfo) netip.Addr {
	ip := hop.Gw
	if via, ok := hop.Via.(*netlink.Via); ok { // a next hop of the other family
		ip = via.Addr
	}
	gateway, _ := netip.AddrFromSlice(ip)
	return gateway.Unmap()
}

// GatewayMACs is where the next hops of default routes by an interface are, as
// far as the neighbour table says: lower case with colons. What cannot be listed
// is not known.
func (n *Netlink) GatewayMACs(iface string) []string {
	link, err := n.handle.LinkByName(iface)
	if err != nil {
		return nil
	}
	gateways := map[netip.Addr]bool{}
	names := map[int]string{link.Attrs().Index: iface}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, _ := dump("routes", func() ([]netlink.Route, error) { return n.handle.RouteList(nil, family) })
		for _, r := range routes {
			for _, hop := range routesOf(r, family, names) {
				if hop.Interface == iface && hop.Destination.Bits() == 0 && hop.Gateway.IsValid() {
					gateways[hop.Gateway.WithZone("")] = true
				}
			}
		}
	}
	if len(gateways) == 0 {
		return nil
	}
	var macs []string
	neighbours, _ := dump("neighbours", func() ([]netlink.Neigh, error) {
		return n.handle.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	})
	for _, entry := range neighbours {
		if addr, ok := netip.AddrFromSlice(entry.IP); ok && gateways[addr.Unmap()] && len(entry.HardwareAddr) > 0 {
			macs = append(macs, entry.HardwareAddr.String())
		}
	}
	return macs
}

// Add puts an address on its interface. It fails if the interface has it
// already. Whether the kernel keeps its tag the first address shows; where it does
// not, it goes into the ledger, and without one is removed again. Add is not for
// concurrent use.
func (n *Netlink) Add(a plan.Address) error {
	if err := n.addTagged(a); err != nil && (!errors.Is(err, errUntagged) || n.ledger == nil) {
		return fmt.Errorf("add %s to %s: %w", a.Prefix, a.Interface, err)
	} else if err == nil {
		return nil
	}
	if err := n.addNoted(a); err != nil {
		return fmt.Errorf("add %s to %s: %w", a.Prefix, a.Interface, err)
	}
	return nil
}

func (n *Netlink) addTagged(a plan.Address) error {
	if n.tagging != nil && !*n.tagging {
		return errUntagged
	}
	err := n.apply(a, n.add)
	if err == nil && n.tagging == nil {
		err = n.verify(a)
	}
	return err
}

// verify finds out whether the kernel has kept the tag of an address just added,
// and removes the address unless it has.
func (n *Netlink) verify(a plan.Address) error {
	o, err := n.Observe()
	if err == nil {
		i := slices.IndexFunc(o.Addresses, func(b plan.Address) bool { return b.Interface == a.Interface && b.Prefix == a.Prefix })
		if i < 0 {
			return nil // somebody removed it at once: the next one will show
		}
		n.tagging = &o.Addresses[i].Ours
		if *n.tagging {
			return nil
		}
		err = errUntagged
	}
	return errors.Join(err, n.Remove(a))
}

// Renew sets the lifetimes of an address that is there.
func (n *Netlink) Renew(a plan.Address) error {
	if err := n.apply(a, n.handle.AddrReplace); err != nil {
		return fmt.Errorf("renew %s on %s: %w", a.Prefix, a.Interface, err)
	}
	return nil
}

// Remove takes an address from its interface. One that is gone already is no
// error.
func (n *Netlink) Remove(a plan.Address) error {
	err := n.apply(a, n.remove)
	if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) || errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	return fmt.Errorf("remove %s from %s: %w", a.Prefix, a.Interface, err)
}

func (n *Netlink) remove(link netlink.Link, address *netlink.Addr) error {
	err := n.handle.AddrDel(link, address)
	if n.ledger == nil {
		return err
	}
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	if prefix, ok := prefixOf(address.IPNet); ok && (err == nil || errors.Is(err, unix.EADDRNOTAVAIL)) {
		n.ledger.drop(owned{link.Attrs().Index, prefix})
	}
	return err
}

func (n *Netlink) apply(a plan.Address, change func(netlink.Link, *netlink.Addr) error) error {
	link, err := n.handle.LinkByName(a.Interface)
	if err != nil {
		return err
	}
	err = change(link, netlinkAddress(a))
	if a.Prefix.Addr().Is6() && errors.Is(err, unix.EACCES) {
		return fmt.Errorf("IPv6 is disabled there: %w", err)
	}
	return err
}

func netlinkAddress(a plan.Address) *netlink.Addr {
	addr := a.Prefix.Addr()
	flags := 0
	if addr.Is6() {
		// The agent has asked the link itself (RFC 4862 section 5.4 would take a
		// second more, and fail where a handover overlaps).
		flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return &netlink.Addr{
		IPNet:       &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(a.Prefix.Bits(), addr.BitLen())},
		Flags:       flags,
		Scope:       unix.RT_SCOPE_UNIVERSE,
		ValidLft:    int(a.Valid / time.Second),
		PreferedLft: int(a.Preferred / time.Second),
		// A replacement without it would take the tag away.
		Protocol: Protocol,
	}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
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
