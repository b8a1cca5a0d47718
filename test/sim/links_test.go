package sim

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// createOn creates Services with a Local address of each family of each segment, and waits until nodes have those.
func (h *History) createOn(count int) {
	for range count {
		for _, s := range h.Segments {
			h.create(Service{Group: s.Group, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}})
		}
	}
	h.Run(10 * time.Second)
}

// The interfaces of a node get each other's links and addresses. Its addresses change to the right one, or to
// another node, and are never on both.
func TestRenumberedNode(t *testing.T) {
	playScenarioIn(t, 2, NewTwoLinkCluster, func(t *testing.T, h *History) {
		h.createOn(3)
		n, moved := h.Nodes[1], 0
		before := map[netip.Addr]string{}
		for addr := range h.laws.owners {
			before[addr] = n.interfaceWith(addr)
		}
		renumber := doing(n.Renumber)
		h.begin(joined{h.laws.unreached, h.laws.rewired, h.laws.renumbered}, "renumbered", []*Node{n}, renumber, renumber)
		h.Run(time.Minute)
		for addr, iface := range before {
			if now := n.interfaceWith(addr); iface != "" && now != "" && now != iface {
				moved++
			}
		}
		if moved == 0 {
			t.Errorf("no address has changed its interface: %v", before)
		}
	})
}

// interfaceWith returns the interface of a node that has an address; empty for none.
func (n *Node) interfaceWith(addr netip.Addr) string {
	for _, c := range n.NICs {
		if n.Kernel.Has(c.Name, addr) {
			return c.Name
		}
	}
	return ""
}

// A node loses the carrier of the second of its two interfaces, which has addresses. Those of the other one stay where
// they are.
func TestOneOfTwoCarriersLost(t *testing.T) {
	playScenarioIn(t, 2, NewTwoLinkCluster, func(t *testing.T, h *History) {
		h.createOn(3)
		before, holdsBySecond := h.holders(), func(n *Node) bool {
			for addr := range h.laws.owners {
				if len(n.NICs) > 1 && n.interfaceWith(addr) == n.NICs[1].Name {
					return true
				}
			}
			return false
		}
		n := h.Nodes[slices.IndexFunc(h.Nodes, holdsBySecond)]
		c, other := n.NICs[1], n.NICs[0].segment
		h.begin(h.laws.unreached.on(c.segment.Link), "no carrier", []*Node{n},
			doing(func() { n.SetCarrier(c, false) }), doing(func() { n.SetCarrier(c, true) }))
		h.Run(30 * time.Second)
		left := 0
		for _, addr := range h.moved(before) {
			left++
			if other.contains(addr) {
				t.Errorf("%s has moved, whose link nothing is wrong with", addr)
			}
		}
		if left == 0 {
			t.Error("no address has left the interface without a carrier")
		}
	})
}
