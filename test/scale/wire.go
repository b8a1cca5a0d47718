package main

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// wire is the links of all nodes, in memory. All other stations of a link hear a claim
// of an address. The station that claimed an address last answers for it, as long as its
// kernel has the address and the station is connected.
type wire struct {
	mu       sync.Mutex
	stations map[int]*station
	// lastClaimants are the stations that claimed an address last.
	lastClaimants map[netip.Addr]*station
}

// station is one node's interface.
type station struct {
	wire      *wire
	node      int
	rack      int
	kernel    *linktest.Kernel
	connected bool
	// While the agent listens: which addresses it wants to hear of, and what it does
	// with a message.
	wanted  func(netip.Addr) bool
	receive func(neigh.Message)
}

func newWire() *wire {
	return &wire{stations: map[int]*station{}, lastClaimants: map[netip.Addr]*station{}}
}

// connect gives a node a station, a new one if it was unplugged.
func (w *wire) connect(node, rack int, kernel *linktest.Kernel) *station {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &station{wire: w, node: node, rack: rack, kernel: kernel, connected: true}
	w.stations[node] = s
	return s
}

// unplug makes a node neither heard nor answering.
func (w *wire) unplug(node int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.stations[node]; s != nil {
		s.connected = false
	}
}

// Announce makes a claim. All other stations of the link hear it.
func (s *station) Announce(_ string, addr netip.Addr) error {
	message := neigh.Message{Kind: neigh.ARPRequest, Addr: addr, MAC: mac(s.node), IsGratuitous: true}
	var listeners []func(neigh.Message)
	s.wire.mu.Lock()
	s.wire.lastClaimants[addr] = s
	for _, other := range s.wire.stations {
		if other != s && other.rack == s.rack && other.connected && other.receive != nil && other.wanted(addr) {
			listeners = append(listeners, other.receive)
		}
	}
	s.wire.mu.Unlock()
	for _, receive := range listeners {
		receive(message)
	}
	return nil
}

// Probe takes as long as a probe that nobody answers.
func (s *station) Probe(
	ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
) map[netip.Addr]neigh.ProbeResult {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(count) * interval):
	}
	answers := map[netip.Addr]neigh.ProbeResult{}
	for _, q := range questions {
		if holder := s.findHolder(q.Addr); holder != nil {
			answers[q.Addr] = neigh.ProbeResult{MAC: mac(holder.node)}
		}
	}
	return answers
}

// Ask gets its answer at once.
func (s *station) Ask(q neigh.Question) error {
	s.deliverAnswer(q.Addr, s.findHolder(q.Addr))
	return nil
}

// SetPodMACs does nothing: a station has one interface.
func (*station) SetPodMACs([]string) {}

// AskStation gets its answer at once, if that station answers for the address.
func (s *station) AskStation(q neigh.Question, to neigh.MAC) error {
	if holder := s.findHolder(q.Addr); holder != nil && mac(holder.node) == to {
		s.deliverAnswer(q.Addr, holder)
	}
	return nil
}

// deliverAnswer makes the station hear the answer of a holder, if there is one.
func (s *station) deliverAnswer(addr netip.Addr, holder *station) {
	s.wire.mu.Lock()
	wanted, receive := s.wanted, s.receive
	s.wire.mu.Unlock()
	if holder != nil && receive != nil && wanted(addr) {
		receive(neigh.Message{Kind: neigh.ARPReply, Addr: addr, MAC: mac(holder.node), IsDirect: true})
	}
}

// Listen hears what others say on the link, until ctx ends.
func (s *station) Listen(
	ctx context.Context, _ string, wanted func(netip.Addr) bool, receive func(neigh.Message),
) error {
	s.setListener(wanted, receive)
	<-ctx.Done()
	s.setListener(nil, nil)
	return nil
}

func (s *station) setListener(wanted func(netip.Addr) bool, receive func(neigh.Message)) {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wanted, s.receive = wanted, receive
}

// findHolder returns the other station of the link that answers for an address, or nil.
func (s *station) findHolder(addr netip.Addr) *station {
	s.wire.mu.Lock()
	holder := s.wire.lastClaimants[addr]
	answers := holder != nil && holder.node != s.node && holder.connected && holder.rack == s.rack && s.connected
	s.wire.mu.Unlock()
	if !answers {
		return nil
	}
	observed, err := holder.kernel.Observe()
	if err != nil {
		return nil
	}
	for _, a := range observed.Addresses {
		if a.Prefix.Addr() == addr && a.Interface == interfaceName {
			return holder
		}
	}
	return nil
}
