package pacing

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestBatch(t *testing.T) {
	start := time.Unix(1000, 0)
	batch := func() *Batch { return &Batch{Wait: 2 * ms, Gap: 20 * ms, RestPerWork: 3, MaxGap: 2 * time.Second} }
	ran := func(took time.Duration) *Batch { // ended at start
		b := batch()
		b.Begin(start.Add(-took))
		b.End(start)
		return b
	}
	running := ran(50 * ms)
	running.Begin(start)
	for name, c := range map[string]struct {
		batch *Batch
		after time.Duration
		want  time.Duration
	}{
		"zero value":                  {&Batch{}, 0, 0},
		"first request":               {batch(), 0, 2 * ms},
		"right after a short run":     {ran(ms), 0, 20 * ms},
		"within the gap":              {ran(ms), 15 * ms, 5 * ms},
		"end of the gap":              {ran(ms), 19 * ms, 2 * ms},
		"after a rest":                {ran(ms), time.Hour, 2 * ms},
		"right after a long run":      {ran(100 * ms), 0, 300 * ms},
		"right after a very long run": {ran(time.Minute), 0, 2 * time.Second},
		"while a run goes on":         {running, 10 * ms, 150 * ms},
		"the clock was set back":      {ran(ms), -time.Hour, 20 * ms},
		"without rest per work": {
			func() *Batch { b := ran(time.Second); b.RestPerWork = 0; return b }(), 0, 20 * ms,
		},
		"a first run that has not yet ended": {func() *Batch { b := batch(); b.Begin(start); return b }(), 0, 20 * ms},
	} {
		if got := c.batch.Delay(start.Add(c.after)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 20 * ms, Max: 150 * ms}
	next := func() (waits []time.Duration) {
		for range 5 {
			waits = append(waits, b.Next())
		}
		return waits
	}
	want := []time.Duration{20 * ms, 40 * ms, 80 * ms, 150 * ms, 150 * ms}
	if b.Failing() {
		t.Error("it fails before the first failure")
	}
	if waits := next(); !slices.Equal(waits, want) {
		t.Errorf("waits %s, want %s", waits, want)
	}
	if !b.Failing() {
		t.Error("it does not fail after failures")
	}
	if b.Reset(); b.Failing() {
		t.Error("it fails after a success")
	}
	if waits := next(); !slices.Equal(waits, want) {
		t.Errorf("after a success: waits %s, want %s", waits, want)
	}
	for range 1000 {
		if wait := b.Next(); wait != 150*ms {
			t.Fatalf("after many failures: %s", wait)
		}
	}
}

func TestBackoffSpread(t *testing.T) {
	b := Backoff{Min: time.Second, Max: time.Second, Spread: 0.5}
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		wait := b.Next()
		least, most = min(least, wait), max(most, wait)
	}
	if least < 500*ms || least > 600*ms || most > time.Second || most < 900*ms {
		t.Errorf("waits from %s to %s, want them spread from 500ms to 1s", least, most)
	}
}

// The random part is from the source that it is given.
func TestBackoffRandom(t *testing.T) {
	var asked []time.Duration
	b := Backoff{Min: time.Second, Max: 3 * time.Second, Spread: 0.5, Random: func(below time.Duration) time.Duration {
		asked = append(asked, below)
		return below / 5
	}}
	waits := []time.Duration{b.Next(), b.Next(), b.Next()}
	if want := []time.Duration{900 * ms, 1800 * ms, 2700 * ms}; !slices.Equal(waits, want) {
		t.Errorf("waits %s, want %s", waits, want)
	}
	if want := []time.Duration{500 * ms, 1000 * ms, 1500 * ms}; !slices.Equal(asked, want) {
		t.Errorf("asked for random durations below %s, want %s", asked, want)
	}
}
