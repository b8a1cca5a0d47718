package gobgp

import (
	"testing"
	"time"
)

// TestRedial follows a neighbour whose sessions end.
func TestRedial(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &redialSchedule{}
	if r.takeDue(now) {
		t.Error("a session that has never been up is called again")
	}
	for i, step := range []struct {
		upFor, want time.Duration
	}{
		{time.Hour, 0},
		{time.Second, 500 * time.Millisecond},
		{time.Second, time.Second},
		{time.Second, 2 * time.Second},
		{29 * time.Second, 2 * time.Second},
		{30 * time.Second, 0},
		{0, 500 * time.Millisecond},
	} {
		r.noteUp(now)
		if now = now.Add(step.upFor); r.takeDue(now) {
			t.Errorf("session %d is up, and called again", i)
		}
		r.noteDown(now)
		if r.takeDue(now.Add(step.want - time.Millisecond)) {
			t.Errorf("session %d is called again before %s", i, step.want)
		}
		if now = now.Add(step.want); !r.takeDue(now) {
			t.Errorf("session %d is not called again after %s", i, step.want)
		}
		if r.takeDue(now.Add(time.Hour)) {
			t.Errorf("session %d is called again twice", i)
		}
	}
	r.noteDown(now)
	r.noteUp(now)
	if r.takeDue(now.Add(time.Hour)) {
		t.Error("a session that is up by itself is called again")
	}
}
