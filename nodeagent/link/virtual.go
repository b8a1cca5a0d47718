package link

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Alias is the ifalias of a virtual interface that the agent made, by which it
// can be told from one that was there before.
const Alias = "purelb: virtual interface for load balancer addresses"

// EnsureVirtual makes the virtual interface if there is none of that name, sets
// it up, and returns its kind. It makes the first kind that the kernel knows: a
// dummy, an ifb (which without a redirection behaves like one), or a bridge
// without ports.
func (n *Netlink) EnsureVirtual(name string) (string, error) {
	link, err := n.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		link, err = n.makeVirtual(name)
	}
	if err != nil {
		return "", fmt.Errorf("virtual interface %s: %w", name, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := n.handle.LinkSetUp(link); err != nil {
			return "", fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return link.Type(), nil
}

// RemoveVirtual removes the virtual interface, if EnsureVirtual made it and
// nobody has put an address on it. That there is none is no error.
func (n *Netlink) RemoveVirtual(name string) error {
	link, err := n.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil && link.Attrs().Alias != Alias {
		return nil
	}
	var addresses []netlink.Addr
	if err == nil {
		addresses, err = dump("addresses", func() ([]netlink.Addr, error) { return n.handle.AddrList(link, netlink.FAMILY_ALL) })
	}
	if slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() }) {
		return nil
	}
	if err == nil {
		err = n.handle.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove virtual interface %s: %w", name, err)
	}
	return nil
}

func (n *Netlink) makeVirtual(name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var errs error
	for _, link := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: attrs}, &netlink.Ifb{LinkAttrs: attrs}, &netlink.Bridge{LinkAttrs: attrs},
	} {
		err := n.handle.LinkAdd(link)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("make it of kind %s: %w", link.Type(), err))
			if errors.Is(err, unix.EOPNOTSUPP) {
				continue // the kernel knows no such kind
			}
			return nil, errs
		}
		if err := n.handle.LinkSetAlias(link, Alias); err != nil {
			// Unmarked it would outlive us.
			return nil, errors.Join(fmt.Errorf("mark it as ours: %w", err), n.handle.LinkDel(link))
		}
		made, err := n.handle.LinkByName(name)
		if err == nil {
			err = promoteSecondaries(made.Attrs().Index)
		}
		return made, err
	}
	return nil, errs
}

// Of linux/if_link.h and linux/ip.h.
const (
	attributeInetConf      = 1  // IFLA_INET_CONF
	confPromoteSecondaries = 20 // IPV4_DEVCONF_PROMOTE_SECONDARIES
)

// promoteSecondaries makes an interface keep the other IPv4 addresses of a subnet
// when the first of them is removed. Unless told so the kernel removes them all
// (ip-sysctl, promote_secondaries). By netlink it needs no writable /proc.
func promoteSecondaries(index int) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index)
	request.AddData(message)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(attributeInetConf, nil).AddRtAttr(confPromoteSecondaries, nl.Uint32Attr(1))
	request.AddData(families)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("keep its other addresses when one is removed: %w", err)
	}
	return nil
}
