package controllers

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// nodeAddresses collects the addresses of each node, from its Node object and from what
// its agent reports.
func nodeAddresses(nodes []corev1.Node, announcements []v1.Announcement) []allocation.NodeAddresses {
	indexByNode := map[string]int{}
	var all []allocation.NodeAddresses
	entryOf := func(node string) *allocation.NodeAddresses {
		i, exists := indexByNode[node]
		if !exists {
			i = len(all)
			indexByNode[node], all = i, append(all, allocation.NodeAddresses{Node: node})
		}
		return &all[i]
	}
	for i := range nodes {
		n := entryOf(nodes[i].Name)
		n.Confirmed = append(n.Confirmed, addressesOfNode(&nodes[i])...)
	}
	for i := range announcements {
		n := entryOf(announcements[i].Spec.NodeName)
		for _, iface := range announcements[i].Status.Interfaces {
			for _, s := range iface.Subnets {
				// A subnet without host bits is an on-link route, not an address of the node.
				// The longest prefixes leave no room for host bits: each counts as an address.
				if p, err := netip.ParsePrefix(s); err == nil && (p != p.Masked() || p.Bits() >= p.Addr().BitLen()-1) {
					n.Own = append(n.Own, p.Addr())
				}
			}
			for _, g := range iface.Gateways {
				if addr, err := netip.ParseAddr(g); err == nil {
					n.Gateways = append(n.Gateways, addr)
				}
			}
		}
	}
	return all
}

// addressesOfNode are the addresses that a Node object says the node has.
func addressesOfNode(n *corev1.Node) []netip.Addr {
	var addresses []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // the others are host names
			addresses = append(addresses, addr.Unmap())
		}
	}
	return addresses
}
