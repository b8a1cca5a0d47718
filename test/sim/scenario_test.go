package sim

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// playScenario plays something in a cluster of three nodes, by the laws that histories have, once for each
// of some seeds.
func playScenario(t *testing.T, seeds uint64, do func(t *testing.T, h *History)) {
	t.Helper()
	playScenarioIn(t, seeds, func(w *World) (*Cluster, error) { return NewCluster(w, 3) }, do)
}

// playScenarioIn does so in another cluster.
func playScenarioIn(
	t *testing.T, seeds uint64, newCluster func(*World) (*Cluster, error), do func(t *testing.T, h *History),
) {
	t.Helper()
	for seed := range seeds {
		var story strings.Builder
		synctest.Test(t, func(t *testing.T) {
			c, err := newCluster(NewWorld(seed, &story))
			if err != nil {
				t.Fatal(err)
			}
			defer c.End()
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			h := newHistory(c, Profile{MaxTroubles: 3, HasRouters: len(c.Routers) > 0})
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
		h.begin(nil, "cut off the API server", h.Nodes[1:], doing(func() {
			for _, n := range h.Nodes[1:] {
				n.SetCut(true)
			}
		}), doing(func() {
			for _, n := range h.Nodes[1:] {
				n.SetCut(false)
			}
		}))
		h.Run(3 * time.Minute)
		if moved := h.moved(before); len(moved) > 0 || len(before) != 8 {
			t.Errorf("%v of %d have moved", moved, len(before))
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

// A leader is paused when it is about to write that a node gets an address of another node, and another leader gives
// the address to a third node meanwhile. It goes on with its write, which gives nobody the other's epoch. The node
// that has the address has the last name: its Announcement is written first nevertheless.
func TestLeaderPausedInClaim(t *testing.T) {
	playScenario(t, 3, func(t *testing.T, h *History) {
		exclude := func(n *Node) {
			h.begin(h.laws.left, "excluded", []*Node{n},
				func() error { return h.SetExcluded(n, true) }, func() error { return h.SetExcluded(n, false) })
		}
		exclude(h.Nodes[0])
		exclude(h.Nodes[1])
		h.create(Service{Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
		h.Run(10 * time.Second)
		h.endTrouble("excluded node1")
		h.endTrouble("excluded node2")
		h.Run(10 * time.Second)
		m, claimant := h.leader(t).Manager, ""
		m.pausesBy = func(r apiserver.Request) bool {
			isClaim := r.Kind.Kind == "Announcement" && !strings.HasPrefix(r.Key.Name, "node3")
			if isClaim {
				claimant = r.Key.Name
			}
			return isClaim
		}
		exclude(h.Nodes[2])
		h.Run(time.Second)
		if !m.isPaused() {
			t.Fatal("the leader gives the address to no node")
		}
		for _, n := range h.Nodes {
			if strings.HasPrefix(claimant, n.Name) {
				h.starve(n)
			}
		}
		h.Run(30 * time.Second)
		m.Resume()
		h.Run(10 * time.Second)
	})
}

// expectReached fails unless the client reaches all addresses, whatever is wrong.
func (h *History) expectReached(t *testing.T) {
	t.Helper()
	if len(h.laws.owners) == 0 {
		t.Error("there are no addresses")
	}
	for addr := range h.laws.owners {
		if !h.SegmentOf(addr).client.reaches(addr, h.HoldersOf(addr)) {
			t.Errorf("the client does not reach %s", addr)
		}
	}
}

// A node boots within a second, without its checkpoint, and the API server, which is busy, refuses all that its
// agent reads. It takes the Lease, as requests of that kind come first (API Priority and Fairness). The agent knows
// of no address, and does not look alive: other nodes have its addresses soon.
func TestAgentBlindFromBoot(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		h.createLocal(4)
		n := h.Nodes[0]
		h.begin(h.laws.unreached, "boots, with a blind agent", []*Node{n}, doing(func() {
			h.PowerOff(n)
			n.SetBlind(true)
			clear(n.Disk.files)
		}), doing(func() { n.SetBlind(false) }))
		h.Run(500 * time.Millisecond)
		h.note(h.PowerOn(n))
		h.Run(6 * time.Second) // of which its Lease is valid for three
		h.expectReached(t)
	})
}

// The kernel of a node does not answer any more when its agent asks for its addresses. The agent does not look
// alive: other nodes have its addresses before their lifetimes end.
func TestKernelHangs(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		h.createLocal(4)
		n := h.Nodes[0]
		h.begin(h.laws.unreached, "the kernel hides its addresses", []*Node{n},
			doing(func() { n.HidesAddresses = true }), doing(func() { n.HidesAddresses = false }))
		h.Run(6 * time.Minute)
		h.expectReached(t)
	})
}

// Users write policy Local, and do not know that of a Local address the node without endpoints would lose all.
func TestPolicyLocalNotMeant(t *testing.T) {
	playScenario(t, 3, func(_ *testing.T, h *History) {
		for range 3 {
			h.create(Service{
				Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}, WritesPolicyLocal: true,
			})
		}
		h.Run(10 * time.Second)
	})
}

// Agents are cut off the API server while a Service is deleted, and do not learn of it. Its node gives the address up,
// and loses its power a while later: none of those that were to follow it takes the address.
func TestDeletedAddressStaysAway(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		h.create(Service{Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
		h.Run(30 * time.Second)
		addrs := slices.Collect(maps.Keys(h.laws.owners))
		var holders, others []*Node
		for _, n := range h.Nodes {
			if slices.ContainsFunc(addrs, n.Holds) {
				holders = append(holders, n)
			} else {
				others = append(others, n)
			}
		}
		if len(holders) != 1 {
			t.Fatalf("%v is held by %v", addrs, namesOf(holders))
		}
		h.starve(others...)
		h.Run(5 * time.Second)
		h.deleteService()
		h.Run(40 * time.Second) // in which they ask for it again
		h.losePower(holders[0])
		h.Run(10 * time.Second)
		for _, addr := range addrs {
			if now := h.HoldersOf(addr); len(now) > 0 {
				t.Errorf("%s of a Service that was deleted is held by %v", addr, namesOf(now))
			}
		}
	})
}

// A node is split off the link. It gets no address of a node that it does not hear any more. Others get its own, and
// each address is on one node soon after the link is whole again.
func TestSplitAndHealed(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		h.createLocal(4)
		h.Run(30 * time.Second)
		before, n, link := h.holders(), h.Nodes[0], h.Segments[0]
		h.begin(h.laws.unreached, "the link is split", []*Node{n},
			doing(func() { link.Split([]*Port{n.portOn(link)}, true) }),
			doing(func() { link.Split([]*Port{n.portOn(link)}, false) }))
		for range 100 {
			h.Run(100 * time.Millisecond)
			for addr, nodes := range before {
				if n.Holds(addr) && !slices.Contains(nodes, n) {
					t.Fatalf("%s, which hears nobody, has got %s", n.Name, addr)
				}
			}
		}
		for addr := range before {
			if !slices.ContainsFunc(h.Nodes[1:], func(other *Node) bool { return other.Holds(addr) }) {
				t.Errorf("%s is held by %v", addr, namesOf(h.HoldersOf(addr)))
			}
		}
		h.endTrouble("the link is split node1")
		h.Run(time.Second)
		for addr := range before {
			if now := h.HoldersOf(addr); len(now) != 1 {
				t.Errorf("%s is held by %v a second after the link is whole again", addr, namesOf(now))
			}
		}
	})
}

// starve keeps the agents of nodes from the API server, whose answers they wait for, as a trouble.
func (h *History) starve(nodes ...*Node) {
	set := func(isStarved bool) func() error {
		return doing(func() {
			for _, n := range nodes {
				n.isAgentStarved = isStarved
				n.SetCut(n.isCut)
			}
		})
	}
	h.begin(nil, "starved agents", nodes, set(true), set(false))
}

// losePower powers a node off, as a trouble.
func (h *History) losePower(n *Node) {
	h.begin(h.laws.unreached, "no power", []*Node{n},
		doing(func() { h.PowerOff(n) }), func() error { return h.PowerOn(n) })
}

// holder returns the node that holds an address.
func (h *History) holder(t *testing.T, addr netip.Addr) *Node {
	t.Helper()
	holders := h.HoldersOf(addr)
	if len(holders) != 1 {
		t.Fatalf("%s is held by %v", addr, namesOf(holders))
	}
	return holders[0]
}

// createWatched creates a Service with one Local address, and waits until other nodes watch the node that gets it.
func (h *History) createWatched() netip.Addr {
	h.create(Service{Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
	h.Run(30 * time.Second)
	for addr := range h.laws.owners {
		return addr
	}
	return netip.Addr{}
}

// A station on the link begins to answer for an address, and the node that has the address loses its power a moment
// later. Nobody claims the address until that station is gone.
func TestTakenAddressIsNotClaimed(t *testing.T) {
	playScenario(t, 2, func(t *testing.T, h *History) {
		addr := h.createWatched()
		n, stranger := h.holder(t, addr), h.SegmentOf(addr).stranger
		stranger.has[addr] = time.Now()
		h.Run(h.Between(time.Second, 2*time.Second))
		h.losePower(n)
		h.Run(20 * time.Second)
		if now := h.HoldersOf(addr); len(now) > 0 {
			t.Errorf("%s, for which a stranger answers, is held by %v", addr, namesOf(now))
		}
		delete(stranger.has, addr)
		h.Run(30 * time.Second)
		h.expectReached(t)
	})
}

// The API server hangs: requests of agents get no answer, and no error either. A node loses its power meanwhile.
// The client reaches its addresses as soon as it would otherwise.
func TestHungServerDelaysNoClaim(t *testing.T) {
	playScenario(t, 2, func(_ *testing.T, h *History) {
		h.createLocal(4)
		h.Run(30 * time.Second)
		h.laws.isStrict = true
		h.starve(h.Nodes...)
		h.Run(h.Between(3*time.Second, 6*time.Second))
		h.losePower(h.Nodes[0])
		h.Run(10 * time.Second)
		h.laws.isStrict = false
	})
}

// The API server is away. The node that has an address loses its power, and then the one that has claimed it is
// split off the link, and keeps it. Each of the two successors claims the address once, and nothing moves when the
// others are back, though two of them have the address then.
func TestMovesWithoutManager(t *testing.T) {
	// Of three nodes the last one would have no witness.
	fourNodes := func(w *World) (*Cluster, error) { return NewCluster(w, 4) }
	playScenarioIn(t, 2, fourNodes, func(t *testing.T, h *History) {
		addr := h.createWatched()
		h.begin(nil, "the API server is away", nil, doing(func() { h.SetAway(true) }), doing(func() { h.SetAway(false) }))
		h.Run(5 * time.Second)
		first := h.holder(t, addr)
		h.losePower(first)
		h.Run(10 * time.Second)
		second, link := h.holder(t, addr), h.SegmentOf(addr)
		side := []*Port{second.portOn(link)}
		h.begin(h.laws.unreached, "the link is split", []*Node{second},
			doing(func() { link.Split(side, true) }), doing(func() { link.Split(side, false) }))
		h.Run(10 * time.Second)
		if now := h.HoldersOf(addr); len(now) != 2 {
			t.Fatalf("%s is held by %v", addr, namesOf(now))
		}
		h.endTrouble("the link is split " + second.Name)
		h.Run(20 * time.Second)
		h.endTrouble("no power " + first.Name)
		h.Run(20 * time.Second)
		if now := h.holder(t, addr); now == first || now == second {
			t.Errorf("%s has moved to %s, which is back", addr, now.Name)
		}
		if count := h.laws.claims.count[addr]; count != 2 {
			t.Errorf("%s was claimed %d times", addr, count)
		}
	})
}

// The API server is away, and the agents of all nodes start anew, one of them when its node has booted. They go by
// their checkpoints: the addresses stay for longer than their lifetimes are, and the node that has booted takes its own
// again.
func TestAgentsStartWithoutAPIServer(t *testing.T) {
	playScenario(t, 1, func(t *testing.T, h *History) {
		h.createLocal(4)
		before := h.holders()
		h.begin(h.laws.unreached, "the API server is away", nil,
			doing(func() { h.SetAway(true) }), doing(func() { h.SetAway(false) }))
		for _, n := range h.Nodes[1:] {
			n.KillAgent() // before the power goes: their agents would claim the addresses of the first node
		}
		h.PowerOff(h.Nodes[0])
		h.Run(time.Second)
		h.note(h.PowerOn(h.Nodes[0]))
		for _, n := range h.Nodes[1:] {
			h.note(n.StartAgent())
		}
		h.Run(15 * time.Minute)
		if moved := h.moved(before); len(moved) > 0 || len(before) != 8 {
			t.Errorf("%v of %d have moved", moved, len(before))
		}
		h.endTrouble("the API server is away")
	})
}
