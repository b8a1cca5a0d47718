// Package seed gives random tests their seed: the same in each run, so that a test passes or fails
// because of a change and not by luck, unless PURELB_TEST_SEED says another.
package seed

import (
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable that has another seed, a decimal number.
const Variable = "PURELB_TEST_SEED"

// Of returns the seed of a test: the number in Variable, or else the fallback, and logs it. The test
// fails if Variable has no number.
func Of(t testing.TB, fallback int64) int64 {
	t.Helper()
	seed := fallback
	if text := os.Getenv(Variable); text != "" {
		var err error
		if seed, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("%s is no number: %v", Variable, err)
		}
	}
	t.Logf("%s=%d", Variable, seed)
	return seed
}
