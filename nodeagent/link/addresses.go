package link

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// ErrUntagged means that the kernel ignores IFA_PROTO.
var ErrUntagged = errors.New(
	"the kernel does not keep the tag by which the agent recognises its addresses: kernel 5.18 or later is needed, or a " +
		"file to record them in (--checkpoint)",
)

// Add adds an address to its interface. It fails if the interface already has the
// address. The first address that Add adds shows whether the kernel keeps its tag. Where
// the kernel does not, Add records the address in the OwnershipFile; without one
// it removes the address again and fails. When Add returns, the kernel receives packets for the
// address (see awaitLocalRoute). Add is not for concurrent use.
func (n *Netlink) Add(a plan.Address) error {
	err := n.addTagged(a)
	if errors.Is(err, ErrUntagged) && n.ownershipFile != nil {
		err = n.addRecorded(a)
	}
	if err != nil {
		return fmt.Errorf("add %s to %s: %w", a.Prefix, a.Interface, err)
	}
	n.awaitLocalRoute(a)
	return nil
}

const (
	// localRouteLimit is how long Add waits for a local route. The kernel of a busy machine needs
	// some milliseconds. Where the node's routing rules send such packets elsewhere, Add waits in vain.
	localRouteLimit = 500 * time.Millisecond
	// localRouteInterval is the time between two looks.
	localRouteInterval = 200 * time.Microsecond
)

// awaitLocalRoute waits until the kernel takes what comes by the interface of an IPv6 address for its
// own, and not only because of keepLocalRoute. The kernel adds an IPv6 address at once, and its local route a little
// later, in a worker of its own (addrconf_dad_work). Meanwhile it uses the address as a source, and forwards what comes
// for it: the answer to a neighbour solicitation is lost, and the next solicitation follows a second later.
func (n *Netlink) awaitLocalRoute(a plan.Address) {
	if !a.Prefix.Addr().Is6() {
		return
	}
	by := &netlink.RouteGetOptions{Iif: a.Interface}
	for deadline := time.Now().Add(n.routeLimit); ; time.Sleep(localRouteInterval) {
		routes, err := n.handle.RouteGetWithOptions(a.Prefix.Addr().AsSlice(), by)
		isLocal := err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL &&
			routes[0].Protocol != keptRouteProtocol
		if isLocal || errors.As(err, new(netlink.LinkNotFoundError)) || time.Now().After(deadline) {
			return
		}
	}
}

// addTagged adds an address and leaves it only if the kernel keeps its tag.
func (n *Netlink) addTagged(a plan.Address) error {
	if n.keepsTags != nil && !*n.keepsTags {
		return ErrUntagged
	}
	err := n.onLink(a, n.known.notingSet(n.addrAdd))
	if err == nil && n.keepsTags == nil {
		err = n.verifyTag(a)
	}
	return err
}

// verifyTag finds out whether the kernel has kept the tag of an address just added, and
// removes the address if it has not.
func (n *Netlink) verifyTag(a plan.Address) error {
	listed, err := n.listOn(a.Interface)
	if err == nil {
		i := slices.IndexFunc(listed, func(b netlink.Addr) bool {
			prefix, ok := toPrefix(b.IPNet)
			return ok && prefix == a.Prefix
		})
		if i < 0 {
			return nil // another program removed the address at once: the next address will show
		}
		isKept := listed[i].Protocol == AddressProtocol
		n.keepsTags = &isKept
		if isKept {
			return nil
		}
		err = ErrUntagged
	}
	return errors.Join(err, n.Remove(a))
}

// listOn lists the addresses of an interface, which are not noted as known.
func (n *Netlink) listOn(iface string) ([]netlink.Addr, error) {
	link, err := n.handle.LinkByName(iface)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", iface, err)
	}
	return dump("addresses of "+iface, func() ([]netlink.Addr, error) {
		return n.handle.AddrList(link, netlink.FAMILY_ALL)
	})
}

// addRecorded records an address in the OwnershipFile and adds it.
func (n *Netlink) addRecorded(a plan.Address) error {
	n.ownershipFile.mu.Lock()
	defer n.ownershipFile.mu.Unlock()
	return n.onLink(a, func(link netlink.Link, address *netlink.Addr) error {
		owned := ownedAddress{link.Attrs().Index, a.Prefix}
		err := n.known.notingSet(n.addrAdd)(link, address)
		if err == nil {
			n.ownershipFile.record(owned)
		}
		return err
	})
}

// Renew sets the lifetimes of an address that its interface has.
func (n *Netlink) Renew(a plan.Address) error {
	if err := n.onLink(a, n.known.notingSet(n.handle.AddrReplace)); err != nil {
		return fmt.Errorf("renew %s on %s: %w", a.Prefix, a.Interface, err)
	}
	return nil
}

// Replace removes an address and at once adds another in its place, on the same
// interface: the kernel does not hold an IPv6 address with two masks, nor any address
// with two sets of flags. Meanwhile it receives packets for it. Replace is not for concurrent use, as Add is not.
func (n *Netlink) Replace(old, by plan.Address) error {
	if old.Prefix.Addr().Is6() {
		defer n.keepLocalRoute(old)()
	}
	if err := n.Remove(old); err != nil {
		return err
	}
	return n.Add(by)
}

const (
	// keptRouteSeconds is after how long the kernel drops a route of keepLocalRoute by itself, if the agent dies.
	keptRouteSeconds = 10
	// keptRouteProtocol tells such a route from the kernel's.
	keptRouteProtocol = AddressProtocol
	// keptRouteMetric is more than that of the kernel's own local route.
	keptRouteMetric = 4096
)

// keepLocalRoute has the kernel take what comes for an IPv6 address for its own, be the address there or not, until
// the function that it returns is called. Between the removal of an address and the local route of the next one (see
// awaitLocalRoute) a busy machine may need 200 ms. Where the kernel refuses the route, those packets are lost.
func (n *Netlink) keepLocalRoute(a plan.Address) (end func()) {
	route := &netlink.Route{
		Dst:   &net.IPNet{IP: a.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(8*net.IPv6len, 8*net.IPv6len)},
		Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: keptRouteProtocol, Priority: keptRouteMetric,
		Expires: keptRouteSeconds,
	}
	link, err := n.handle.LinkByName(a.Interface)
	if err == nil {
		route.LinkIndex = link.Attrs().Index
		err = n.handle.RouteReplace(route)
	}
	if err != nil {
		return func() {}
	}
	return func() { _ = n.handle.RouteDel(route) }
}

// Remove removes an address from its interface, and no other address with it, whatever
// the kernel would do: see removeKeepingSecondaries. An address that the interface does not have is
// no error.
func (n *Netlink) Remove(a plan.Address) error {
	err := n.onLink(a, n.removeKeepingSecondaries)
	if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) || errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	return fmt.Errorf("remove %s from %s: %w", a.Prefix, a.Interface, err)
}

// removeWithRecord removes an address, and drops it from the OwnershipFile.
func (n *Netlink) removeWithRecord(link netlink.Link, address *netlink.Addr) error {
	err := n.known.notingRemoval(n.handle.AddrDel)(link, address)
	if n.ownershipFile == nil {
		return err
	}
	n.ownershipFile.mu.Lock()
	defer n.ownershipFile.mu.Unlock()
	if prefix, ok := toPrefix(address.IPNet); ok && (err == nil || errors.Is(err, unix.EADDRNOTAVAIL)) {
		n.ownershipFile.drop(ownedAddress{link.Attrs().Index, prefix})
	}
	return err
}

// onLink looks up the interface of an address and applies a change there.
func (n *Netlink) onLink(a plan.Address, apply func(netlink.Link, *netlink.Addr) error) error {
	link, err := n.handle.LinkByName(a.Interface)
	if err != nil {
		return err
	}
	err = apply(link, toNetlinkAddress(a))
	if a.Prefix.Addr().Is6() && errors.Is(err, unix.EACCES) {
		return fmt.Errorf("IPv6 is disabled there: %w", err)
	}
	return err
}

func toNetlinkAddress(a plan.Address) *netlink.Addr {
	addr := a.Prefix.Addr()
	flags := 0
	if addr.Is6() {
		// The agent has probed the link itself. The kernel's own duplicate address
		// detection (RFC 4862 section 5.4) would take a second more, and fail where the
		// nodes of a handover overlap.
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
		// Renew without the tag would remove the tag.
		Protocol: AddressProtocol,
	}
}
