package measure

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatchClock lets the machine be late by what the called function takes.
func TestWatchClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		ctx, stop := context.WithCancel(t.Context())
		begun := time.Now()
		var late, woke []time.Duration
		busy := []time.Duration{0, 2 * ms, 30 * ms, 0, 0}
		WatchClock(ctx, 5*ms, func(at time.Time, by time.Duration) {
			woke, late = append(woke, at.Sub(begun)), append(late, by)
			time.Sleep(busy[len(late)-1])
			if len(late) == len(busy) {
				stop()
			}
		})
		for i, want := range []struct{ woke, late time.Duration }{
			{5 * ms, 0}, {10 * ms, 0}, {15 * ms, 0}, {45 * ms, 25 * ms}, {50 * ms, 0},
		} {
			if woke[i] != want.woke || late[i] != want.late {
				t.Errorf("waking %d: at %s, %s late; want %s, %s", i, woke[i], late[i], want.woke, want.late)
			}
		}
	})
}

func TestLatenessMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := StartLateness(t.Context())
		time.Sleep(time.Second)
		if got := m.Stop(); got.Wakings < 190 || got.Wakings > 200 || got.Longest != 0 {
			t.Errorf("on a machine that is never late: %+v", got)
		}
		m = StartLateness(t.Context())
		time.Sleep(time.Millisecond)
		if got := m.Stop(); got.Wakings != 0 || got.Longest != time.Millisecond {
			t.Errorf("a process that never woke: %+v", got)
		}
	})
}

func TestParsePressure(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=98.49 avg60=90.83 avg300=52.25 total=243762790\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n": 243762790 * time.Microsecond,
		"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\nsome total=12": 12 * time.Microsecond,
	} {
		if got, ok := parsePressure(text); !ok || got != want {
			t.Errorf("%q: %s, %t; want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "full avg10=0.00 total=3\n", "some avg10=1.00\n", "some total=many\n"} {
		if got, ok := parsePressure(text); ok {
			t.Errorf("%q: %s; want none", text, got)
		}
	}
}
