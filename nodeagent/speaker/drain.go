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
	// drainsSince is when the speaker learnt that the node drains; zero if it does not.
	drainsSince time.Time
}

// advance notes whether the node is to drain. It returns the phase, whether the drain is over,
// and in how long that changes; 0 is never.
func (d *drainState) advance(
	isDraining bool, now time.Time,
) (phase routes.DrainPhase, isOver bool, wait time.Duration) {
	if !isDraining {
		d.drainsSince = time.Time{}
		return routes.NotDraining, false, 0
	}
	if d.drainsSince.IsZero() {
		d.drainsSince = now
	}
	switch past := now.Sub(d.drainsSince); {
	case past < avoidTime:
		return routes.Avoid, false, avoidTime - past
	case past < avoidTime+settleTime:
		return routes.Withdrawn, false, avoidTime + settleTime - past
	}
	return routes.Withdrawn, true, 0
}
