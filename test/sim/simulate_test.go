//go:build simulate

package sim_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/sim"
)

// TestSimulate is make sim: it plays as many seeds as SIM_SEEDS says, from SIM_FIRST on, on all cores; or it
// tells the story of SIM_SEED, of the kind SIM_KIND.
func TestSimulate(t *testing.T) {
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
		if err != nil && os.Getenv(name) != "" {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	count, first := number("SIM_SEEDS"), number("SIM_FIRST")
	if kind := os.Getenv("SIM_KIND"); kind != "" {
		tell(t, kind, number("SIM_SEED"))
		return
	}
	if count == 0 {
		t.Fatal("SIM_SEEDS says how many seeds to play")
	}
	var next atomic.Uint64
	begun := now()
	t.Run("seeds", func(t *testing.T) {
		for worker := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				for i := next.Add(1) - 1; i < count && !t.Failed(); i = next.Add(1) - 1 {
					check(t, int(i)%len(kindsOfHistory), first+i) //nolint:gosec // below their number
				}
			})
		}
	})
	took, simulated := now()-begun, time.Duration(0)
	for i := range min(count, next.Load()) {
		simulated += kindsOfHistory[i%uint64(len(kindsOfHistory))].profile.While + sim.Settled
	}
	fmt.Printf("%d seeds in %s: %.1f seeds and %.2f simulated hours in a second\n",
		count, took.Round(time.Second), float64(count)/took.Seconds(), simulated.Hours()/took.Seconds())
}

// tell tells the story of a seed.
func tell(t *testing.T, name string, seed uint64) {
	t.Helper()
	for kind := range kindsOfHistory {
		if kindsOfHistory[kind].name == name {
			if violations := playHistory(t, kind, seed, nil, os.Stdout); len(violations) > 0 {
				t.Errorf("%q", violations)
			}
			return
		}
	}
	t.Fatalf("no kind of history is named %q", name)
}

// now is a clock that no simulation has.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail
	return time.Duration(ts.Nano())
}
