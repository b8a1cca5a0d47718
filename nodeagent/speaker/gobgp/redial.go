package gobgp

import (
	"context"
	"errors"
	"net/netip"
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

// redialDue calls the neighbours again whose sessions ended a short while ago. The library is given them anew.
// One that it does not take is missing among the sessions, and so is given to it again.
func (s *Server) redialDue(ctx context.Context) {
	for _, addr := range s.takeDueRedials() {
		n := s.neighbours[addr]
		n.SetsRestartState = false // the session was up since the speaker started
		if err := errors.Join(s.deletePeer(ctx, addr), s.addPeer(ctx, n)); err != nil {
			s.log.Error(err, "A neighbour is not called again yet")
		}
	}
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
