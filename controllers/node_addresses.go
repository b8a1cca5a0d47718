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
	addressesOfNode := func(node string) *allocation.NodeAddresses {
		i, exists := indexByNode[node]
		if !exists {
			i = len(all)
			indexByNode[node], all = i, append(all, allocation.NodeAddresses{Node: node})
		}
		return &all[i]
	}
	for i := range nodes {
		n := addressesOfNode(nodes[i].Name)
		for _, a := range nodes[i].Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil { // the others are host names
				n.Confirmed = append(n.Confirmed, addr)
			}
		}
	}
	for i := range announcements {
		n := addressesOfNode(announcements[i].Spec.NodeName)
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
