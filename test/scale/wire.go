package main

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// wire is the links of all nodes, in memory: who claims an address is heard by
// the others of its link, and answers for as long as its kernel has the address
// and it is connected.
type wire struct {
	mu       sync.Mutex
	stations map[int]*station
	// holders is who claimed an address last.
	holders map[netip.Addr]*station
}

// station is one node's interface.
type station struct {
	wire      *wire
	node      int
	rack      int
	kernel    *linktest.Kernel
	connected bool
	wanted    func(netip.Addr) bool
	heard     func(neigh.Message)
}

func newWire() *wire {
	return &wire{stations: map[int]*station{}, holders: map[netip.Addr]*station{}}
}

// connect plugs a node in, anew if it was unplugged.
func (w *wire) connect(node, rack int, kernel *linktest.Kernel) *station {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &station{wire: w, node: node, rack: rack, kernel: kernel, connected: true}
	w.stations[node] = s
	return s
}

// unplug makes a node silent.
func (w *wire) unplug(node int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.stations[node]; s != nil {
		s.connected = false
	}
}

// Announce is heard by who listens on the same link.
func (s *station) Announce(_ string, addr netip.Addr) error {
	message := neigh.Message{Kind: neigh.Request, Addr: addr, MAC: mac(s.node), Gratuitous: true}
	var listeners []func(neigh.Message)
	s.wire.mu.Lock()
	s.wire.holders[addr] = s
	for _, other := range s.wire.stations {
		if other != s && other.rack == s.rack && other.connected && other.heard != nil && other.wanted(addr) {
			listeners = append(listeners, other.heard)
		}
	}
	s.wire.mu.Unlock()
	for _, heard := range listeners {
		heard(message)
	}
	return nil
}

// Probe takes the time that it takes when nobody answers.
func (s *station) Probe(ctx context.Context, targets []neigh.Target, count int, interval time.Duration) map[netip.Addr]neigh.Answer {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(count) * interval):
	}
	answers := map[netip.Addr]neigh.Answer{}
	for _, t := range targets {
		if holder := s.holder(t.Addr); holder != nil {
			answers[t.Addr] = neigh.Answer{MAC: mac(holder.node)}
		}
	}
	return answers
}

// Ask is answered at once.
func (s *station) Ask(_ string, addr netip.Addr) error {
	holder := s.holder(addr)
	s.wire.mu.Lock()
	wanted, heard := s.wanted, s.heard
	s.wire.mu.Unlock()
	if holder != nil && heard != nil && wanted(addr) {
		heard(neigh.Message{Kind: neigh.Reply, Addr: addr, MAC: mac(holder.node)})
	}
	return nil
}

// Listen hears the link until ctx ends.
func (s *station) Listen(ctx context.Context, _ string, wanted func(netip.Addr) bool, heard func(neigh.Message)) error {
	s.hear(wanted, heard)
	<-ctx.Done()
	s.hear(nil, nil)
	return nil
}

func (s *station) hear(wanted func(netip.Addr) bool, heard func(neigh.Message)) {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wanted, s.heard = wanted, heard
}

// holder is the other station that answers for an address, or nil.
func (s *station) holder(addr netip.Addr) *station {
	s.wire.mu.Lock()
	holder := s.wire.holders[addr]
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
