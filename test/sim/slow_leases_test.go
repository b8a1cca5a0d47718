package sim

import (
	"context"
	"net/netip"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// slowLeases returns what makes a cluster with the feature gate SlowLeases.
func slowLeases(nodes int) func(*World) (*Cluster, error) {
	return func(w *World) (*Cluster, error) {
		c, err := NewCluster(w, nodes)
		if err == nil {
			c.SlowLeases = true
		}
		return c, err
	}
}

// heartbeats returns how often each agent is to renew its Lease, in seconds.
func (h *History) heartbeats(t *testing.T) map[string]int32 {
	t.Helper()
	list, seconds := &v1.AnnouncementList{}, map[string]int32{}
	if err := h.Admin.List(context.Background(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if a := &list.Items[i]; a.Name == a.Spec.NodeName {
			seconds[a.Name] = a.Spec.HeartbeatSeconds
		}
	}
	return seconds
}

// leaseOf returns what the Lease of a node says.
func (h *History) leaseOf(t *testing.T, n *Node) (renewedAt time.Time, lasts time.Duration) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := h.Admin.Get(
		context.Background(), client.ObjectKey{Namespace: Namespace, Name: v1.LeasePrefix + n.Name}, lease,
	); err != nil {
		t.Fatal(err)
	}
	return lease.Spec.RenewTime.Time, time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
}

// expectHeartbeats fails unless each agent is to renew its Lease so often.
func (h *History) expectHeartbeats(t *testing.T, when string, seconds int32) {
	t.Helper()
	have := h.heartbeats(t)
	if len(have) != len(h.Nodes) {
		t.Errorf("%s: heartbeats of %v", when, have)
	}
	for node, s := range have {
		if s != seconds {
			t.Errorf("%s: the agent of %s is to renew its Lease each %d s, want %d", when, node, s, seconds)
		}
	}
}

// adoptedBy returns the node to which the manager has given an address by its claim, by its highest epoch.
func (h *History) adoptedBy(t *testing.T, addr netip.Addr) (node string) {
	t.Helper()
	list, epoch := &v1.AnnouncementList{}, int64(0)
	if err := h.Admin.List(context.Background(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		for _, e := range list.Items[i].Spec.Addresses {
			if e.Address == addr.String() && e.Epoch > epoch {
				node, epoch = list.Items[i].Spec.NodeName, e.Epoch
			}
		}
	}
	return node
}

// With the feature gate SlowLeases agents renew their Leases each second while addresses are new, and each ten seconds
// when other nodes have watched them for a while. A node that dies loses its addresses as soon as it otherwise would,
// to the client and to the manager, and nothing moves when it is back. In the end all Leases are slow again.
func TestSlowLeases(t *testing.T) {
	playScenarioIn(t, 2, slowLeases(4), func(t *testing.T, h *History) {
		h.createLocal(4)
		h.expectHeartbeats(t, "with new addresses", 1)
		h.Run(time.Minute)
		h.expectHeartbeats(t, "with watched addresses", 10)
		before := h.holders()
		renewals := map[*Node]map[time.Time]bool{}
		for range 600 {
			for _, n := range h.Nodes {
				at, lasts := h.leaseOf(t, n)
				if renewals[n] == nil {
					renewals[n] = map[time.Time]bool{}
				}
				renewals[n][at] = true
				if lasts != 30*time.Second {
					t.Fatalf("the Lease of %s lasts %s", n.Name, lasts)
				}
			}
			h.Run(100 * time.Millisecond)
		}
		for n, at := range renewals {
			if len(at) < 6 || len(at) > 7 {
				t.Errorf("%s has renewed its Lease %d times in a minute", n.Name, len(at))
			}
		}

		dead := h.Nodes[2] // managers run on the first two
		h.laws.isStrict = true
		h.losePower(dead)
		h.Run(5 * time.Second)
		for addr, holders := range before {
			now := h.holder(t, addr)
			if holders[0] == dead && h.adoptedBy(t, addr) != now.Name {
				t.Errorf("%s is on %s, and still given to %s", addr, now.Name, h.adoptedBy(t, addr))
			}
		}
		h.laws.isStrict = false
		h.Run(time.Minute)
		moved := h.holders()
		h.endTrouble("no power " + dead.Name)
		h.Run(2 * time.Minute)
		if again := h.moved(moved); len(again) > 0 {
			t.Errorf("%v have moved, as a node is back", again)
		}
		h.expectHeartbeats(t, "in the end", 10)
	})
}

// A node, and both nodes that watch it, lose their power at once. The one that is left has their addresses before
// their slow Leases would have expired, as it has watched one of them.
func TestSlowLeasesOfWatchersThatDie(t *testing.T) {
	playScenarioIn(t, 2, slowLeases(7), func(t *testing.T, h *History) {
		h.createLocal(6)
		h.Run(time.Minute)
		h.expectHeartbeats(t, "with watched addresses", 10)
		for _, n := range h.Nodes[:3] {
			h.losePower(n)
		}
		h.Run(25 * time.Second)
		h.expectReached(t)
	})
}

// The agent of a node whose Lease is slow is killed, and starts again, and is cut off the API server. The node keeps
// what it has.
func TestSlowLeasesOfAgentInTrouble(t *testing.T) {
	playScenarioIn(t, 2, slowLeases(4), func(t *testing.T, h *History) {
		h.createLocal(4)
		h.Run(time.Minute)
		before := h.holders()
		n := h.Nodes[0]
		h.begin(nil, "no agent", []*Node{n}, doing(n.KillAgent), n.StartAgent)
		h.Run(time.Minute)
		h.endTrouble("no agent " + n.Name)
		h.Run(time.Minute)
		h.begin(nil, "cut off the API server", []*Node{n},
			doing(func() { n.SetCut(true) }), doing(func() { n.SetCut(false) }))
		h.Run(30 * time.Second)
		h.endTrouble("cut off the API server " + n.Name)
		h.Run(time.Minute)
		if moved := h.moved(before); len(moved) > 0 || len(before) != 8 {
			t.Errorf("%v of %d have moved", moved, len(before))
		}
		h.expectHeartbeats(t, "in the end", 10)
	})
}
