package gobgp

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

const (
	// minRedial and maxRedial bound how long to wait after the end of a session that was up for less than
	// stableTime. It doubles each time: a neighbour that ends each session is not called in a loop. After
	// others there is no wait.
	minRedial  = 500 * time.Millisecond
	maxRedial  = 2 * time.Second
	stableTime = 30 * time.Second
)

// redial is when a neighbour whose session has ended is to be called again. The library itself idles for five
// seconds before it begins to connect. A neighbour that it has just been given it calls within two.
type redial struct {
	// lastWait is how long the last wait was, and upAt when the session last came up.
	lastWait time.Duration
	upAt     time.Time
	// callAt is when the next call is due; zero if none is.
	callAt time.Time
}

// noteUp notes that the session is up.
func (r *redial) noteUp(now time.Time) { r.upAt, r.callAt = now, time.Time{} }

// noteDown notes that the session has ended.
func (r *redial) noteDown(now time.Time) {
	if now.Sub(r.upAt) >= stableTime {
		r.lastWait = 0
	} else {
		r.lastWait = min(max(2*r.lastWait, minRedial), maxRedial)
	}
	r.callAt = now.Add(r.lastWait)
}

// takeDue reports whether a call is due, once.
func (r *redial) takeDue(now time.Time) bool {
	if r.callAt.IsZero() || now.Before(r.callAt) {
		return false
	}
	r.callAt = time.Time{}
	return true
}

// redialDue calls the neighbours again whose sessions ended a short while ago. The library is given them anew.
// One that it does not take is missing among the sessions, and so is given to it again.
func (s *Server) redialDue(ctx context.Context) {
	for _, addr := range s.takeDueRedials() {
		n := s.neighbours[addr]
		n.Restarting = false // the session was up since the speaker started
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
