package sim

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// playWithRouters plays something in a cluster with routers, in which Services have Virtual addresses of each
// family, some of policy Local.
func playWithRouters(t *testing.T, do func(t *testing.T, h *History)) {
	t.Helper()
	const seeds = 1
	newCluster := func(w *World) (*Cluster, error) { return NewClusterWithRouters(w, 3) }
	playScenarioIn(t, seeds, newCluster, func(t *testing.T, h *History) {
		for i := range 4 {
			h.create(Service{
				Group: GroupVirtual, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IsPolicyLocal: i == 3,
			})
		}
		h.Run(settledSoon)
		for _, s := range h.services {
			if !h.isAdvertised(t, s) {
				t.Errorf("%s is not advertised", s.Name)
			}
		}
		do(t, h)
	})
}

// settledSoon is how long it takes that new Services are as they are to be.
const settledSoon = 40 * time.Second

// isAdvertised reports whether a Service says so, and whether that is true.
func (h *History) isAdvertised(t *testing.T, s *service) bool {
	t.Helper()
	for _, what := range h.routing.falsehoodsOfService(s) {
		t.Error(what)
	}
	addrs, err := h.Addresses(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	return len(addrs) > 0 && (len(h.Routers[0].SendsTo(addrs[0])) > 0 || len(h.Routers[1].SendsTo(addrs[0])) > 0)
}

// A node that is left loses no packet: routers send elsewhere before it drops the addresses, and to it again only
// when it has them.
func TestRoutersOfNodeThatIsLeft(t *testing.T) {
	playWithRouters(t, func(_ *testing.T, h *History) {
		for _, n := range h.Nodes[:2] {
			h.begin(h.laws.left, "excluded", []*Node{n},
				func() error { return h.SetExcluded(n, true) }, func() error { return h.SetExcluded(n, false) })
			h.Run(20 * time.Second)
			h.endTrouble("excluded " + n.Name)
			h.Run(20 * time.Second)
		}
	})
}

// A router has many routes, and takes seconds to send by those that it has learnt. A node that is left keeps its
// addresses until that router sends elsewhere, too.
func TestSlowRouterOfNodeThatIsLeft(t *testing.T) {
	playWithRouters(t, func(_ *testing.T, h *History) {
		n := h.Nodes[0]
		h.Routers[0].InstallsAfter = 7 * time.Second
		h.begin(h.laws.left, "excluded", []*Node{n},
			func() error { return h.SetExcluded(n, true) }, func() error { return h.SetExcluded(n, false) })
		h.Run(settledSoon)
		h.Routers[0].InstallsAfter = 0 // it may send to nodes without an endpoint as long as it takes
		h.endTrouble("excluded " + n.Name)
		h.Run(settledSoon)
	})
}

// Speakers that are replaced, and one that crashes, cost no route.
func TestRoutersOfSpeakersThatRestart(t *testing.T) {
	playWithRouters(t, func(_ *testing.T, h *History) {
		h.upgradeSpeakers()
		h.Run(time.Minute)
		h.Nodes[1].killSpeakers()
		h.Run(time.Minute)
	})
}

// Settings of a BGPPeer that need new sessions, and those of a ServiceGroup, cost no route, and concern one node at
// a time.
func TestRoutersWhoseSettingsChange(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		last := len(h.services) - 1 // of policy Local, for which there are routes of single addresses
		h.note(h.DeleteService(h.services[last].Service))
		h.services = h.services[:last]
		h.Run(10 * time.Second)
		err := h.EditPeer(0, func(s *v1.BGPPeerSpec) { s.HoldTime = &metav1.Duration{Duration: 12 * time.Second} })
		h.Run(time.Minute)
		if err == nil {
			err = h.EditRemoteGroup(func(s *v1.ServiceGroupSpec) { s.Remote.V4Pools[0].Aggregation = "/32" })
		}
		h.Run(time.Minute)
		if err == nil {
			err = h.EditRemoteGroup(func(s *v1.ServiceGroupSpec) { s.Remote.V4Pools[0].Aggregation = "/28" })
		}
		h.Run(time.Minute)
		if err != nil {
			t.Error(err)
		}
	})
}

// Endpoints of a Service of policy Local go from node to node, and the routes with them.
func TestRoutersOfEndpointsThatMove(t *testing.T) {
	playWithRouters(t, func(_ *testing.T, h *History) {
		for range 4 {
			h.setEndpoints(h.services[3])
			h.Run(20 * time.Second)
		}
	})
}

// The only node with an endpoint of a Service of policy Local is cut off a router, which then has no other route to the
// address than those of the network that the other nodes advertise.
func TestRoutersOfEndpointThatIsCutOff(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		n, r, s := h.Nodes[0], h.Routers[1], h.services[3]
		h.setEndpointsOn(s, []*Node{n})
		h.Run(settledSoon)
		set := func(isCut bool) func() error {
			return doing(func() { r.segment.Cut(n.portOn(r.segment), r.port, isCut) })
		}
		h.begin(h.routing.unrouted[r], "cut off router", []*Node{n}, set(true), set(false))
		h.Run(longTrouble)
		for _, addr := range h.addressesOf(t)[s.Name] {
			if slices.Contains(r.SendsTo(addr), n) {
				t.Errorf("%s sends to a node that it does not hear, what comes for %s", r.port.name, addr)
			}
		}
		h.endTrouble("cut off router " + n.Name)
		h.Run(time.Minute)
	})
}

// Routes by way of a node that has lost its power are gone when the hold time is over or, with BFD, after a second;
// those of one that comes back soon are not used before it has the addresses.
func TestRoutersOfNodeWithoutPower(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		for _, while := range []time.Duration{30 * time.Second, 4 * time.Second} {
			n := h.Nodes[0]
			h.begin(h.laws.unreached, "no power", []*Node{n},
				doing(func() { h.PowerOff(n) }), func() error { return h.PowerOn(n) })
			h.Run(while)
			h.endTrouble("no power " + n.Name)
			h.Run(time.Minute)
		}
	})
}

// While all routers are away Services say that they are not advertised, and afterwards that they are.
func TestRoutersAway(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		for _, r := range h.Routers {
			h.begin(h.routing.unrouted[r], "no power: "+r.port.name, nil, doing(r.Crash), doing(r.Restart))
		}
		h.Run(time.Minute)
		for _, s := range h.services {
			if h.isAdvertised(t, s) {
				t.Errorf("%s is advertised", s.Name)
			}
		}
		for _, r := range h.Routers {
			h.endTrouble("no power: " + r.port.name)
		}
		h.Run(time.Minute)
		for _, s := range h.services {
			if !h.isAdvertised(t, s) {
				t.Errorf("%s is not advertised", s.Name)
			}
		}
	})
}

// A node loses its power that had the only endpoint of a Service. Its speaker reports no more, and what it reported
// last is not said of the Service once the node's condition is Unknown.
func TestRoutesOfDeadNodeAreNotReported(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		n, s := h.Nodes[0], h.services[3]
		h.setEndpointsOn(s, []*Node{n})
		h.Run(settledSoon)
		if !h.isAdvertised(t, s) {
			t.Errorf("%s is not advertised", s.Name)
		}
		h.begin(h.laws.unreached, "no power", []*Node{n},
			doing(func() { h.PowerOff(n) }), func() error { return h.PowerOn(n) })
		h.Run(notReadyAfter + settledSoon)
		for _, what := range h.routing.falsehoodsOfService(s) {
			t.Error(what)
		}
		h.endTrouble("no power " + n.Name)
	})
}

// The agent of a node is dead while the endpoint of a Service with policy Local leaves the node. The node keeps the
// address, and its speaker takes back the route to that alone, which other nodes have. It advertises the address
// again when the endpoint is back.
func TestRoutesOfDeadAgent(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		n, s := h.Nodes[0], h.services[3]
		h.setEndpointsOn(s, h.Nodes)
		h.Run(settledSoon)
		h.begin(nil, "no agent", []*Node{n}, doing(n.KillAgent), n.StartAgent)
		h.setEndpointsOn(s, h.Nodes[1:])
		h.Run(ignoredWithin)
		h.areSentTo(t, s, h.Nodes[1:]...)
		for _, other := range h.services[:3] {
			h.areSentTo(t, other, h.Nodes...)
		}
		h.setEndpointsOn(s, h.Nodes)
		h.Run(ignoredWithin)
		h.areSentTo(t, s, h.Nodes...)
		h.setEndpointsOn(s, h.Nodes[1:])
		h.Run(ignoredWithin)
		h.endTrouble("no agent " + n.Name)
		h.Run(settledSoon)
		h.areSentTo(t, s, h.Nodes[1:]...)
	})
}

// The agents of two nodes are dead while the only endpoint moves from one to the other. That node does not get the
// address, and the route to the first one, which is the only one, stays until the second agent is back.
func TestRoutesOfTwoDeadAgents(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		s := h.services[3]
		h.setEndpointsOn(s, h.Nodes[:1])
		h.Run(settledSoon)
		for _, n := range h.Nodes[:2] {
			h.begin(nil, "no agent", []*Node{n}, doing(n.KillAgent), n.StartAgent)
		}
		h.Run(ignoredWithin)
		h.setEndpointsOn(s, h.Nodes[1:2])
		h.Run(settledSoon)
		h.areSentTo(t, s, h.Nodes[0])
		h.endTrouble("no agent " + h.Nodes[1].Name)
		h.Run(settledSoon)
		h.areSentTo(t, s, h.Nodes[1])
		h.endTrouble("no agent " + h.Nodes[0].Name)
		h.Run(settledSoon)
	})
}

// ignoredWithin is how soon speakers do what agents do not that have died, to which 3 s are given.
const ignoredWithin = 5 * time.Second

// areSentTo requires that both routers send to these nodes, and to no other, what comes for the addresses of a Service.
func (h *History) areSentTo(t *testing.T, s *service, nodes ...*Node) {
	t.Helper()
	addrs, err := h.Addresses(s.Name)
	if err != nil || len(addrs) == 0 {
		t.Fatal(addrs, err)
	}
	for _, router := range h.Routers {
		for _, addr := range addrs {
			if got := router.SendsTo(addr); !slices.Equal(got, nodes) {
				t.Errorf("%s sends to %v what comes for %s, not to %v", router.port.name, namesOf(got), addr, namesOf(nodes))
			}
		}
	}
}

// The NodeRouting of a node is deleted by mistake, and made again. No route goes.
func TestRoutesOfDeletedNodeRouting(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		for _, n := range h.Nodes {
			h.Tell("user", "deletes NodeRouting %s", n.Name)
			h.note(h.Admin.Delete(t.Context(), &v1.NodeRouting{
				ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: n.Name},
			}))
			h.Run(20 * time.Second)
		}
	})
}

// The API server does not answer a node's speaker, which crashes. The next one opens the sessions again, by what that
// one has left on the disk, before routers drop the routes.
func TestRoutesOfSpeakerWithoutAPIServer(t *testing.T) {
	playWithRouters(t, func(t *testing.T, h *History) {
		n := h.Nodes[0]
		starve := func(isStarved bool) func() error {
			return doing(func() {
				n.isAgentStarved = isStarved
				n.SetCut(n.isCut)
			})
		}
		h.begin(nil, "starved agent", []*Node{n}, starve(true), starve(false))
		n.killSpeakers()
		h.Run(5 * time.Minute)
		for _, router := range h.Routers {
			for addr, s := range order.ByKey(h.laws.owners, netip.Addr.Compare) {
				if h.routing.serves(n, addr, s) && !router.hasRoute(n, addr) {
					t.Errorf("%s has no route to %s by way of %s", router.port.name, addr, n.Name)
				}
			}
		}
		h.endTrouble("starved agent " + n.Name)
	})
}
