package routes

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Network is a network that the node has on its virtual interface.
type Network struct {
	Prefix netip.Prefix
	// Addresses are those that the node has in the network, ascending; never empty.
	Addresses []netip.Addr
}

// Networks returns the networks of the agent's addresses on the virtual interface, sorted. A network is
// there while any address of it is.
func Networks(addresses []netip.Prefix) []Network {
	byPrefix := map[netip.Prefix][]netip.Addr{}
	for _, a := range addresses {
		network := a.Masked()
		byPrefix[network] = append(byPrefix[network], a.Addr())
	}
	networks := make([]Network, 0, len(byPrefix))
	for prefix, addrs := range byPrefix {
		slices.SortFunc(addrs, netip.Addr.Compare)
		networks = append(networks, Network{prefix, addrs})
	}
	slices.SortFunc(networks, func(a, b Network) int { return a.Prefix.Compare(b.Prefix) })
	return networks
}

// HasLostAddress reports whether some address of networks is not among the agent's addresses any more, whatever its
// prefix length.
func HasLostAddress(before []Network, addresses []netip.Prefix) bool {
	isThere := make(map[netip.Addr]bool, len(addresses))
	for _, a := range addresses {
		isThere[a.Addr()] = true
	}
	return slices.ContainsFunc(before, func(n Network) bool {
		return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return !isThere[a] })
	})
}

// without returns the networks as they would be if the node did not have some addresses.
func without(networks []Network, ignored []netipx.IPRange) []Network {
	if len(ignored) == 0 {
		return networks
	}
	var rest []Network
	for _, n := range networks {
		n.Addresses = slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool {
			return slices.ContainsFunc(ignored, func(r netipx.IPRange) bool { return r.Contains(a) })
		})
		if len(n.Addresses) > 0 {
			rest = append(rest, n)
		}
	}
	return rest
}
