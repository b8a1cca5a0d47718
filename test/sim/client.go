package sim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// station is a client on the link of the nodes, which sends to the station that it has last heard an address
// of, as Linux does.
type station struct {
	world *World
	port  *Port
	mac   neigh.MAC
	// neighbours are what it has heard, and askedAt is when it last asked.
	neighbours map[netip.Addr]neigh.MAC
	askedAt    map[netip.Addr]time.Time
}

// connectStation connects a client of a number to a link.
func (w *World) connectStation(l *Link, name string, number byte) *station {
	s := &station{
		world: w, mac: neigh.MAC{2, 0, 0, 0, 2, number}, neighbours: map[netip.Addr]neigh.MAC{},
		askedAt: map[netip.Addr]time.Time{},
	}
	s.port = l.Connect(name, s.receive)
	return s
}

// receive notes where an address is. Only an answer tells of one that it has not asked for, and an
// advertisement without the override flag changes nothing (RFC 4861, section 7.2.5).
func (s *station) receive(frame []byte) {
	m, err := neigh.Parse(frame)
	if err != nil {
		return
	}
	_, isKnown := s.neighbours[m.Addr]
	isAnswer := m.Direct && neigh.MAC(frame[:6]) == s.mac
	if isKnown && (m.Addr.Is4() || m.Override) || !isKnown && isAnswer {
		s.neighbours[m.Addr] = m.MAC
		s.world.version++
	}
}

// claim tells all stations that it has an address.
func (s *station) claim(addr netip.Addr) {
	build := neigh.GratuitousARP
	if addr.Is6() {
		build = neigh.UnsolicitedNA
	}
	if frame, err := build(s.mac, addr); err == nil {
		s.port.Send(frame)
	}
}

// How often it asks for an address that it has not heard of, and for another one.
const askUnknownAfter, askKnownAfter = time.Second, 30 * time.Second

// sendsTo returns one of some nodes to which the client sends what is for an address; nil if it sends to none
// of them. It asks for the address if it has not done so for long.
func (s *station) sendsTo(addr netip.Addr, nodes []*Node) *Node {
	mac, isKnown := s.neighbours[addr]
	wait := askUnknownAfter
	if isKnown {
		wait = askKnownAfter
	}
	if time.Since(s.askedAt[addr]) >= wait {
		s.askedAt[addr] = time.Now()
		sender := netip.MustParseAddr("192.0.2.2")
		if addr.Is6() {
			sender = netip.MustParseAddr("2001:db8:1::ffff")
		}
		q := neigh.Question{Target: neigh.Target{Interface: Interface, Addr: addr}, Sender: sender}
		if frame, err := q.FrameFor(s.mac, neigh.MAC{255, 255, 255, 255, 255, 255}); err == nil {
			s.port.Send(frame)
		}
	}
	at := slices.IndexFunc(nodes, func(n *Node) bool { return isKnown && n.MAC == mac })
	if at < 0 {
		return nil
	}
	return nodes[at]
}

// reaches reports whether what the client sends to an address gets to one of some nodes, and the answer back.
func (s *station) reaches(addr netip.Addr, nodes []*Node) bool {
	n := s.sendsTo(addr, nodes)
	return n != nil && !n.port.IsDown && !n.port.isCutFrom[s.port] && !s.port.isCutFrom[n.port]
}
