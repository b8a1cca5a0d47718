package gobgp

import (
	"context"
	"errors"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v4/api"
)

const (
	// maxUnread is how many routes may wait for a neighbour that has asked for all of them again (RFC 2918), and at the
	// same time how many of them it may ask for within refreshWindow. The library keeps a few hundred bytes for each.
	maxUnread = 50_000
	// minRefreshes is how many requests for all routes a neighbour may make in that time whatever their number.
	minRefreshes = 10
	// refreshWindow is as long as the library takes at the most to send maxUnread routes to a neighbour that reads.
	refreshWindow = 10 * time.Second
	// refreshCheckInterval is how often it is looked whether such requests may have come.
	refreshCheckInterval = 250 * time.Millisecond
)

// errorOfRefreshes is the error of a neighbour that goes on asking for all routes, and does not read them.
const errorOfRefreshes = "the neighbour asks for all routes again and again, faster than it takes them: the session " +
	"begins anew"

var errNoConnection = errors.New("there is no connection")

// boundRefreshes ends sessions whose neighbours have asked for more than they read, until ctx ends. The library
// answers each request at once, and keeps all answers that the neighbour has not read. TendSessions looks too rarely
// for that.
func (s *Server) boundRefreshes(ctx context.Context) {
	ticker := time.NewTicker(refreshCheckInterval)
	defer ticker.Stop()
	var counted time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		if now.Sub(counted) < refreshWindow && s.isAtRest() {
			continue
		}
		counted = now
		if err := s.endSessionsWithUnreadRefreshes(ctx); err != nil && ctx.Err() == nil {
			s.log.Error(err, "Cannot bound what neighbours ask for")
		}
	}
}

// isAtRest reports whether all sessions are up, and nothing waits for any neighbour: no neighbour is slower then than
// it asks. To ask the library how often it did costs far more.
func (s *Server) isAtRest() bool {
	s.mu.Lock()
	isDown := false
	for _, e := range s.sessions {
		isDown = isDown || !e.isUp
	}
	s.mu.Unlock()
	return !isDown && !hasAnyUnacknowledged()
}

// endSessionsWithUnreadRefreshes ends the sessions whose neighbours have asked for too much that they have not read. It
// closes their connections, so that nothing has to be sent for that; what waits goes with the session.
func (s *Server) endSessionsWithUnreadRefreshes(ctx context.Context) error {
	return s.bgp.ListPeer(ctx, &api.ListPeerRequest{}, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil {
			return
		}
		port, received := int(p.GetTransport().GetRemotePort()), p.GetState().GetMessages().GetReceived().GetRefresh()
		paths := uint64(max(s.pathCount.Load(), 1)) //nolint:gosec // it is positive
		s.mu.Lock()
		e := s.sessions[addr]
		isTooMuch := e != nil && e.noteRefreshes(
			received, paths, time.Now(), func() bool { return hasUnacknowledged(addr, port) },
		)
		s.mu.Unlock()
		if !isTooMuch {
			return
		}
		// If that fails, the next look tries again.
		_ = s.endSession(addr, errorOfRefreshes, func() error {
			if !closeConnectionsTo(addr, port) {
				return errNoConnection
			}
			return nil
		})
	})
}

// noteRefreshes notes how many requests for all of so many routes a neighbour has made in the session, and reports
// whether these are too many. Those count of which the answers may not have been sent: all that have come since the
// neighbour had read everything, or within refreshWindow.
func (e *sessionEvents) noteRefreshes(
	received, paths uint64, now time.Time, hasUnacknowledged func() bool,
) (isTooMuch bool) {
	hasNew := received != e.refreshes
	if !e.isUp || !hasNew || received < e.refreshes || now.Sub(e.refreshesSince) >= refreshWindow && !hasUnacknowledged() {
		e.refreshes, e.refreshesSince = received, now
	}
	return received-e.refreshes > max(minRefreshes, maxUnread/paths)
}
