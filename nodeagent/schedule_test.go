package nodeagent

import (
	"errors"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

func TestSyncSchedule(t *testing.T) {
	now := time.Unix(1000, 0)
	after := func(d time.Duration) { now = now.Add(d) }
	wantWait := func(s *syncSchedule, want time.Duration) {
		t.Helper()
		if got := s.wait(now); got != want {
			t.Errorf("it waits for %s, want %s", got, want)
		}
	}
	wantTake := func(s *syncSchedule, want bool) {
		t.Helper()
		if got := s.take(now); got != want {
			t.Errorf("a sync now: %v, want %v", got, want)
		}
	}
	sync := func(s *syncSchedule, took, wait time.Duration, hasSynced bool, err error) {
		s.begin(now)
		after(took)
		s.end(now, wait, hasSynced, err)
	}
	failure := errors.New("no")

	t.Run("nothing is asked for", func(*testing.T) {
		s := newSyncSchedule()
		wantWait(s, tasks.Forever)
		wantTake(s, true)
		sync(s, 0, 0, true, nil)
		wantWait(s, tasks.Forever)
	})
	t.Run("the earliest that is asked for", func(*testing.T) {
		s := newSyncSchedule()
		s.syncIn(now, time.Minute)
		s.syncIn(now, time.Hour)
		s.syncIn(now, 0)
		wantWait(s, time.Minute)
		s.syncIn(now, time.Second)
		wantWait(s, time.Second)
		after(time.Second)
		wantWait(s, 0)
		wantTake(s, true)
		wantWait(s, tasks.Forever)
	})
	t.Run("a sync that comes earlier leaves what is asked for", func(*testing.T) {
		s := newSyncSchedule()
		s.syncIn(now, time.Minute)
		wantTake(s, true)
		sync(s, 0, 0, true, nil)
		wantWait(s, time.Minute)
	})
	t.Run("a sync that comes after its time was for it", func(*testing.T) {
		s := newSyncSchedule()
		s.syncIn(now, time.Second)
		after(2 * time.Second)
		wantWait(s, -time.Second)
		wantTake(s, true)
		wantWait(s, tasks.Forever)
	})
	t.Run("a rest is as long as the sync made it", func(*testing.T) {
		s := newSyncSchedule()
		s.syncIn(now, time.Hour)
		sync(s, 10*time.Millisecond, 0, true, nil)
		rest := 10 * syncRestFactor * time.Millisecond
		wantTake(s, false)
		wantWait(s, rest)
		after(rest / 2)
		wantTake(s, false)
		wantWait(s, rest/2)
		after(rest / 2)
		wantWait(s, 0)
		wantTake(s, true)
		wantWait(s, time.Hour-rest-10*time.Millisecond)
	})
	t.Run("a rest has an end", func(*testing.T) {
		s := newSyncSchedule()
		sync(s, time.Hour, 0, true, nil)
		wantTake(s, false)
		wantWait(s, maxSyncRest)
	})
	t.Run("failures in a row", func(*testing.T) {
		s := newSyncSchedule()
		fail := func(want time.Duration) {
			t.Helper()
			sync(s, 0, time.Hour, true, failure)
			wantWait(s, want)
			after(want)
			wantTake(s, true)
		}
		fail(minRetry)
		fail(2 * minRetry)
		sync(s, 0, 0, false, nil) // there was nothing to sync by
		fail(4 * minRetry)
		sync(s, 0, 0, true, nil)
		fail(minRetry)
	})
}
