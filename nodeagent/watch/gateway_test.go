package watch

import (
	"net/netip"
	"testing"
)

const gatewayMAC = "02:00:00:00:00:fe"

var gatewayAddr = netip.MustParseAddr("192.0.2.254")

// newWithGateway is a world with a gateway, which answers no echo, as the third station.
func newWithGateway(t *testing.T, edit ...func(*Settings, *Target)) *world {
	t.Helper()
	w := newWorld(t, append(edit, func(_ *Settings, target *Target) { target.Gateways = []netip.Addr{gatewayAddr} })...)
	w.stations = append(w.stations, &station{mac: gatewayMAC, addresses: []netip.Addr{gatewayAddr}, dropsEchoes: true})
	return w
}

func withoutWitnesses(_ *Settings, target *Target) { target.Witnesses = nil }

// Of two nodes and a gateway one dies, or one is cut off.
func TestGatewayIsWitness(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disturb func(*world)
		reason  string
		claims  []netip.Addr
	}{
		"nothing happens":     {func(*world) {}, ReasonWatching, nil},
		"the node dies":       {func(w *world) { w.stations[0].isDead = true }, ReasonSilent, []netip.Addr{first, second}},
		"this one is cut off": {func(w *world) { w.isCutOff = true }, ReasonNoWitness, nil},
		"the gateway dies":    {func(w *world) { w.stations[2].isDead = true }, ReasonNoWitness, nil},
		"both die": {
			func(w *world) { w.stations[0].isDead, w.stations[2].isDead = true, true }, ReasonNoWitness, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWithGateway(t, withoutWitnesses)
			w.mustClaim(cold)
			w.mustBe(ReasonWatching)
			c.disturb(w)
			w.mustClaim(cold, c.claims...)
			w.mustBe(c.reason)
		})
	}
}

// The gateway was a witness until there was another node. This one is cut off then: that it has heard the gateway
// once says nothing.
func TestGatewayIsWitnessNoMore(t *testing.T) {
	t.Parallel()
	w := newWithGateway(t, withoutWitnesses)
	w.mustClaim(cold)
	w.mustBe(ReasonWatching)
	w.setTarget(func(target *Target) { target.Witnesses = []Node{{"node3", node3Addr, []string{node3MAC}}} })
	w.mustClaim(cold)
	w.isCutOff = true
	w.mustClaim(cold)
	w.mustBe(ReasonNoWitness)
}

// A gateway that answers for all addresses as a proxy has none of them, unless it is one of the nodes.
func TestGatewayIsProxy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mac    string
		claims []netip.Addr
	}{
		"a router":                        {gatewayMAC, []netip.Addr{first, second}},
		"the witness":                     {node3MAC, nil},
		"the other successor of the node": {node4MAC, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(_ *Settings, target *Target) {
				target.OtherSuccessors = []Node{{"node4", node4Addr, []string{node4MAC}}}
			})
			w.mustClaim(cold)
			w.stations = append(w.stations,
				&station{mac: c.mac, addresses: []netip.Addr{gatewayAddr, first, second}, isGateway: true})
			w.mustClaim(cold)
			w.stations[0].isDead = true
			w.mustClaim(cold, c.claims...)
		})
	}
}

// What does not show that this node reaches the gateway.
func TestForgedGateways(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer Answer
		edit   func(*Settings, *Target)
	}{
		"to all": {Answer{Kind: Resolve, Addr: gatewayAddr, MAC: gatewayMAC}, withoutWitnesses},
		"for another address": {
			Answer{Kind: Resolve, Addr: node4Addr, MAC: gatewayMAC, IsDirectAnswer: true}, withoutWitnesses,
		},
		"by the watched node": {
			Answer{Kind: Resolve, Addr: gatewayAddr, MAC: node1MAC, IsDirectAnswer: true}, withoutWitnesses,
		},
		"to an echo": {Answer{Kind: Echo, Addr: gatewayAddr, MAC: gatewayMAC, Round: cold + 1}, withoutWitnesses},
		"although there is another node": {
			Answer{Kind: Resolve, Addr: gatewayAddr, MAC: gatewayMAC, IsDirectAnswer: true}, func(*Settings, *Target) {},
		},
		"where only echoes count": {
			Answer{Kind: Resolve, Addr: gatewayAddr, MAC: gatewayMAC, IsDirectAnswer: true},
			func(s *Settings, target *Target) { s.TrustsEchoOnly, target.Witnesses = true, nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWithGateway(t, c.edit)
			w.mustClaim(cold)
			w.isCutOff = true
			for range cold {
				if claims := w.round(DefaultInterval); len(claims) > 0 {
					t.Fatalf("node2 is cut off, and claims %v", claims)
				}
				w.watcher.Hear(c.answer)
			}
		})
	}
}

// A gateway is asked only when no node can be a witness: here when the other node is known to be dead.
func TestNodesComeBeforeGateways(t *testing.T) {
	t.Parallel()
	w := newWithGateway(t)
	askedFor := func() int { return w.asked[question{Resolve, gatewayAddr}] }
	w.mustClaim(2 * cold)
	w.mustBe(ReasonWatching)
	if n := askedFor(); n > 0 {
		t.Errorf("the gateway is asked for %d times although node3 answers", n)
	}
	w.stations[1].isDead = true
	w.mustClaim(cold)
	w.mustBe(ReasonWatching)
	if n := askedFor(); n == 0 || n > cold/50+1 {
		t.Errorf("the gateway is asked for %d times", n)
	}
	w.stations[0].isDead = true
	w.mustClaim(20, first, second)
	w.stations[0].isDead, w.stations[1].isDead = false, false
	w.mustClaim(2 * cold)
	clear(w.asked)
	w.mustClaim(2 * cold)
	if n := askedFor(); n > 0 {
		t.Errorf("the gateway is asked for %d times although node3 answers again", n)
	}
}

// Both other nodes fall silent in one round: this node may have been cut off from both, together with the
// gateway.
func TestGatewayOnThisSideOnly(t *testing.T) {
	t.Parallel()
	w := newWithGateway(t)
	w.mustClaim(cold)
	w.stations[0].isDead, w.stations[1].isDead = true, true
	w.mustClaim(2 * cold)
	w.mustBe(ReasonNoWitness)
}

// Of three nodes and a gateway two die one after the other.
func TestGatewayIsWitnessOfSecondFailure(t *testing.T) {
	t.Parallel()
	w := newWithGateway(t, func(_ *Settings, target *Target) {
		target.OtherSuccessors = target.Witnesses
		target.Addresses[0].OtherSuccessor = "node3"
	})
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(4)
	w.stations[1].addresses = []netip.Addr{node3Addr, first, second}
	w.mustClaim(cold)
	w.stations[1].isDead = true
	w.mustClaim(50, first)
}

// A witness that says something to all does not show that this node reaches it.
func TestWitnessWhoIsHeardOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stations[1].dropsEchoes = true
	w.mustClaim(cold)
	w.mustBe(ReasonWatching)
	w.isCutOff = true
	for range cold {
		if claims := w.round(DefaultInterval); len(claims) > 0 {
			t.Fatalf("node2 can send nothing, and claims %v", claims)
		}
		w.watcher.Hear(Answer{Kind: Resolve, Addr: node3Addr, MAC: node3MAC})
	}
}
