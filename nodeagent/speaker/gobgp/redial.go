package gobgp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// minRedialWait and maxRedialWait bound how long to wait after the end of a session that was up for less than
	// stableTime. It doubles each time: a neighbour that ends each session is not called in a loop. After
	// others there is no wait.
	minRedialWait = 500 * time.Millisecond
	maxRedialWait = 2 * time.Second
	stableTime    = 30 * time.Second
)

// redialSchedule is when a neighbour whose session has ended is to be called again. The library itself idles for five
// seconds before it begins to connect. A neighbour that it has just been given it calls within two.
type redialSchedule struct {
	// lastWait is how long the last wait was, and upAt when the session last came up.
	lastWait time.Duration
	upAt     time.Time
	// callAt is when the next call is due; zero if none is.
	callAt time.Time
}

// noteUp notes that the session is up.
func (s *redialSchedule) noteUp(now time.Time) { s.upAt, s.callAt = now, time.Time{} }

// noteDown notes that the session has ended.
func (s *redialSchedule) noteDown(now time.Time) {
	if now.Sub(s.upAt) >= stableTime {
		s.lastWait = 0
	} else {
		s.lastWait = min(max(2*s.lastWait, minRedialWait), maxRedialWait)
	}
	s.callAt = now.Add(s.lastWait)
}

// takeDue reports whether a call is due, once.
func (s *redialSchedule) takeDue(now time.Time) bool {
	if s.callAt.IsZero() || now.Before(s.callAt) {
		return false
	}
	s.callAt = time.Time{}
	return true
}

// redialDue calls the neighbours again whose sessions ended a short while ago, and those to which the library cannot
// connect otherwise (noteConnectError). The library is given them anew; until there is an address to connect from, it
// goes on as it is. One that it does not take is missing among the sessions, and so is given to it again.
func (s *Server) redialDue(ctx context.Context) {
	for _, addr := range s.takeDueRedials() {
		if !hasSource(addr) { // the library would not take it, and has it still
			s.redialLater(addr)
			continue
		}
		n := s.neighbours[addr]
		// After a session that was up since the speaker started, the next one is not that of a restart.
		n.SetsRestartState = n.SetsRestartState && !s.hasBeenUp(addr)
		if err := errors.Join(s.deletePeer(ctx, addr), s.addPeer(ctx, n)); err != nil {
			s.log.Error(err, "A neighbour is not called again yet")
		}
	}
}

// redialLater has a neighbour called again as soon as TendSessions is called again.
func (s *Server) redialLater(addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[addr]; e != nil && !e.isUp {
		e.redial.callAt = time.Now()
	}
}

// hasSource reports whether the library finds an address from which to connect to a neighbour that it is given: to a
// link-local one a link-local address of the interface, which is not there while the interface is down, or gone.
func hasSource(neighbour netip.Addr) bool {
	if neighbour.Zone() == "" {
		return true
	}
	link, err := net.InterfaceByName(neighbour.Zone())
	if err != nil {
		return false
	}
	addresses, err := link.Addrs()
	return err == nil && slices.ContainsFunc(addresses, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast()
	})
}

// hasBeenUp reports whether the session with a neighbour was up since that is remembered.
func (s *Server) hasBeenUp(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.sessions[addr]
	return e != nil && !e.since.IsZero()
}

// takeDueRedials returns the neighbours that are to be called again now.
func (s *Server) takeDueRedials() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []netip.Addr
	for addr, e := range s.sessions {
		if _, exists := s.neighbours[addr]; exists && e.redial.takeDue(time.Now()) && e.restsSince.IsZero() {
			due = append(due, addr)
		}
	}
	return due
}
