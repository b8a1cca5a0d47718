package sim

import (
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// station is a client on the link of the nodes, which sends to the station that it has last heard an address
// of, as Linux does.
type station struct {
	world   *World
	segment *Segment
	port    *Port
	mac     neigh.MAC
	// neighbours are what it has heard, and askedAt is when it last asked.
	neighbours map[netip.Addr]neigh.MAC
	askedAt    map[netip.Addr]time.Time
	// has are the addresses for which it answers, with since when.
	has map[netip.Addr]time.Time
}

// connectStation connects a client of a number to a segment.
func (w *World) connectStation(on *Segment, name string, number byte) *station {
	s := &station{
		world: w, segment: on, mac: neigh.MAC{2, 0, 0, 0, 2, number}, neighbours: map[netip.Addr]neigh.MAC{},
		askedAt: map[netip.Addr]time.Time{}, has: map[netip.Addr]time.Time{},
	}
	s.port = on.Connect(name, s.receive)
	return s
}

// receive answers for the addresses that it has, and notes where others are. Only an answer tells of one that it
// has not asked for, and an advertisement without the override flag changes nothing (RFC 4861, section 7.2.5).
func (s *station) receive(frame []byte) {
	if addr, isAsked := askedFor(frame); isAsked && !s.has[addr].IsZero() {
		s.port.Send(claimTo(frame, s.mac, addr))
	}
	m, err := neigh.ParseMessage(frame)
	if err != nil {
		return
	}
	_, isKnown := s.neighbours[m.Addr]
	isAnswer := m.IsDirect && neigh.MAC(frame[:6]) == s.mac
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

// sendsTo returns the interface of one of some nodes to which the client sends what is for an address; nil if
// it sends to none of them. It asks for the address if it has not done so for long.
func (s *station) sendsTo(addr netip.Addr, nodes []*Node) *NIC {
	mac, isKnown := s.neighbours[addr]
	wait := askUnknownAfter
	if isKnown {
		wait = askKnownAfter
	}
	if time.Since(s.askedAt[addr]) >= wait {
		s.askedAt[addr] = time.Now()
		sender := addressOf(s.segment.subnet, 2)
		if addr.Is6() {
			sender = addressOf(s.segment.subnet6, 0xff)
		}
		q := neigh.Question{Target: neigh.Target{Addr: addr}, Sender: sender}
		if frame, err := q.FrameFor(s.mac, neigh.MAC{255, 255, 255, 255, 255, 255}); err == nil {
			s.port.Send(frame)
		}
	}
	if !isKnown {
		return nil
	}
	for _, n := range nodes {
		if c := n.nicThat(func(c *NIC) bool { return c.MAC == mac }); c != nil {
			return c
		}
	}
	return nil
}

// reaches reports whether what the client sends to an address gets to one of some nodes, and the answer back.
func (s *station) reaches(addr netip.Addr, nodes []*Node) bool {
	c := s.sendsTo(addr, nodes)
	return c != nil && c.port.link == s.port.link && !c.port.IsDown && !c.port.isCutFrom[s.port] &&
		!s.port.isCutFrom[c.port]
}
