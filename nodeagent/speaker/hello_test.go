package speaker

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/link"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestHello has two sessions that carry both families, with the same next hop of IPv6, and one that carries its own:
// the speaker says hello from that next hop, once a session is open, and not in each round.
func TestHello(t *testing.T) {
	w := newWorld(t, t.TempDir())
	var said []string
	w.Hello = func(from, to netip.Addr) error {
		said = append(said, fmt.Sprintf("%s to %s", from, to))
		return nil
	}
	w.kernel.gateways = map[netip.Addr][]netip.Addr{
		netip.MustParseAddr("2001:db8::12"): {netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::1%eth0")},
	}
	routing := routingOf(1, "192.0.2.1", "192.0.2.2", "192.0.2.3")
	routing.Spec.Peers[0].NextHop, routing.Spec.Peers[1].NextHop = "2001:db8::12", "2001:db8::12"
	w.setRouting(routing, false)
	w.server.sessions = func(peer netip.Addr) routes.Session { return routes.Session{Neighbour: peer, State: "Idle"} }
	round := func(what string, want ...string) {
		t.Helper()
		said = nil
		if _, err := w.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, said); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	both := []string{"2001:db8::12 to 2001:db8::1", "2001:db8::12 to fe80::1%eth0"}
	round("no session is open")
	w.server.sessions = nil // all are up
	round("sessions are open", both...)
	round("a moment later")
	w.state.nextHello = time.Now()
	round("after the interval", both...)
}

// TestHelloHeals has a router whose kernel once could not resolve a next hop, which it does not try again in a group of
// next hops. The node's hello makes it, be it that the node has yet to resolve the router, as after its boot, or knows
// it.
func TestHelloHeals(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	router := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add eth0 type veth peer name lan")
	router.MoveLink(t, "lan")
	for _, address := range []string{"192.0.2.%d/24", "2001:db8::%d/64 nodad"} {
		nstest.Run(t, "ip addr add "+address+" dev eth0", 12)
		router.Run(t, "ip addr add "+address+" dev lan", 1)
	}
	nstest.Run(t, "ip link set eth0 up")
	router.Run(t, "ip link set lan up")
	router.Run(t, "ip link set lo up")
	nstest.Run(t, "ip route add default via 192.0.2.1")
	nstest.Run(t, "ip -6 route add default via 2001:db8::1")
	kernel, err := link.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, hop := range []netip.Addr{netip.MustParseAddr("192.0.2.12"), netip.MustParseAddr("2001:db8::12")} {
		gateways, err := kernel.GatewaysFrom(hop)
		if err != nil || len(gateways) != 1 {
			t.Fatalf("gateways from %s: %v, %v", hop, gateways, err)
		}
		for _, what := range []string{"the node has yet to resolve the router", "the node knows it"} {
			hasFailed := func() bool {
				return strings.Contains(router.Run(t, "ip neigh show to %s dev lan", hop), "FAILED")
			}
			router.Run(t, "ip neigh replace %s dev lan nud failed", hop)
			if !hasFailed() {
				t.Fatal("the router has another entry than one that has failed")
			}
			deadline := time.Now().Add(30 * time.Second)
			for ; hasFailed() && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
				if err := SendHello(hop, gateways[0]); err != nil {
					t.Fatal(err)
				}
			}
			if hasFailed() {
				t.Errorf("%s, and the router cannot send to %s", what, hop)
			}
		}
	}
	nstest.Run(t, "ip -6 route del default")
	hop := netip.MustParseAddr("2001:db8::12")
	if none, err := kernel.GatewaysFrom(hop); err != nil || len(none) > 0 {
		t.Errorf("gateways without a default route: %v, %v", none, err)
	}
	nstest.Run(t, "ip -6 route add default nexthop via fe80::1 dev eth0 nexthop via 2001:db8::2")
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr(fmt.Sprintf("fe80::1%%%d", eth0.Index))}
	if two, err := kernel.GatewaysFrom(hop); err != nil || !slices.Equal(two, want) {
		t.Errorf("two gateways: %v, %v, want %v", two, err, want)
	}
	if err := SendHello(hop, want[1]); err != nil {
		t.Error(err)
	}
}
