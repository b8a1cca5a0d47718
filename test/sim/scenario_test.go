package sim

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// playScenario plays something in a cluster of three nodes, by the laws that histories have, once for each
// of some seeds.
func playScenario(t *testing.T, seeds uint64, do func(t *testing.T, h *History)) {
	t.Helper()
	for seed := range seeds {
		var story strings.Builder
		synctest.Test(t, func(t *testing.T) {
			c, err := NewCluster(NewWorld(seed, &story), 3)
			if err != nil {
				t.Fatal(err)
			}
			defer c.End()
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			h := newHistory(c, Profile{MaxTroubles: 3})
			h.Run(10 * time.Second)
			do(t, h)
			violations, err := h.finish()
			for _, v := range violations {
				t.Error(v)
			}
			if err != nil {
				t.Error(err)
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, &story)
		}
	}
}

// createLocal creates Services with a Local address of each family, and waits until nodes have those.
func (h *History) createLocal(count int) {
	for range count {
		h.create(Service{Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}})
	}
	h.Run(10 * time.Second)
}

// leader returns the replica that leads.
func (h *History) leader(t *testing.T) *Replica {
	t.Helper()
	for _, r := range h.Replicas {
		if r.IsLeading() {
			return r
		}
	}
	t.Fatal("none leads")
	return nil
}

// moved returns the addresses that have other holders than before.
func (h *History) moved(before map[netip.Addr][]*Node) (addrs []netip.Addr) {
	for addr, nodes := range before {
		if now := h.HoldersOf(addr); len(now) != 1 || len(nodes) != 1 || now[0] != nodes[0] {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// holders returns the holders of all addresses.
func (h *History) holders() map[netip.Addr][]*Node {
	all := map[netip.Addr][]*Node{}
	for addr := range h.laws.owners {
		all[addr] = h.HoldersOf(addr)
	}
	return all
}

// Most nodes are cut off the API server, which goes on answering managers and one node. They keep their
// addresses, although their Leases expire and they are not ready.
func TestMostNodesCutOff(t *testing.T) {
	playScenario(t, 3, func(t *testing.T, h *History) {
		h.createLocal(4)
		before := h.holders()
		for _, n := range h.Nodes[1:] {
			n.SetCut(true)
		}
		h.Run(3 * time.Minute)
		if moved := h.moved(before); len(moved) > 0 || len(before) != 8 {
			t.Errorf("%v of %d have moved", moved, len(before))
		}
		for _, n := range h.Nodes[1:] {
			n.SetCut(false)
		}
	})
}

// Nothing moves in a quarter of an hour in which nothing happens, in which the lifetimes of addresses end.
func TestNothingMovesWhileNothingHappens(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		h.createLocal(4)
		before := h.holders()
		h.Run(15 * time.Minute)
		if moved := h.moved(before); len(moved) > 0 || len(before) != 8 {
			t.Errorf("%v of %d have moved", moved, len(before))
		}
	})
}

// A leader is paused in a request by which it moves addresses, another one leads and moves them elsewhere, and
// the first one goes on with its request.
func TestLeaderPausedInMove(t *testing.T) {
	playScenario(t, 20, func(t *testing.T, h *History) {
		h.createLocal(4)
		exclude := func(n *Node) {
			h.begin(h.laws.left, "excluded", []*Node{n},
				func() error { return h.SetExcluded(n, true) }, func() error { return h.SetExcluded(n, false) })
		}
		m := h.leader(t).Manager
		exclude(h.Nodes[0])
		h.Run(h.Between(20*time.Millisecond, 80*time.Millisecond))
		m.PauseInRequest()
		h.Run(time.Second)
		exclude(h.Nodes[1])
		h.Run(h.Between(5500*time.Millisecond, 6500*time.Millisecond))
		m.Resume()
		h.Run(time.Second)
		h.endTrouble("excluded node1")
		h.Run(10 * time.Second)
	})
}
