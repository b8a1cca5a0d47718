package nodeagent

import (
	"time"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
)

// syncSchedule says when the worker syncs. A sync that something wakes the worker for comes at once, and one
// that was asked for, by the last sync or since, comes at its time; but none comes before the rest after the
// last sync has ended. The caller passes the time, which never goes back.
type syncSchedule struct {
	dueAt      time.Time // of the earliest sync that was asked for; zero for none
	restEndsAt time.Time // if a sync waits for the end of a rest; else zero
	rests      pacing.Batch
	retries    pacing.Backoff
}

func newSyncSchedule() *syncSchedule {
	return &syncSchedule{
		rests:   pacing.Batch{RestPerWork: syncRestFactor, MaxGap: maxSyncRest},
		retries: pacing.Backoff{Min: minRetry, Max: maxRetry},
	}
}

// wait is how long the worker waits if nothing wakes it: until a sync that waits for the end of a rest, or else
// until the sync that was asked for. It is tasks.Forever if there is neither.
func (s *syncSchedule) wait(now time.Time) time.Duration {
	switch {
	case !s.restEndsAt.IsZero():
		return s.restEndsAt.Sub(now)
	case !s.dueAt.IsZero():
		return s.dueAt.Sub(now)
	}
	return tasks.Forever
}

// take reports whether the worker, that was woken or has waited, syncs now. If the rest after the last sync has not
// ended, the sync comes once it has.
func (s *syncSchedule) take(now time.Time) bool {
	if rest := s.rests.Delay(now); rest > 0 {
		s.restEndsAt = now.Add(rest)
		return false
	}
	s.restEndsAt = time.Time{}
	if !now.Before(s.dueAt) {
		s.dueAt = time.Time{}
	}
	return true
}

// syncIn asks for a sync after a while, unless one is asked for that comes earlier; 0 asks for none.
func (s *syncSchedule) syncIn(now time.Time, wait time.Duration) {
	if at := now.Add(wait); wait > 0 && (s.dueAt.IsZero() || at.Before(s.dueAt)) {
		s.dueAt = at
	}
}

// begin notes that a sync begins.
func (s *syncSchedule) begin(now time.Time) { s.rests.Begin(now) }

// end notes that a sync has ended, and asks for the next one: after wait or, if the sync has failed, after a
// wait that each failure in a row doubles. If hasSynced is false, there was nothing to sync by, which says
// nothing about failures before.
func (s *syncSchedule) end(now time.Time, wait time.Duration, hasSynced bool, err error) {
	s.rests.End(now)
	switch {
	case err != nil:
		wait = s.retries.Next()
	case hasSynced:
		s.retries.Reset()
	}
	s.syncIn(now, wait)
}
