package main

import (
	"fmt"
	"net/netip"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// shape says which nodes share a link.
type shape string

const (
	// flat is one subnet with all nodes in it. Each node is a candidate for every Local
	// address, so each renews its Lease every second.
	flat shape = "flat"
	// racks is a subnet for every nodesPerRack nodes, and Local addresses in the first
	// rack's subnet: only that rack's nodes renew their Leases every second.
	racks shape = "racks"
)

const nodesPerRack = 50

// The pools: Virtual addresses for the changes that are measured, and Local addresses.
var (
	virtualPool   = netip.MustParsePrefix("10.200.0.0/16")
	firstMeasured = netip.MustParseAddr("10.200.255.0")
	flatSubnet    = netip.MustParsePrefix("10.80.0.0/16")
	flatLocal     = netip.MustParseAddr("10.80.255.1")
	rackSubnet    = netip.MustParsePrefix("10.80.0.0/24")
	rackLocal     = netip.MustParseAddr("10.80.0.201")
	localPoolSize = 50
)

const (
	virtualGroup = "default"
	localGroup   = "local"
)

// rack returns the number of the link that a node is on.
func (s shape) rack(node int) int {
	if s == racks {
		return node / nodesPerRack
	}
	return 0
}

// address returns a node's own address, with its subnet's mask.
func (s shape) address(node int) netip.Prefix {
	if s == racks {
		rack := s.rack(node)
		return netip.PrefixFrom(
			netip.AddrFrom4([4]byte{10, byte(80 + rack/250), byte(rack % 250), byte(1 + node%nodesPerRack)}), 24,
		)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 80, byte(node / 250), byte(1 + node%250)}), 16)
}

// gateway returns the gateway of a node's link.
func (s shape) gateway(node int) netip.Addr {
	subnet := s.address(node).Masked().Addr().As4()
	if s == racks {
		return netip.AddrFrom4([4]byte{subnet[0], subnet[1], subnet[2], 254})
	}
	return netip.AddrFrom4([4]byte{10, 80, 254, 254})
}

// pools returns the ServiceGroups, by name.
func (s shape) pools() map[string]v1.ServiceGroupSpec {
	subnet, first := flatSubnet, flatLocal
	if s == racks {
		subnet, first = rackSubnet, rackLocal
	}
	last := first.As4()
	last[3] += byte(localPoolSize - 1)
	return map[string]v1.ServiceGroupSpec{
		virtualGroup: {Remote: &v1.RemotePools{PoolSet: pool(virtualPool.String(), virtualPool.String())}},
		localGroup: {
			Local: &v1.LocalPools{PoolSet: pool(fmt.Sprintf("%s-%s", first, netip.AddrFrom4(last)), subnet.String())},
		},
	}
}

// loadPool returns the pool of Virtual addresses of a load with a number.
func loadPool(number int) v1.ServiceGroupSpec {
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(201 + number), 0, 0}), 16).String()
	return v1.ServiceGroupSpec{Remote: &v1.RemotePools{PoolSet: pool(prefix, prefix)}}
}

func pool(pool, subnet string) v1.PoolSet {
	return v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: pool, Subnet: subnet}}}
}

// nodeName returns the name of the node with a number.
func nodeName(node int) string { return fmt.Sprintf("node%04d", node) }

// mac returns the MAC address of a node's interface.
func mac(node int) [6]byte { return [6]byte{2, 0, 0, 0, byte(node >> 8), byte(node)} }
