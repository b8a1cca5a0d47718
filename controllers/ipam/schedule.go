package ipam

import (
	"time"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// schedule is when to do a job. Each job has one of its own, so that one that fails holds
// up no other.
type schedule struct {
	dueAt time.Time
	// waitsSince is since when the job has been waiting for its turn: it came then, or
	// was last tried.
	waitsSince time.Time
	backoff    pacing.Backoff
}

func newSchedule(now time.Time, backoff pacing.Backoff) schedule {
	return schedule{dueAt: now, waitsSince: now, backoff: backoff}
}

// postpone notes that the job has failed once more.
func (s *schedule) postpone(now time.Time, failure *Error) {
	wait := s.backoff.Next()
	if !failure.isOneRequestUnanswered() {
		wait = max(wait, minRefusedRetry)
	}
	s.dueAt = now.Add(wait)
}

// hasten lets the job be done at once.
func (s *schedule) hasten(now time.Time) {
	if s.dueAt.After(now) {
		s.dueAt = now
	}
}

// restart forgets that the job has failed.
func (s *schedule) restart(now time.Time) {
	s.backoff.Reset()
	s.hasten(now)
}
