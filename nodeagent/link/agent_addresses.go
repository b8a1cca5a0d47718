package link

import (
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// OwnershipFileName is the name of the agent's OwnershipFile in the folder of what outlives the agent.
const OwnershipFileName = "addresses.json"

const (
	// listAgainAfter is after how long a Reader lists again although the kernel has reported no change.
	listAgainAfter = time.Minute
	// quietTime is for how long the kernel has to have reported no change before a listing that serves later calls.
	quietTime = time.Second
)

// Reader reads what the agent has added, for another program of the node. It is not for concurrent use, other than
// Watch.
type Reader struct {
	*Netlink
	ownershipPath string
	// last is the last listing that may serve later calls. A new process lists.
	last agentListing
}

// agentListing has the agent's addresses on an interface, listed at a time.
type agentListing struct {
	iface     string
	addresses []netip.Prefix
	at        time.Time
}

// OpenReader opens a netlink socket. ownershipPath is the agent's OwnershipFile, which need not exist.
func OpenReader(ownershipPath string) (*Reader, error) {
	n, err := Open(nil)
	if err != nil {
		return nil, err
	}
	return &Reader{Netlink: n, ownershipPath: ownershipPath}, nil
}

// AgentAddresses returns the agent's addresses on an interface, which the caller must not change; none if there is no
// such interface. It lists them, unless it has done so a short while ago and Watch has heard of no change since. On
// kernels that keep no tags it always does: the agent may have written the OwnershipFile since.
func (r *Reader) AgentAddresses(iface string) ([]netip.Prefix, error) {
	now := time.Now()
	if r.last.iface == iface && now.Sub(r.last.at) < listAgainAfter && r.known.isQuiet(r.last.at.Add(-quietTime)) {
		return r.last.addresses, nil
	}
	r.last = agentListing{}
	listed, haveTags, err := r.addresses(iface)
	if err != nil {
		return nil, err
	}
	var ofAgent []netip.Prefix
	for _, a := range listed {
		if a.IsOurs {
			ofAgent = append(ofAgent, a.Prefix)
		}
	}
	if haveTags {
		r.last = agentListing{iface, ofAgent, now}
	}
	return ofAgent, nil
}

// Addresses lists the addresses on an interface; none if there is no such interface. It lists nothing else
// of the node, which may have hundreds of thousands of routes. Only where the kernel has addresses
// without a tag, as kernels do that keep none, it reads the OwnershipFile.
func (r *Reader) Addresses(iface string) ([]plan.Address, error) {
	addresses, _, err := r.addresses(iface)
	return addresses, err
}

// addresses does what Addresses does, and reports whether all addresses have tags.
func (r *Reader) addresses(iface string) (addresses []plan.Address, haveTags bool, err error) {
	listed, err := r.listOn(iface)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	var recorded map[ownedAddress]bool
	for i := range listed {
		a := &listed[i]
		address, ok := toAddressWithoutInterface(a)
		if !ok {
			continue
		}
		address.Interface = iface
		if a.Protocol == 0 && recorded == nil {
			record, err := OpenOwnershipFile(r.ownershipPath)
			if err != nil {
				return nil, false, err
			}
			recorded = record.recorded
		}
		address.IsOurs = address.IsOurs || a.Protocol == 0 && recorded[ownedAddress{a.LinkIndex, address.Prefix}]
		addresses = append(addresses, address)
	}
	return addresses, recorded == nil, nil
}
