package nodeagent

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// watchdog says whether the agent is stuck. A stuck agent renews no Lease, so that other nodes
// probe for its addresses, which fade from its kernel, and fails its liveness probe. None of
// that depends on the API server: no sync waits for it.
//
// An idle agent does not sync, as nothing changes. Before each renewal the heartbeat gives the
// worker an empty item: a worker that takes it would take any other.
//
// What the watchdog remembers is lost with the process, and the next process counts as one that
// works.
type watchdog struct {
	mu sync.Mutex
	// startedAt is when the agent was made.
	startedAt time.Time
	// syncBegan is when the sync began that runs now; zero for none.
	syncBegan time.Time
	// completedAt is when a sync last completed; zero for never.
	completedAt time.Time
	// failingSince is when the first of the whole syncs began that have failed since the last
	// one that completed; zero for none. failure is the error of the last one.
	failingSince time.Time
	failure      error
	// emptyItemSince is when the worker was given the empty item that it has not taken yet;
	// zero for none.
	emptyItemSince time.Time
	// giveEmptyItem gives the worker an empty item; nil before the worker begins.
	giveEmptyItem func()
}

func newWatchdog() *watchdog { return &watchdog{startedAt: time.Now()} }

// beginSync notes that a sync begins.
func (w *watchdog) beginSync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.syncBegan = time.Now()
}

// endSync notes that a sync ends, and with what error.
func (w *watchdog) endSync(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.syncBegan
	w.syncBegan = time.Time{}
	if !errors.Is(err, errUnobserved) {
		w.completedAt, w.failingSince, w.failure = time.Now(), time.Time{}, nil
		return
	}
	if w.failingSince.IsZero() {
		w.failingSince = began
	}
	w.failure = err
}

// setGiveEmptyItem sets how the worker is given an empty item.
func (w *watchdog) setGiveEmptyItem(give func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.giveEmptyItem = give
}

// noteItemTaken notes that the worker has taken an item.
func (w *watchdog) noteItemTaken() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.emptyItemSince = time.Time{}
}

// testWorker gives the worker an empty item, unless it has not taken the last one yet, or has
// not begun.
func (w *watchdog) testWorker() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.giveEmptyItem == nil || !w.emptyItemSince.IsZero() {
		return
	}
	w.emptyItemSince = time.Now()
	w.giveEmptyItem()
}

// checkBlocked returns why no sync can run, or nil: a sync does not end, or the worker takes
// nothing.
func (w *watchdog) checkBlocked() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case isStuckSince(w.syncBegan, now):
		return fmt.Errorf("the agent is stuck: a sync has been running for %s", now.Sub(w.syncBegan).Truncate(time.Second))
	case isStuckSince(w.emptyItemSince, now):
		return fmt.Errorf(
			"the agent is stuck: its worker has taken nothing for %s", now.Sub(w.emptyItemSince).Truncate(time.Second),
		)
	}
	return nil
}

// check returns why the agent counts as stuck, or nil if it is not stuck.
func (w *watchdog) check() error {
	if err := w.checkBlocked(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case isStuckSince(w.failingSince, now):
		return fmt.Errorf(
			"the agent is stuck: no sync has completed for %s: %w", now.Sub(w.failingSince).Truncate(time.Second), w.failure,
		)
	case w.completedAt.IsZero() && now.Sub(w.startedAt) > startTimeout:
		return fmt.Errorf(
			"the agent is stuck: no sync has completed since it started %s ago", now.Sub(w.startedAt).Truncate(time.Second),
		)
	}
	return nil
}

func isStuckSince(since, now time.Time) bool { return !since.IsZero() && now.Sub(since) > stuckAfter }
