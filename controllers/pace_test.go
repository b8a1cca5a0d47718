package controllers

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	start := time.Now()
	for _, row := range []struct {
		name        string
		took        time.Duration // of a run that ended at start; 0 for none
		working     bool
		later, want time.Duration
	}{
		{"for the first time", 0, false, 0, 2 * ms},
		{"right after a short run", 1 * ms, false, 0, 20 * ms},
		{"somewhat later", 1 * ms, false, 15 * ms, 5 * ms},
		{"after a rest", 1 * ms, false, 20 * ms, 2 * ms},
		{"long after", 1 * ms, false, time.Hour, 2 * ms},
		{"right after a long run", 100 * ms, false, 0, 300 * ms},
		{"right after a very long run", 10 * time.Second, false, 0, 2 * time.Second},
		{"while working, after a short run", 1 * ms, true, time.Hour, 20 * ms},
		{"while working, after a long run", 100 * ms, true, time.Hour, 300 * ms},
		{"the clock was set back", 1 * ms, false, -time.Hour, 20 * ms},
	} {
		now := start.Add(-row.took)
		clock := func() time.Time { return now }
		p := &pace{}
		if row.took > 0 {
			done := p.work(clock)
			now = start
			done()
		}
		if row.working {
			p.work(clock)
		}
		if got := p.delay(start.Add(row.later)); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}
