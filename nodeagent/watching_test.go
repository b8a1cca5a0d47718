package nodeagent

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// memoryExchange is an Exchange with stations in memory that answer at once.
type memoryExchange struct {
	mu       sync.Mutex
	stations map[netip.Addr]neigh.MAC
	heard    []neigh.ExchangeAnswer
	isClosed bool
}

func (x *memoryExchange) SendEcho(addr, _ netip.Addr, station neigh.MAC, number uint16) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stations[addr] == station {
		x.heard = append(x.heard, neigh.ExchangeAnswer{Sequence: number, IsEcho: true, Addr: addr, MAC: station})
	}
	return nil
}

func (x *memoryExchange) Drain(heard func(neigh.ExchangeAnswer)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, h := range x.heard {
		heard(h)
	}
	x.heard = nil
	return nil
}

func (x *memoryExchange) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.isClosed = true
	return nil
}

func (x *memoryExchange) set(addr string, mac neigh.MAC) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stations[netip.MustParseAddr(addr)] = mac
}

func (x *memoryExchange) unset(addr string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.stations, netip.MustParseAddr(addr))
}

// standbyFor is an Announcement that asks node1 to watch node2, with node3 as its witness.
func standbyFor(iface string, node2MAC, node3MAC neigh.MAC) *purelbv1.Announcement {
	ann := announcementOf("node1-standby")
	ann.Spec.NodeName = "node1"
	ann.Spec.Standby = &purelbv1.Standby{
		Watched: purelbv1.StandbyNode{
			NodeName: "node2", Addresses: []string{"192.0.2.12"}, MACs: []string{node2MAC.String()},
		},
		Interface: purelbv1.InterfaceName(iface),
		Witnesses: []purelbv1.StandbyNode{
			{NodeName: "node3", Addresses: []string{"192.0.2.13"}, MACs: []string{node3MAC.String()}},
		},
		Addresses: []purelbv1.StandbyAddress{{
			Address: "192.0.2.1", ServiceGroup: "default", Epoch: 3, Successors: []purelbv1.Successor{
				{NodeName: "node1", Epoch: 4},
			},
		}},
	}
	return ann
}

func (w *world) readyOf(name string) string {
	conditions := w.get(name).Status.Conditions
	if len(conditions) == 0 {
		return ""
	}
	return string(conditions[0].Status) + " " + conditions[0].Reason
}

func TestWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node2MAC, node3MAC := oldHolder, stranger
		x := &memoryExchange{stations: map[netip.Addr]neigh.MAC{}}
		w := newWorld(t, settings(), announcementOf("node1"), standbyFor("eth0", node2MAC, node3MAC))
		w.OpenExchange = func(string) (Exchange, error) { return x, nil }
		w.prepare()
		go func() { _ = w.watching.Start(t.Context()) }()
		expect := func(what, want string) {
			t.Helper()
			for range 5 { // one sync sees what has changed, and one reports what has changed since
				time.Sleep(time.Second)
				if _, err := w.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.readyOf("node1-standby"); got != want {
				t.Fatalf("%s: Ready is %s, want %s", what, got, want)
			}
		}
		expect("nobody answers", "False NoAnswer")
		x.set("192.0.2.12", node2MAC)
		expect("node2 answers", "False NoWitness")
		x.set("192.0.2.13", node3MAC)
		time.Sleep(10 * time.Second)
		expect("node3 does, too", "True Watching")
		w.made()
		if _, err := w.reconcile(); err != nil {
			t.Fatal(err)
		}
		w.expect("requests once all is well", []string(nil), w.made())
		x.unset("192.0.2.12")
		expect("node2 is dead", "False Silent")
		x.set("192.0.2.12", node2MAC)
		expect("node2 is back", "True Watching")

		agent := settings()
		if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil {
			t.Fatal(err)
		}
		agent.Spec.Local = &purelbv1.LBNodeAgentLocal{Failover: &purelbv1.Failover{Enabled: new(bool)}}
		if err := w.Client.Update(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
		expect("watching is disabled", "False Disabled")
		if x.mu.Lock(); !x.isClosed {
			t.Error("the exchange is open although nobody is watched")
		}
		x.mu.Unlock()
		if status := w.get("node1").Status; status.Desired != 0 || len(status.Conditions) == 0 ||
			status.Conditions[0].Status != metav1.ConditionTrue {
			t.Errorf("the Announcement without standby: %+v", status)
		}
	})
}

// The MAC addresses of node2, which has 192.0.2.1, and of node3.
var watchedMAC, witnessMAC = neigh.MAC{2, 0, 0, 0, 0, 2}, neigh.MAC{2, 0, 0, 0, 0, 3}

// newWireWatching returns an agent of node1 that watches node2, with node3 as its witness: all are on a bridge in
// the neighbour's namespace, by ports of their names.
func newWireWatching(t *testing.T) (w *wire, others map[string]nstest.Neighbour) {
	others = map[string]nstest.Neighbour{}
	w = newWireBy(t, func(w *wire) {
		nstest.Run(t, "ip link add eth0 address 02:00:00:00:00:aa type veth peer name far address %s", neighbour)
		t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
		w.neighbour.MoveLink(t, "far")
		w.neighbour.Run(t, "ip link add eth0 type bridge mcast_snooping 0")
		w.neighbour.Run(t, "ip link set far up master eth0")
		for name, mac := range map[string]neigh.MAC{"node2": watchedMAC, "node3": witnessMAC} {
			others[name] = w.plugIn(name, mac, "192.0.2.1"+name[len("node"):])
		}
		others["node2"].Run(t, "ip addr add 192.0.2.1/32 dev eth0")
		if err := w.Client.Create(t.Context(), standbyFor("eth0", watchedMAC, witnessMAC)); err != nil {
			t.Fatal(err)
		}
	}, true)
	return w, others
}

// waitUntilArmed waits until an address of node2 is armed, so that it is claimed when node2 is silent. Condition Ready
// tells that node2 answers, which it may do for a moment before it is seen to answer for its address.
func (w *wire) waitUntilArmed(addr string, trustsEchoOnly bool) {
	w.t.Helper()
	w.within("the address is armed", func() bool {
		w.watching.mu.Lock()
		defer w.watching.mu.Unlock()
		l := w.watching.links["eth0"]
		if l == nil || l.settings.TrustsEchoOnly != trustsEchoOnly {
			return false
		}
		for _, watcher := range l.watchers {
			if watcher.IsArmed(netip.MustParseAddr(addr)) {
				return true
			}
		}
		return false
	})
}

// plugIn connects a station with an address to the bridge in the neighbour's namespace, by a port of a name.
func (w *wire) plugIn(port string, mac neigh.MAC, addr string) nstest.Neighbour {
	w.t.Helper()
	station := nstest.NewNeighbour(w.t)
	nstest.Run(w.t, "ip link add eth9 address %s type veth peer name %s", mac, port)
	station.MoveLink(w.t, "eth9")
	w.neighbour.MoveLink(w.t, port)
	w.neighbour.Run(w.t, "ip link set %s up master eth0", port)
	station.Run(w.t, "ip link set eth9 name eth0 up")
	station.Run(w.t, "ip addr add %s/24 dev eth0", addr)
	return station
}

// Real kernels answer.
func TestWireWatching(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w, others := newWireWatching(t)
	is := func(what, want string) {
		t.Helper()
		w.within(what, func() bool { return w.readyOf("node1-standby") == want })
	}
	is("node2 is watched", "True Watching")
	w.waitUntilArmed("192.0.2.1", false)
	w.neighbour.Run(t, "ip link set node2 down")
	w.within("its address is claimed", func() bool { return w.has("192.0.2.1") && w.claims("192.0.2.1") >= 3 })
	is("node2 is dead", "False Silent")
	w.within("the claim is reported", func() bool { return w.states("node1-standby") == "192.0.2.1 Announced" })
	claims := w.claims("192.0.2.1")
	w.neighbour.Run(t, "ip link set node2 up")
	is("node2 is back", "True Watching")
	w.within("the claim is repeated", func() bool { return w.claims("192.0.2.1") > claims })
	w.neighbour.Run(t, "ip link set node3 down")
	is("node3 is dead", "False NoWitness")

	w.neighbour.Run(t, "ip addr add 192.0.2.254/24 dev eth0")
	nstest.Run(t, "ip route add default via 192.0.2.254 dev eth0")
	is("the gateway is a witness", "True Watching")
	nstest.Run(t, "ip route del default via 192.0.2.254 dev eth0")
	is("there is no gateway", "False NoWitness")
	w.neighbour.Run(t, "ip addr add fe80::fe/64 dev eth0 nodad")
	nstest.Run(t, "ip route add default via fe80::fe dev eth0")
	is("the gateway of IPv6 is a witness", "True Watching")

	// Nodes whose own addresses have no subnet, as with DHCPv6: a route says what is on the link.
	nstest.Run(t, "ip addr del 2001:db8::11/64 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/128 dev eth0 nodad")
	nstest.Run(t, "ip route add 2001:db8::/64 dev eth0")
	others["node2"].Run(t, "ip addr add 2001:db8::12/128 dev eth0 nodad")
	others["node2"].Run(t, "ip route add 2001:db8::/64 dev eth0")
	w.edit("node1-standby", func(s *purelbv1.AnnouncementSpec) { s.Standby.Watched.Addresses = []string{"2001:db8::12"} })
	generation := w.get("node1-standby").Generation
	pacing.Signal(w.wake)
	w.within("node2 is watched by IPv6", func() bool {
		ready := w.get("node1-standby").Status.Conditions
		return len(ready) > 0 && ready[0].ObservedGeneration == generation && ready[0].Status == metav1.ConditionTrue
	})
}

// The fabric answers ARP for a node that is dead, as a bridge with neigh_suppress does: with its MAC address, and for
// all of its addresses. Its successor does not know better than that the node lives, unless it is told to trust echoes
// alone. Then it claims the address.
func TestWireFabricAnswersForTheDead(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	w, _ := newWireWatching(t)
	is := func(what, want string) {
		t.Helper()
		w.within(what, func() bool { return w.readyOf("node1-standby") == want })
	}
	is("node2 is watched", "True Watching")
	fabric := w.plugIn("fabric", watchedMAC, "192.0.2.12")
	fabric.Run(t, "sysctl -q -w net.ipv4.icmp_echo_ignore_all=1")
	fabric.Run(t, "ip addr add 192.0.2.1/32 dev eth0")
	w.neighbour.Run(t, "ip link set node2 down")
	is("the fabric answers for node2", "False Doubtful")
	if w.has("192.0.2.1") {
		t.Error("an address is claimed for which the fabric answers")
	}

	agent := settings()
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil {
		t.Fatal(err)
	}
	w.neighbour.Run(t, "ip link set fabric down")
	w.neighbour.Run(t, "ip link set node2 up")
	agent.Spec.Local = &purelbv1.LBNodeAgentLocal{Failover: &purelbv1.Failover{Trust: purelbv1.TrustEcho}}
	if err := w.Client.Update(t.Context(), agent); err != nil {
		t.Fatal(err)
	}
	pacing.Signal(w.wake)
	w.waitUntilArmed("192.0.2.1", true)
	is("node2 is back", "True Watching")
	w.neighbour.Run(t, "ip link set fabric up")
	w.neighbour.Run(t, "ip link set node2 down")
	w.within("its address is claimed", func() bool { return w.has("192.0.2.1") && w.claims("192.0.2.1") >= 3 })
}
