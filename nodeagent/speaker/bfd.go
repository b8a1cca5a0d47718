package speaker

import (
	"context"
	"net/netip"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// BFD watches neighbours.
type BFD interface {
	// Sync makes the neighbours that are watched those. The sessions of those that stay go on.
	Sync(map[netip.Addr]bfd.NeighbourSettings)
	// State returns the state of the session with a neighbour.
	State(neighbour netip.Addr) bfd.State
	// Wait returns when all sessions have ended.
	Wait()
}

// startBFD begins to watch neighbours. That goes on while the library is replaced by another, and ends after
// the sessions of BGP have: a router that hears before that BFD ends drops the routes.
func (s *Speaker) startBFD(ctx context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	watcher, err := s.StartBFD(
		ctx, func() { pacing.Signal(s.wake) },
		func(neighbour netip.Addr) { s.Tasks.Go(func() { s.resetSession(ctx, neighbour) }) },
	)
	if err != nil {
		cancel()
		return err
	}
	s.state.bfd, s.state.endBFD = watcher, func() { cancel(); watcher.Wait() }
	return nil
}

// resetSession begins the session with a neighbour anew whose path has failed: the node need not wait for
// the hold time before it opens the next one. It waits for no round.
func (s *Speaker) resetSession(ctx context.Context, neighbour netip.Addr) {
	server := s.server()
	if server == nil {
		return
	}
	if err := server.ResetSession(ctx, neighbour); err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "The session of a neighbour whose BFD failed goes on")
	}
}

// watchNeighbours watches neighbours by BFD, and notes in the sessions with them how that is.
func (s *Speaker) watchNeighbours(sessions []routes.Session) {
	watched, waits := s.state.bfdWaits.DecideWatched(s.state.held.Peers, sessions, s.state.bfd.State, s.Tasks.Now())
	s.state.bfdWaits = waits
	s.state.bfd.Sync(watched)
}
