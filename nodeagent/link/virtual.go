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

// Alias is the ifalias of a virtual interface that the agent made. An interface of the
// same name that another program made has no such alias.
const Alias = "purelb: virtual interface for load balancer addresses"

// EnsureVirtual makes the virtual interface if no interface has that name, sets it up,
// and returns its kind. It makes the first kind that the kernel supports: a dummy, an ifb
// (which without a redirection behaves like a dummy), or a bridge without ports.
func (n *Netlink) EnsureVirtual(name string) (string, error) {
	link, err := n.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		defer n.known.markStale()
		link, err = n.addVirtual(name)
	}
	if err != nil {
		return "", fmt.Errorf("virtual interface %s: %w", name, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		defer n.known.markStale()
		if err := n.handle.LinkSetUp(link); err != nil {
			return "", fmt.Errorf("set %s up: %w", name, err)
		}
	}
	// Also on an interface that another program made, or an agent that died after that.
	if err := ensurePromoteSecondaries(link.Attrs().Index); err != nil {
		return "", fmt.Errorf("virtual interface %s: %w", name, err)
	}
	return link.Type(), nil
}

// RemoveVirtual removes the virtual interface if EnsureVirtual made it and it has no
// address but link-local ones. That no interface has the name is no error.
func (n *Netlink) RemoveVirtual(name string) error {
	if err := n.removeVirtual(name); err != nil {
		return fmt.Errorf("remove virtual interface %s: %w", name, err)
	}
	return nil
}

func (n *Netlink) removeVirtual(name string) error {
	link, err := n.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	if link.Attrs().Alias != Alias {
		return nil
	}
	addresses, err := dump(
		"addresses", func() ([]netlink.Addr, error) { return n.handle.AddrList(link, netlink.FAMILY_ALL) },
	)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() }) {
		return nil
	}
	defer n.known.markStale()
	return n.handle.LinkDel(link)
}

// addVirtual adds an interface of the first kind that the kernel supports, and marks it
// as the agent's.
func (n *Netlink) addVirtual(name string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var errs error
	for _, link := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: attrs}, &netlink.Ifb{LinkAttrs: attrs}, &netlink.Bridge{LinkAttrs: attrs},
	} {
		err := n.handle.LinkAdd(link)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("add it as a %s: %w", link.Type(), err))
			if errors.Is(err, unix.EOPNOTSUPP) {
				continue // the kernel does not support this kind
			}
			return nil, errs
		}
		if err := n.handle.LinkSetAlias(link, Alias); err != nil {
			// RemoveVirtual would never remove an interface without the mark.
			return nil, errors.Join(fmt.Errorf("set its alias: %w", err), n.handle.LinkDel(link))
		}
		return n.handle.LinkByName(name)
	}
	return nil, errs
}

// Constants of linux/if_link.h and linux/ip.h.
const (
	attributeInetConf      = 1  // IFLA_INET_CONF
	confPromoteSecondaries = 20 // IPV4_DEVCONF_PROMOTE_SECONDARIES
)

// ensurePromoteSecondaries makes the kernel keep the other IPv4 addresses of a subnet on an
// interface when the first of them is removed. By default the kernel removes them all
// (ip-sysctl.rst, promote_secondaries). Netlink, unlike sysctl, needs no writable /proc. What
// is set already is not set again: the kernel would report a change of the interface each time,
// and wake the agent.
func ensurePromoteSecondaries(index int) error {
	if isSet, err := promotesSecondaries(index); err != nil || isSet {
		return err
	}
	return setPromoteSecondaries(index)
}

// promotesSecondaries reports whether promote_secondaries is set on an interface.
func promotesSecondaries(index int) (bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index) //nolint:gosec // the kernel has it in 32 bits
	request.AddData(message)
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return false, fmt.Errorf("get promote_secondaries: %w", err)
	}
	for _, answer := range answers {
		data := answer[min(len(answer), unix.SizeofIfInfomsg):]
		for _, attribute := range []uint16{unix.IFLA_AF_SPEC, unix.AF_INET, attributeInetConf} {
			data = attributeOf(data, attribute)
		}
		const size = 4 // of each setting; the first one has number 1
		if end := confPromoteSecondaries * size; len(data) >= end {
			return nl.NativeEndian().Uint32(data[end-size:end]) != 0, nil
		}
	}
	return false, errors.New("get promote_secondaries: the kernel does not say")
}

// attributeOf returns the value of the first attribute of a type; nil if there is none.
func attributeOf(data []byte, kind uint16) []byte {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil
	}
	for _, a := range attributes {
		if a.Attr.Type&^unix.NLA_F_NESTED == kind {
			return a.Value
		}
	}
	return nil
}

func setPromoteSecondaries(index int) error {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(index) //nolint:gosec // the kernel has it in 32 bits
	request.AddData(message)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(attributeInetConf, nil).AddRtAttr(
		confPromoteSecondaries, nl.Uint32Attr(1),
	)
	request.AddData(families)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set promote_secondaries: %w", err)
	}
	return nil
}
