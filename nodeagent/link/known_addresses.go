package link

import (
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// knownAddresses are the addresses that the agent knows the kernel to have: those that Observe listed last,
// with what the agent has changed since. By them Watch tells the changes of other programs from what the
// kernel reports of the agent's own. They decide nothing else: the agent acts on what it lists. A new
// process knows none until it has listed, and Watch reports every change until then.
type knownAddresses struct {
	// mu is held over a listing, and over each of the agent's changes, until the addresses are noted. So a
	// notification is compared with all that the agent has changed before.
	mu sync.Mutex
	// facts are by interface and address; nil until Observe has listed.
	facts map[addressKey]addressFacts
}

// addressKey says which address of which interface.
type addressKey struct {
	interfaceIndex int
	prefix         netip.Prefix
}

// addressFacts are what a decision may depend on. Interface and Prefix are not set: the key has them.
type addressFacts plan.Address

// factsOf returns what a listing or a notification says of an address. It returns false for one that is no
// IP address.
func factsOf(a *netlink.Addr) (addressKey, addressFacts, bool) {
	address, ok := withoutInterface(a)
	key := addressKey{a.LinkIndex, address.Prefix}
	address.Prefix = netip.Prefix{}
	return key, addressFacts(address), ok
}

// factsOn returns what factsOf returns of an address that the agent puts on a link.
func factsOn(link netlink.Link, a *netlink.Addr) (addressKey, addressFacts, bool) {
	placed := *a
	placed.LinkIndex = link.Attrs().Index
	return factsOf(&placed)
}

// noteListed replaces the addresses by those that the kernel has listed. The caller holds the lock.
func (k *knownAddresses) noteListed(listed []netlink.Addr) {
	if k.facts == nil {
		k.facts = make(map[addressKey]addressFacts, len(listed))
	}
	clear(k.facts)
	for i := range listed {
		if key, facts, ok := factsOf(&listed[i]); ok {
			k.facts[key] = facts
		}
	}
}

// setting returns a change that adds or renews an address, and notes that.
func (k *knownAddresses) setting(
	change func(netlink.Link, *netlink.Addr) error,
) func(netlink.Link, *netlink.Addr) error {
	return func(link netlink.Link, a *netlink.Addr) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		err := change(link, a)
		if key, facts, ok := factsOn(link, a); ok && err == nil && k.facts != nil {
			k.facts[key] = facts
		}
		return err
	}
}

// removing returns a change that removes an address, and notes that.
func (k *knownAddresses) removing(
	change func(netlink.Link, *netlink.Addr) error,
) func(netlink.Link, *netlink.Addr) error {
	return func(link netlink.Link, a *netlink.Addr) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		err := change(link, a)
		if key, _, ok := factsOn(link, a); ok && err == nil {
			delete(k.facts, key)
		}
		return err
	}
}

// isNews reports whether a notification of an address says something that the agent does not know. What it
// cannot read is news.
func (k *knownAddresses) isNews(m syscall.NetlinkMessage) bool {
	a, isRead := readAddress(m)
	key, facts, isAddress := factsOf(&a)
	if !isRead || !isAddress {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known, isKnown := k.facts[key]
	if m.Header.Type == unix.RTM_DELADDR {
		return isKnown || k.facts == nil
	}
	return !isKnown || known != facts
}

// readAddress reads what a notification says of an address, as netlink.AddrList reads what is listed.
func readAddress(m syscall.NetlinkMessage) (a netlink.Addr, isRead bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return a, false
	}
	header := nl.DeserializeIfAddrmsg(m.Data)
	attributes, err := nl.ParseRouteAttr(m.Data[header.Len():])
	if err != nil {
		return a, false
	}
	a.LinkIndex, a.Scope, a.Flags = int(header.Index), int(header.Scope), int(header.Flags)
	var local, remote net.IP
	for _, attribute := range attributes {
		switch value := attribute.Value; {
		case attribute.Attr.Type == unix.IFA_LOCAL:
			local = value
		case attribute.Attr.Type == unix.IFA_ADDRESS:
			remote = value
		case attribute.Attr.Type == unix.IFA_FLAGS && len(value) >= 4:
			a.Flags = int(nl.NativeEndian().Uint32(value))
		case attribute.Attr.Type == unix.IFA_CACHEINFO && len(value) >= unix.SizeofIfaCacheinfo:
			lifetimes := nl.DeserializeIfaCacheInfo(value)
			a.ValidLft, a.PreferedLft = int(lifetimes.Valid), int(lifetimes.Prefered) //nolint:misspell // as the library has it
		case attribute.Attr.Type == netlink.IFA_PROTO && len(value) > 0:
			a.Protocol = int(value[0])
		}
	}
	// With a peer the prefix length is that of the peer's address (ip-address(8)).
	ip, bits := remote, int(header.Prefixlen)
	if local != nil && !local.Equal(remote) {
		ip, bits = local, 8*len(local)
	}
	a.IPNet = &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 8*len(ip))}
	return a, ip != nil
}
