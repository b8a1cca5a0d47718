//go:build simulate

package sim

import "testing"

// TestSimulateCosts is make sim-costs: it counts what PureLB writes for each kind of event in clusters of some sizes.
func TestSimulateCosts(t *testing.T) {
	for _, slow := range []bool{false, true} {
		checkCosts(t, clusterSize{8, 16, slow}, 1, 2, 4)
		checkCosts(t, clusterSize{16, 64, slow}, 1, 2, 4, 8)
		checkCosts(t, clusterSize{32, 96, slow}, 1, 2, 4, 8, 16)
	}
}
