package pacing

import (
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

// Backoff decides how long to wait after failures in a row. Its exported fields are
// set before it is used. It is not for concurrent use.
type Backoff struct {
	// Min is the wait after the first failure, and Max the longest one.
	Min, Max time.Duration
	// Spread is the random part of each wait, from 0 to 1: of a wait of 1 s and a
	// spread of 0.5 at least 0.5 s remain. A spread never makes a wait longer.
	Spread float64
	// Random returns a random duration from 0 to below a longest one, as a tasks.Runner does. If it is nil,
	// the random part is from a source of the process.
	Random func(below time.Duration) time.Duration

	failing  bool
	lastWait time.Duration // without the random part; 0 after a success
}

// Next notes one more failure, and returns how long to wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	b.failing, b.lastWait = true, min(max(b.Min, 2*b.lastWait), b.Max)
	random := b.Random
	if random == nil {
		random = tasks.Goroutines{}.Random
	}
	return b.lastWait - random(time.Duration(b.Spread*float64(b.lastWait)))
}

// Failing reports whether the last attempt failed.
func (b *Backoff) Failing() bool { return b.failing }

// Reset notes a success.
func (b *Backoff) Reset() { b.failing, b.lastWait = false, 0 }
