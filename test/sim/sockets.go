package sim

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// sockets are those by which an agent hears frames.
type sockets struct {
	listeners []*listener
	exchanges []*exchange
	probes    []*probe
}

// listener passes on what is said of some addresses.
type listener struct {
	iface  string
	wanted func(netip.Addr) bool
	heard  func(neigh.Message)
}

// probe collects the answers to questions.
type probe struct {
	questions map[netip.Addr]neigh.Question
	answers   map[netip.Addr]neigh.ProbeResult
	// settled is signalled when no better answer can come.
	settled chan struct{}
}

// receive passes a frame that an interface hears on to those who wait for it.
func (a *agent) receive(c *NIC, frame []byte) {
	if m, err := neigh.ParseMessage(frame); err == nil && m.MAC != c.MAC {
		for _, l := range a.sockets.listeners {
			if l.iface == c.Name && l.wanted(m.Addr) {
				a.after(a.world.Between(minSlice, maxSlice), func() { l.heard(m) })
			}
		}
		for _, p := range a.sockets.probes {
			p.hear(c.Name, m)
		}
		for _, x := range a.sockets.exchanges {
			if x.nic == c {
				x.keep(neigh.ExchangeAnswer{
					Addr: m.Addr, MAC: m.MAC,
					IsDirectAnswer: m.IsDirect && m.Kind != neigh.ARPRequest && !m.IsGratuitous,
				})
			}
		}
	}
	if e, err := neigh.ParseEcho(frame); err == nil {
		for _, x := range a.sockets.exchanges {
			if x.nic == c && e.ID == x.id && e.Token == x.token {
				x.keep(neigh.ExchangeAnswer{Sequence: e.Sequence, IsEcho: true, Addr: e.Addr, MAC: e.MAC})
			}
		}
	}
	a.wakeTasks()
}

// neighbours are the stations on the node's links as its agent sees them.
type neighbours struct{ agent *agent }

var errNoInterface = errors.New("no such interface")

// send sends the frames from an interface that build makes for its MAC address. Without a carrier nothing
// is sent, and that is no error.
func (n neighbours) send(iface string, build func(neigh.MAC) ([][]byte, error)) error {
	c := n.agent.node.nicNamed(iface)
	if c == nil {
		return errNoInterface
	}
	if n.agent.isKilled {
		return errKilled
	}
	frames, err := build(c.MAC)
	for _, frame := range frames {
		c.port.Send(frame)
	}
	return err
}

// one makes one frame a list of them.
func one(frame []byte, err error) ([][]byte, error) {
	if err != nil {
		return nil, err
	}
	return [][]byte{frame}, nil
}

func (n neighbours) Announce(iface string, addr netip.Addr) error {
	build := neigh.GratuitousARP
	if addr.Is6() {
		build = neigh.UnsolicitedNA
	}
	n.agent.world.Tell(n.agent.node.Name, "announces %s", addr)
	return n.send(iface, func(mac neigh.MAC) ([][]byte, error) { return one(build(mac, addr)) })
}

func (n neighbours) Ask(q neigh.Question) error {
	return n.send(q.Interface, q.Frames)
}

func (n neighbours) AskStation(q neigh.Question, station neigh.MAC) error {
	return n.send(q.Interface, func(mac neigh.MAC) ([][]byte, error) { return one(q.FrameFor(mac, station)) })
}

func (neighbours) SetPodMACs([]string) {}

func (n neighbours) Listen(
	ctx context.Context, iface string, wanted func(netip.Addr) bool, heard func(neigh.Message),
) error {
	if n.agent.node.nicNamed(iface) == nil {
		return errNoInterface
	}
	s, l := &n.agent.sockets, &listener{iface, wanted, heard}
	s.listeners = append(s.listeners, l)
	n.agent.Wait(ctx, tasks.Forever)
	s.listeners = slices.DeleteFunc(s.listeners, func(other *listener) bool { return other == l })
	return nil
}

var errNoCarrier = errors.New("the interface has no carrier")

func (n neighbours) Probe(
	ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
) map[netip.Addr]neigh.ProbeResult {
	a, s := n.agent, &n.agent.sockets
	p := &probe{map[netip.Addr]neigh.Question{}, map[netip.Addr]neigh.ProbeResult{}, make(chan struct{}, 1)}
	for _, q := range questions {
		p.questions[q.Addr] = q
	}
	s.probes = append(s.probes, p)
	isDown := func(q neigh.Question) bool {
		c := a.node.nicNamed(q.Interface)
		return c == nil || c.port.IsDown
	}
	for round := 0; round < count && !allOf(questions, isDown); round++ {
		for _, q := range questions {
			if p.answers[q.Addr].MAC == (neigh.MAC{}) {
				_ = n.Ask(q) // on a link that does not exist nobody answers
			}
		}
		if a.Wait(ctx, interval, p.settled) != tasks.TimeOver {
			break
		}
	}
	s.probes = slices.DeleteFunc(s.probes, func(other *probe) bool { return other == p })
	for _, q := range questions {
		if _, isAnswered := p.answers[q.Addr]; !isAnswered && isDown(q) {
			p.answers[q.Addr] = neigh.ProbeResult{Err: errNoCarrier}
		}
	}
	for _, q := range questions {
		answer := "nobody"
		if got := p.answers[q.Addr]; got.Err != nil {
			answer = got.Err.Error()
		} else if got.MAC != (neigh.MAC{}) {
			answer = got.MAC.String()
		}
		a.world.Tell(a.node.Name, "asks who has %s: %s", q.Addr, answer)
	}
	return p.answers
}

// allOf reports whether something is so of all questions.
func allOf(questions []neigh.Question, is func(neigh.Question) bool) bool {
	return !slices.ContainsFunc(questions, func(q neigh.Question) bool { return !is(q) })
}

// hear notes an answer on an interface: rather that of a node that may have the address than that of another
// station.
func (p *probe) hear(iface string, m neigh.Message) {
	q, isAsked := p.questions[m.Addr]
	if !isAsked || q.Interface != iface || slices.Contains(q.IgnoredMACs, m.MAC) {
		return
	}
	isNode := slices.Contains(q.NodeMACs, m.MAC)
	if p.answers[m.Addr].MAC == (neigh.MAC{}) || isNode {
		p.answers[m.Addr] = neigh.ProbeResult{MAC: m.MAC}
	}
	for addr, q := range p.questions {
		mac := p.answers[addr].MAC
		if mac == (neigh.MAC{}) || len(q.NodeMACs) > 0 && !slices.Contains(q.NodeMACs, mac) {
			return
		}
	}
	select {
	case p.settled <- struct{}{}:
	default:
	}
}

// exchange keeps answers until they are drained.
type exchange struct {
	neighbours
	nic    *NIC
	id     uint16
	token  [8]byte
	heard  []neigh.ExchangeAnswer
	isLost bool
}

// maxHeard is how many answers find room.
const maxHeard = 1 << 15

func (a *agent) openExchange(iface string) (nodeagent.Exchange, error) {
	c := a.node.nicNamed(iface)
	if c == nil {
		return nil, errNoInterface
	}
	x := &exchange{neighbours: neighbours{a}, nic: c, id: uint16(a.world.Pick(1 << 16))} //nolint:gosec // below that
	for i := range x.token {
		x.token[i] = byte(a.world.Pick(1 << 8))
	}
	a.sockets.exchanges = append(a.sockets.exchanges, x)
	return x, nil
}

func (x *exchange) keep(h neigh.ExchangeAnswer) {
	if len(x.heard) >= maxHeard {
		x.isLost = true
		return
	}
	x.heard = append(x.heard, h)
}

func (x *exchange) SendEcho(addr, sender netip.Addr, station neigh.MAC, number uint16) error {
	echo := neigh.Echo{Addr: addr, Sender: sender, MAC: station, ID: x.id, Sequence: number, Token: x.token}
	return x.send(x.nic.Name, func(mac neigh.MAC) ([][]byte, error) { return one(echo.RequestFrame(mac)) })
}

func (x *exchange) Drain(heard func(neigh.ExchangeAnswer)) error {
	all, isLost := x.heard, x.isLost
	x.heard, x.isLost = nil, false
	for _, h := range all {
		heard(h)
	}
	if isLost {
		return neigh.ErrLost
	}
	return nil
}

func (x *exchange) Close() error {
	s := &x.agent.sockets
	s.exchanges = slices.DeleteFunc(s.exchanges, func(other *exchange) bool { return other == x })
	return nil
}
