package watchdog

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// step is something that a program does, and how long passes after it.
type step struct {
	do   func(*Watchdog)
	wait time.Duration
}

func pass(wait time.Duration) step { return step{func(*Watchdog) {}, wait} }

func TestWatchdog(t *testing.T) {
	const (
		stuckAfter   = 5 * time.Second
		startTimeout = 15 * time.Second
	)
	errBlind, errOther := errors.New("blind"), errors.New("deaf")
	begin := func(wait time.Duration) step { return step{(*Watchdog).BeginRound, wait} }
	end := func(failure error, wait time.Duration) step {
		return step{func(w *Watchdog) { w.EndRound(failure) }, wait}
	}
	give := step{func(w *Watchdog) { w.SetGiveEmptyItem(func() {}) }, 0}
	test := func(wait time.Duration) step { return step{(*Watchdog).PingWorker, wait} }
	taken := step{(*Watchdog).NoteItemTaken, 0}

	for _, c := range []struct {
		name           string
		steps          []step
		isStartUnknown bool
		want           string
		isBlocked      bool
	}{
		{name: "it has just started", steps: []step{pass(startTimeout)}},
		{
			name: "no round since the start", steps: []step{pass(startTimeout + time.Second)},
			want: "the agent is stuck: no sync has completed since it started 16s ago",
		},
		{name: "no round since the start, which may take any time", isStartUnknown: true, steps: []step{pass(time.Hour)}},
		{name: "nothing to do for long", steps: []step{begin(0), end(nil, time.Hour)}},
		{name: "a round takes its time", steps: []step{begin(stuckAfter)}},
		{
			name: "a round does not end", steps: []step{begin(stuckAfter + 1100*time.Millisecond)}, isBlocked: true,
			want: "the agent is stuck: a sync has been running for 6s",
		},
		{name: "a slow round has ended", steps: []step{begin(time.Minute), end(nil, 0)}},
		{name: "a round has failed", steps: []step{begin(0), end(nil, 0), begin(0), end(errBlind, stuckAfter)}},
		{
			name: "rounds fail", want: "the agent is stuck: no sync has completed for 7s: deaf",
			steps: []step{
				begin(0), end(nil, 0), begin(2 * time.Second), end(errBlind, 4*time.Second), begin(time.Second), end(errOther, 0),
			},
		},
		{
			name: "a round has done something after those that failed",
			steps: []step{
				begin(0), end(errBlind, 4*time.Second), begin(0), end(nil, 4*time.Second), begin(0),
				end(errBlind, 4*time.Second),
			},
		},
		{
			name:  "a round fails, and the start has taken too long",
			steps: []step{pass(14 * time.Second), begin(0), end(errBlind, 2*time.Second)},
			want:  "the agent is stuck: no sync has completed since it started 16s ago",
		},
		{name: "the worker has not begun", isStartUnknown: true, steps: []step{test(time.Minute)}},
		{name: "the worker takes its time", isStartUnknown: true, steps: []step{give, test(stuckAfter)}},
		{
			name: "the worker takes nothing", isStartUnknown: true, isBlocked: true,
			steps: []step{give, test(4 * time.Second), test(2 * time.Second)},
			want:  "the agent is stuck: its worker has taken nothing for 6s",
		},
		{
			name: "the worker has taken an item", isStartUnknown: true,
			steps: []step{give, test(4 * time.Second), taken, test(4 * time.Second)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				options := Options{Program: "agent", Round: "sync", StuckAfter: stuckAfter, StartTimeout: startTimeout}
				if c.isStartUnknown {
					options.StartTimeout = 0
				}
				w := New(options)
				for _, s := range c.steps {
					s.do(w)
					time.Sleep(s.wait)
				}
				got := ""
				if err := w.Check(); err != nil {
					got = err.Error()
				}
				if isBlocked := w.CheckBlocked() != nil; got != c.want || isBlocked != c.isBlocked {
					t.Errorf("got %q, blocked: %t; want %q, blocked: %t", got, isBlocked, c.want, c.isBlocked)
				}
			})
		})
	}
}

// TestEmptyItems gives the worker one item at a time.
func TestEmptyItems(t *testing.T) {
	w, given := New(Options{}), 0
	w.PingWorker() // which has not begun
	w.SetGiveEmptyItem(func() { given++ })
	for range 2 {
		w.PingWorker()
	}
	w.NoteItemTaken()
	w.PingWorker()
	if given != 2 {
		t.Errorf("%d items, not 2", given)
	}
}
