//go:build proof

package neigh

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestProofManyHeld probes for 5,000 addresses at once that the neighbour has, with the agent's
// interval: Probe takes none of them for free, even while other goroutines use all processors.
func TestProofManyHeld(t *testing.T) {
	neighbour := connectNeighbour(t)
	v4, v6 := addManyAddresses(t, neighbour, 5000)
	e := openEthernet(t)
	for name, burners := range map[string]int{"idle": 0, "busy": 2 * runtime.NumCPU()} {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			defer stop.Store(true)
			for range burners {
				go func() {
					for !stop.Load() { //nolint:revive // the loop uses a processor
					}
				}()
			}
			expectAllHeld(t, e, v4, 100*time.Millisecond)
			expectAllHeld(t, e, v6, 100*time.Millisecond)
		})
	}
}
