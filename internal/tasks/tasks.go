// Package tasks runs what a program does side by side: each task waits for signals and for time to pass,
// and never in another way. Goroutines runs tasks as goroutines; a simulation runs them one at a time, in
// an order of its own.
//
// A task must hold no lock while it waits, as the others may need it to go on.
package tasks

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Runner runs tasks.
type Runner interface {
	// Go begins a task and does not wait for it.
	Go(task func())
	// Each calls do with the numbers from 0 to count-1, each in a task of its own, and waits until all have
	// ended.
	ForEachParallel(count int, do func(i int))
	// Wait waits until there is a signal, a while has passed, or ctx has ended, at most maxSignals
	// signals. Of the signals that there are it takes the first one and returns its index, otherwise
	// TimeOver or, before all others, Ended. Forever is a while that does not pass; a while of 0 or less
	// has passed.
	Wait(ctx context.Context, while time.Duration, signals ...<-chan struct{}) int
	// Random returns a random duration from 0 to below a longest one.
	Random(below time.Duration) time.Duration
	// Now tells the time, by the clock by which Wait waits.
	Now() time.Time
}

// Until returns how long it takes a runner until a time.
func Until(r Runner, at time.Time) time.Duration { return at.Sub(r.Now()) }

// What Wait returns if it takes no signal.
const (
	// TimeOver is that the while has passed.
	TimeOver = -1
	// Ended is that ctx has ended.
	Ended = -2
)

// Forever is a while that does not pass.
const Forever time.Duration = math.MaxInt64

// maxSignals bounds how many signals a task waits for at a time.
const maxSignals = 4

// OrForever returns a wait, or Forever if it is 0, as of something that is to be done when something
// changes.
func OrForever(wait time.Duration) time.Duration {
	if wait == 0 {
		return Forever
	}
	return wait
}

// Goroutines runs each task as a goroutine.
type Goroutines struct{}

// Go begins a goroutine.
func (Goroutines) Go(task func()) { go task() }

// ForEachParallel runs goroutines, and waits for them.
func (Goroutines) ForEachParallel(count int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// Wait waits.
func (Goroutines) Wait(ctx context.Context, while time.Duration, signals ...<-chan struct{}) int {
	if ctx.Err() != nil {
		return Ended
	}
	for i, signal := range signals {
		select {
		case <-signal:
			return i
		default:
		}
	}
	if while <= 0 {
		return TimeOver
	}
	var due <-chan time.Time
	if while != Forever {
		timer := time.NewTimer(while)
		defer timer.Stop()
		due = timer.C
	}
	var s [maxSignals]<-chan struct{}
	if copy(s[:], signals) < len(signals) {
		panic("a task waits for too many signals")
	}
	select {
	case <-ctx.Done():
		return Ended
	case <-due:
		return TimeOver
	case <-s[0]:
		return 0
	case <-s[1]:
		return 1
	case <-s[2]:
		return 2
	case <-s[3]:
		return 3
	}
}

// Now tells the time.
func (Goroutines) Now() time.Time { return time.Now() }

// Random returns a random duration.
func (Goroutines) Random(below time.Duration) time.Duration {
	if below <= 0 {
		return 0
	}
	return rand.N(below) //nolint:gosec // a random wait spreads load, and is no secret
}
