package speaker

import (
	"time"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

const (
	// avoidTime is how long neighbours are asked to prefer other nodes before the routes are
	// withdrawn.
	avoidTime = 5 * time.Second
	// settleTime is how long after that neighbours may still send traffic.
	settleTime = 3 * time.Second
)

// drainState is how far the node is with sending traffic away. A new process begins anew, which
// only takes longer.
type drainState struct {
	// since is when the speaker learnt that the node drains; zero if it does not.
	since time.Time
}

// advance notes whether the node is to drain. It returns the phase, whether the drain is over,
// and in how long that changes; 0 is never.
func (d *drainState) advance(
	isDraining bool, now time.Time,
) (phase routes.DrainPhase, isOver bool, wait time.Duration) {
	if !isDraining {
		d.since = time.Time{}
		return routes.NotDraining, false, 0
	}
	if d.since.IsZero() {
		d.since = now
	}
	switch past := now.Sub(d.since); {
	case past < avoidTime:
		return routes.Avoid, false, avoidTime - past
	case past < avoidTime+settleTime:
		return routes.Withdrawn, false, avoidTime + settleTime - past
	}
	return routes.Withdrawn, true, 0
}
