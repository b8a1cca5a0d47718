// Package features lists the feature gates of the manager: parts of PureLB that are not
// finished, or not proven, yet. With its gate off, which is the default of Alpha features, a
// part does nothing: the manager writes the same objects as without it. Beta features are on by
// default. A gate goes when its feature has been on by default for a release.
package features

import (
	"fmt"

	"k8s.io/component-base/featuregate"
)

// WireFailover lets the nodes that are to follow a node watch it, and claim its Local
// addresses as soon as it is dead, also while there is no API server. The manager names
// these nodes, as successors in the Announcements of the holder, and tells them; their agents
// watch, claim, and report what they see and claim. The manager then decides about the claims.
const WireFailover featuregate.Feature = "WireFailover"

// SlowLeases has agents renew their Leases every ten seconds, instead of each second, while other nodes watch all Local
// addresses of their nodes. It does nothing without WireFailover.
const SlowLeases featuregate.Feature = "SlowLeases"

// New returns the gates with their defaults, for flags to change.
func New() (featuregate.MutableFeatureGate, error) {
	gates := featuregate.NewFeatureGate()
	err := gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		WireFailover: {Default: true, PreRelease: featuregate.Beta},
		SlowLeases:   {Default: false, PreRelease: featuregate.Alpha},
	})
	if err != nil {
		return nil, fmt.Errorf("list the feature gates: %w", err)
	}
	return gates, nil
}
