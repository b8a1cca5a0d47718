package link

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// relistAfter is for how long Observe does not list again: long enough that an agent lists seldom in a burst, and so
// short that one with little to do lists each time. So what the kernel has not reported is soon found, too.
const relistAfter = 2 * time.Second

// known is what the agent knows the kernel to have: what Observe listed last, with what the agent has changed since.
// By it Watch tells the changes of other programs from what the kernel reports of the agent's own, and Observe need
// not list again in a burst of changes. A new process knows nothing until it has listed.
type known struct {
	// mu is held over a listing of addresses, and over each of the agent's changes, until the addresses are noted. So
	// a notification is compared with all that the agent has changed before.
	mu     sync.Mutex
	links  []plan.NetworkInterface
	routes []plan.Route
	// nameByIndex has the names of the links.
	nameByIndex map[int]string
	// addresses are in the kernel's order. Those that the agent has removed since stay in their places.
	addresses []knownAddress
	// indexByKey are the places in addresses of those that are not removed; nil until Observe has listed.
	indexByKey map[addressKey]int

	// isWatched means that Watch hears of changes, and isCurrent that it has heard of no change by others since
	// the last listing began, at listedAt.
	isWatched, isCurrent bool
	listedAt             time.Time
	// changedAt is when Watch last heard of a change by others, or began to hear of changes.
	changedAt time.Time
}

// knownAddress is an address, as the kernel listed it or the agent set it at a time.
type knownAddress struct {
	key        addressKey
	attributes addressAttributes
	at         time.Time
	isRemoved  bool
}

// addressKey says which address of which interface.
type addressKey struct {
	interfaceIndex int
	prefix         netip.Prefix
}

// addressAttributes are what a decision may depend on. Interface and Prefix are not set: the key has them.
type addressAttributes plan.Address

// attributesOf returns what a listing or a notification says of an address. It returns false for one that is no
// IP address.
func attributesOf(a *netlink.Addr) (addressKey, addressAttributes, bool) {
	address, ok := toAddressWithoutInterface(a)
	key := addressKey{a.LinkIndex, address.Prefix}
	address.Prefix = netip.Prefix{}
	return key, addressAttributes(address), ok
}

// isToBeListed reports whether Observe has to list. It does so while changes by others are unknown, and now and
// then.
func (k *known) isToBeListed(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.isCurrent || now.Sub(k.listedAt) >= relistAfter
}

// beginListing notes that a listing begins. What others change from now on makes another necessary.
func (k *known) beginListing(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isCurrent, k.listedAt = k.isWatched, now
}

// setWatched notes whether Watch hears of changes from now on. It has missed those before.
func (k *known) setWatched(isWatched bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isWatched, k.isCurrent, k.changedAt = isWatched, false, time.Now()
}

// markStale notes that something has changed that is not noted.
func (k *known) markStale() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isCurrent, k.changedAt = false, time.Now()
}

// isQuiet reports whether Watch has heard of all changes since a time, and there was none.
func (k *known) isQuiet(since time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.isWatched && k.changedAt.Before(since)
}

// noteListed replaces links and routes by those that the kernel has listed.
func (k *known) noteListed(links []plan.NetworkInterface, nameByIndex map[int]string, routes []plan.Route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links, k.nameByIndex, k.routes = links, nameByIndex, routes
}

// noteListedAddresses replaces the addresses by those that the kernel has listed. The caller holds the lock, here and
// in the two functions below.
func (k *known) noteListedAddresses(listed []netlink.Addr) {
	if k.indexByKey == nil {
		k.indexByKey = make(map[addressKey]int, len(listed))
	}
	clear(k.indexByKey)
	k.addresses = slices.Grow(k.addresses[:0], len(listed))
	for i := range listed {
		if key, attributes, ok := attributesOf(&listed[i]); ok {
			k.indexByKey[key] = len(k.addresses)
			k.addresses = append(k.addresses, knownAddress{key: key, attributes: attributes, at: k.listedAt})
		}
	}
}

// set notes an address: in its place, or as the last one.
func (k *known) set(key addressKey, attributes addressAttributes, at time.Time) {
	i, isKnown := k.indexByKey[key]
	if !isKnown {
		i = len(k.addresses)
		k.addresses, k.indexByKey[key] = append(k.addresses, knownAddress{}), i
	}
	k.addresses[i] = knownAddress{key: key, attributes: attributes, at: at}
}

// remove notes that an address is gone.
func (k *known) remove(key addressKey) {
	if i, isKnown := k.indexByKey[key]; isKnown {
		k.addresses[i].isRemoved = true
		delete(k.indexByKey, key)
	}
}

// noting returns a change that does what do does, and notes it: the addresses by note, or that nothing is known if
// the change fails, or is of a link that was not listed.
func (k *known) noting(
	do func(netlink.Link, *netlink.Addr) error, note func(addressKey, addressAttributes),
) func(netlink.Link, *netlink.Addr) error {
	return func(link netlink.Link, a *netlink.Addr) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		err := do(link, a)
		placed := *a
		placed.LinkIndex = link.Attrs().Index
		key, attributes, ok := attributesOf(&placed)
		if _, isListed := k.nameByIndex[key.interfaceIndex]; err != nil || !ok || !isListed {
			k.isCurrent = false
		}
		if err == nil && ok && k.indexByKey != nil {
			note(key, attributes)
		}
		return err
	}
}

// notingSet returns a change that adds or renews an address, and notes that.
func (k *known) notingSet(do func(netlink.Link, *netlink.Addr) error) func(netlink.Link, *netlink.Addr) error {
	return k.noting(do, func(key addressKey, attributes addressAttributes) { k.set(key, attributes, time.Now()) })
}

// notingRemoval returns a change that removes an address, and notes that.
func (k *known) notingRemoval(do func(netlink.Link, *netlink.Addr) error) func(netlink.Link, *netlink.Addr) error {
	return k.noting(do, func(key addressKey, _ addressAttributes) { k.remove(key) })
}

// observed returns all that is known, with what is left of lifetimes. isRecorded reports whether the agent has recorded
// an address as its own.
func (k *known) observed(now time.Time, isRecorded func(ownedAddress) bool) plan.Observed {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := plan.Observed{
		Interfaces: slices.Clone(k.links), Routes: slices.Clone(k.routes),
		Addresses: make([]plan.Address, 0, len(k.indexByKey)),
	}
	for i := range k.addresses {
		a := &k.addresses[i]
		name := k.nameByIndex[a.key.interfaceIndex]
		if a.isRemoved || name == "" { // the second was added or removed between the listings of links and of addresses
			continue
		}
		address := plan.Address(a.attributes)
		address.Interface, address.Prefix = name, a.key.prefix
		address.IsOurs = address.IsOurs || isRecorded(ownedAddress{a.key.interfaceIndex, a.key.prefix})
		address.Valid = lifetimeLeft(address.Valid, now.Sub(a.at))
		address.Preferred = lifetimeLeft(address.Preferred, now.Sub(a.at))
		o.Addresses = append(o.Addresses, address)
	}
	return o
}

// lifetimeLeft returns what is left of a lifetime after a time, in whole seconds, as the kernel does.
func lifetimeLeft(lifetime, after time.Duration) time.Duration {
	if lifetime == plan.Forever {
		return lifetime
	}
	return max(0, lifetime-after.Truncate(time.Second))
}

// isNews reports whether a notification of an address says something that the agent does not know. What it
// cannot read is news.
func (k *known) isNews(m syscall.NetlinkMessage) bool {
	a, isRead := readAddress(m)
	key, attributes, isAddress := attributesOf(&a)
	if !isRead || !isAddress {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i, isKnown := k.indexByKey[key]
	if m.Header.Type == unix.RTM_DELADDR {
		return isKnown || k.indexByKey == nil
	}
	return !isKnown || k.addresses[i].attributes != attributes
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
