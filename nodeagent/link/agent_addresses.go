package link

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// OwnershipFileName is the name of the agent's OwnershipFile in the folder of what outlives the agent.
const OwnershipFileName = "addresses.json"

// Reader reads what the agent has added, for another program of the node.
type Reader struct {
	*Netlink
	ownershipPath string
}

// OpenReader opens a netlink socket. ownershipPath is the agent's OwnershipFile, which need not exist.
func OpenReader(ownershipPath string) (*Reader, error) {
	n, err := Open(nil)
	if err != nil {
		return nil, err
	}
	return &Reader{n, ownershipPath}, nil
}

// AgentAddresses lists the agent's addresses on an interface; none if there is no such interface.
func (r *Reader) AgentAddresses(iface string) ([]netip.Prefix, error) {
	addresses, err := r.Addresses(iface)
	var ofAgent []netip.Prefix
	for _, a := range addresses {
		if a.IsOurs {
			ofAgent = append(ofAgent, a.Prefix)
		}
	}
	return ofAgent, err
}

// Addresses lists the addresses on an interface; none if there is no such interface. It lists nothing else
// of the node, which may have hundreds of thousands of routes. Only where the kernel has addresses
// without a tag, as kernels do that keep none, it reads the OwnershipFile.
func (r *Reader) Addresses(iface string) ([]plan.Address, error) {
	listed, err := r.listOn(iface)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var recorded map[ownedAddress]bool
	var addresses []plan.Address
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
				return nil, err
			}
			recorded = record.recorded
		}
		address.IsOurs = address.IsOurs || a.Protocol == 0 && recorded[ownedAddress{a.LinkIndex, address.Prefix}]
		addresses = append(addresses, address)
	}
	return addresses, nil
}
