// Package watchdog says whether the agent or the speaker is stuck. Both work in rounds, one after the other: a stuck
// one fails its liveness probe. None of that depends on the API server: no round waits for it.
package watchdog

import (
	"fmt"
	"sync"
	"time"
)

// Watchdog says whether a program is stuck: a round does not end, its worker takes nothing, or rounds fail. The
// program tells it of rounds, and of what it asks its worker.
//
// What a Watchdog remembers is lost with the process, and the next process counts as one that works.
type Watchdog struct {
	options Options

	mu sync.Mutex
	// startedAt is when the Watchdog was made.
	startedAt time.Time
	// roundBegan is when the round began that runs now; zero for none.
	roundBegan time.Time
	// hasCompleted means that a round has done something.
	hasCompleted bool
	// failingSince is when the first of the rounds began that have failed since the last one that did something; zero
	// for none. failure is the error of the last one.
	failingSince time.Time
	failure      error
	// emptyItemSince is when the worker was given the empty item that it has not taken yet; zero for none.
	emptyItemSince time.Time
	// giveEmptyItem gives the worker an empty item; nil before the worker begins.
	giveEmptyItem func()
}

// Options say when a program counts as stuck.
type Options struct {
	// Program and Round are named in errors: "agent", "sync".
	Program, Round string
	// StuckAfter is for how long a round may run, rounds may fail, or an item may wait.
	StuckAfter time.Duration
	// StartTimeout is after how long a round has to have done something since the start; 0 is never.
	StartTimeout time.Duration
	// Now tells the time; time.Now does, if it is nil.
	Now func() time.Time
}

// New returns the Watchdog of a program that starts now.
func New(options Options) *Watchdog {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Watchdog{options: options, startedAt: options.Now()}
}

// BeginRound notes that a round begins.
func (w *Watchdog) BeginRound() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.roundBegan = w.options.Now()
}

// EndRound notes that a round ends, and with what error if it could do nothing at all.
func (w *Watchdog) EndRound(failure error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.roundBegan
	w.roundBegan = time.Time{}
	if failure == nil {
		w.hasCompleted, w.failingSince, w.failure = true, time.Time{}, nil
		return
	}
	if w.failingSince.IsZero() {
		w.failingSince = began
	}
	w.failure = failure
}

// SetGiveEmptyItem sets how the worker is given an empty item: a worker that takes it would take any other.
func (w *Watchdog) SetGiveEmptyItem(give func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.giveEmptyItem = give
}

// NoteItemTaken notes that the worker has taken an item.
func (w *Watchdog) NoteItemTaken() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.emptyItemSince = time.Time{}
}

// PingWorker gives the worker an empty item, unless it has not taken the last one yet, or has not begun. A worker for
// which nothing changes has no rounds.
func (w *Watchdog) PingWorker() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.giveEmptyItem == nil || !w.emptyItemSince.IsZero() {
		return
	}
	w.emptyItemSince = w.options.Now()
	w.giveEmptyItem()
}

// CheckBlocked returns why no round can run, or nil: a round does not end, or the worker takes nothing.
func (w *Watchdog) CheckBlocked() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkBlocked(w.options.Now())
}

func (w *Watchdog) checkBlocked(now time.Time) error {
	switch {
	case w.isStuckSince(w.roundBegan, now):
		return w.stuck("a %s has been running for %s", w.options.Round, truncateToSeconds(now.Sub(w.roundBegan)))
	case w.isStuckSince(w.emptyItemSince, now):
		return w.stuck("its worker has taken nothing for %s", truncateToSeconds(now.Sub(w.emptyItemSince)))
	}
	return nil
}

// Check returns why the program counts as stuck, or nil if it is not stuck.
func (w *Watchdog) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.options.Now()
	if err := w.checkBlocked(now); err != nil {
		return err
	}
	options := &w.options
	switch {
	case w.isStuckSince(w.failingSince, now):
		return w.stuck("no %s has completed for %s: %w", options.Round, truncateToSeconds(now.Sub(w.failingSince)), w.failure)
	case !w.hasCompleted && options.StartTimeout > 0 && now.Sub(w.startedAt) > options.StartTimeout:
		return w.stuck("no %s has completed since it started %s ago", options.Round, truncateToSeconds(now.Sub(w.startedAt)))
	}
	return nil
}

func (w *Watchdog) stuck(format string, args ...any) error {
	return fmt.Errorf("the "+w.options.Program+" is stuck: "+format, args...)
}

func (w *Watchdog) isStuckSince(since, now time.Time) bool {
	return !since.IsZero() && now.Sub(since) > w.options.StuckAfter
}

func truncateToSeconds(d time.Duration) time.Duration { return d.Truncate(time.Second) }
