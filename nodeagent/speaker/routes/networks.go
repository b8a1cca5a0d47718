package routes

import (
	"net/netip"
	"slices"
)

// Network is a network that the node has on its virtual interface.
type Network struct {
	Prefix netip.Prefix
	// Lowest is the lowest of the node's addresses in the network.
	Lowest netip.Addr
}

// Networks returns the networks of the agent's addresses on the virtual interface, sorted. A network is
// there while any address of it is.
func Networks(addresses []netip.Prefix) []Network {
	byPrefix := map[netip.Prefix]netip.Addr{}
	for _, a := range addresses {
		network := a.Masked()
		if lowest, known := byPrefix[network]; !known || a.Addr().Less(lowest) {
			byPrefix[network] = a.Addr()
		}
	}
	networks := make([]Network, 0, len(byPrefix))
	for prefix, addr := range byPrefix {
		networks = append(networks, Network{prefix, addr})
	}
	slices.SortFunc(networks, func(a, b Network) int { return a.Prefix.Compare(b.Prefix) })
	return networks
}
