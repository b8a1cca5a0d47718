// Package seeds says from which seeds tests make what is random in them. By default the seeds are
// the same each time, so that a test passes or fails because of a change, and not by luck. The
// environment variable PURELB_TEST_SEED, a number, chooses others: it plays a failure again, or
// looks for failures that no test has shown yet.
package seeds

import (
	"os"
	"strconv"
	"testing"
)

// variable is the environment variable that chooses the first seed.
const variable = "PURELB_TEST_SEED"

// First returns the first seed of a test, and logs it. A test that plays several histories takes
// ascending seeds from it: set to the seed of the one that failed, the variable makes that one
// the first.
func First(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv(variable); text != "" {
		chosen, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is %q: it must be a number from 0 to %d", variable, text, uint64(1<<64-1))
		}
		seed = chosen
	}
	t.Logf("first seed %d; %s chooses another", seed, variable)
	return seed
}
