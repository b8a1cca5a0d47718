package link

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// copyLifetime is the lifetime of the copies that removeKeepingSecondaries adds: should the agent die
// before it removes them, the kernel does.
const copyLifetime = time.Minute

// removeKeepingSecondaries removes an address, and keeps the node's own addresses on the interface.
//
// Of the IPv4 addresses of a subnet the kernel makes the first one primary and the others
// its secondaries. When the primary is removed, the kernel removes its secondaries, too,
// unless promote_secondaries is set (ip-sysctl.rst). An address of the agent is primary
// where an older version of the agent added it with the subnet's mask, and the node's own
// address was removed and added again.
//
// So removeKeepingSecondaries first adds a copy of each secondary that is not the agent's, as a host
// address, which is never a secondary. After the removal it adds each secondary again that
// the kernel has removed, and removes the copies. Thanks to the copies the node always has
// its address, and the kernel keeps the routes that prefer the address as a source.
func (n *Netlink) removeKeepingSecondaries(link netlink.Link, address *netlink.Addr) error {
	if link.Attrs().Alias == Alias { // EnsureVirtual has set promote_secondaries
		return n.removeWithRecord(link, address)
	}
	secondaries, err := n.foreignSecondaries(link, address)
	if err != nil {
		return err
	}
	if len(secondaries) > 0 {
		defer n.known.markStale()
	}
	copies, err := n.addCopies(link, secondaries)
	if err != nil {
		return err
	}
	err = n.removeWithRecord(link, address)
	for i := range secondaries {
		if failed := n.handle.AddrAdd(link, &secondaries[i]); failed != nil && !errors.Is(failed, unix.EEXIST) {
			// The copies stay until their lifetime ends.
			return errors.Join(err, fmt.Errorf("add %s, an address of this node, again: %w", secondaries[i].IPNet, failed))
		}
	}
	return errors.Join(err, n.removeCopies(link, copies))
}

// addCopies adds each of the addresses once more, as a host address. If one cannot be
// added it removes the others.
func (n *Netlink) addCopies(link netlink.Link, addresses []netlink.Addr) ([]*netlink.Addr, error) {
	var copies []*netlink.Addr
	for _, address := range addresses {
		hostCopy := &netlink.Addr{
			IPNet:    &net.IPNet{IP: address.IP, Mask: net.CIDRMask(net.IPv4len*8, net.IPv4len*8)},
			Scope:    address.Scope,
			ValidLft: int(copyLifetime / time.Second), PreferedLft: int(copyLifetime / time.Second),
			Flags: unix.IFA_F_NOPREFIXROUTE,
			// With the tag a copy that is left over is the agent's, and the agent removes it.
			Protocol: AddressProtocol,
		}
		switch err := n.handle.AddrAdd(link, hostCopy); {
		case err == nil:
			copies = append(copies, hostCopy)
		case !errors.Is(err, unix.EEXIST):
			return nil, errors.Join(
				fmt.Errorf("add a copy of %s, an address of this node: %w", address.IP, err), n.removeCopies(link, copies),
			)
		}
	}
	return copies, nil
}

func (n *Netlink) removeCopies(link netlink.Link, copies []*netlink.Addr) error {
	var errs error
	for _, hostCopy := range copies {
		if err := n.handle.AddrDel(link, hostCopy); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = errors.Join(errs, fmt.Errorf("remove the copy %s: %w", hostCopy.IPNet, err))
		}
	}
	return errs
}

// foreignSecondaries lists the addresses of a link that are not the agent's and that the
// kernel may remove with an address, in the form in which AddrAdd adds them again.
func (n *Netlink) foreignSecondaries(link netlink.Link, primary *netlink.Addr) ([]netlink.Addr, error) {
	ones, bits := primary.Mask.Size()
	if bits != net.IPv4len*8 || ones == bits {
		return nil, nil
	}
	listed, err := dump("addresses", func() ([]netlink.Addr, error) { return n.handle.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return nil, err
	}
	var secondaries []netlink.Addr
	for _, a := range listed {
		size, _ := a.Mask.Size()
		switch {
		case size != ones || !primary.Contains(a.IP): // in another subnet
		case a.IP.Equal(primary.IP):
			if a.Flags&unix.IFA_F_SECONDARY != 0 {
				return nil, nil // it is a secondary itself: the kernel removes no other with it
			}
		case a.Flags&unix.IFA_F_SECONDARY != 0 && a.Protocol != AddressProtocol:
			a.Flags &^= unix.IFA_F_SECONDARY | unix.IFA_F_PERMANENT // the kernel sets these itself
			if a.Broadcast == nil {
				a.Broadcast = net.IPv4zero // none: the library would choose one
			}
			secondaries = append(secondaries, a)
		}
	}
	return secondaries, nil
}
