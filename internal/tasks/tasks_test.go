package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

// Wait says what it has waited for: the end of the context before signals, signals in their order before
// time.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make([]chan struct{}, 4)
		given := make([]<-chan struct{}, 4)
		for i := range signals {
			signals[i] = make(chan struct{}, 1)
			given[i] = signals[i]
		}
		expect := func(what string, ctx context.Context, while time.Duration, want int, took time.Duration) {
			t.Helper()
			began := time.Now()
			if got := (tasks.Goroutines{}).Wait(ctx, while, given...); got != want || time.Since(began) != took {
				t.Errorf("%s: %d after %s, want %d after %s", what, got, time.Since(began), want, took)
			}
		}
		ctx, end := context.WithCancel(t.Context())
		expect("nothing", ctx, time.Minute, tasks.TimeOver, time.Minute)
		expect("no time", ctx, 0, tasks.TimeOver, 0)
		expect("a time that has passed", ctx, -time.Hour, tasks.TimeOver, 0)
		for i := range signals {
			signals[i] <- struct{}{}
			expect("a signal that was given before", ctx, 0, i, 0)
			time.AfterFunc(time.Second, func() { signals[i] <- struct{}{} })
			expect("a signal", ctx, tasks.Forever, i, time.Second)
		}
		signals[3] <- struct{}{}
		signals[1] <- struct{}{}
		expect("the first of two", ctx, 0, 1, 0)
		expect("the second of two", ctx, 0, 3, 0)
		time.AfterFunc(time.Second, end)
		expect("the end", ctx, tasks.Forever, tasks.Ended, time.Second)
		signals[0] <- struct{}{}
		expect("after the end", ctx, 0, tasks.Ended, 0)
	})
}

// Each returns when all have ended.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sum atomic.Int64
		tasks.Goroutines{}.ForEachParallel(10, func(i int) {
			time.Sleep(time.Duration(i) * time.Second)
			sum.Add(int64(i))
		})
		if sum.Load() != 45 {
			t.Errorf("sum %d", sum.Load())
		}
	})
}

// Random durations are spread from 0 to the bound, and there is none below 0.
func TestRandom(t *testing.T) {
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := tasks.Goroutines{}.Random(time.Second)
		least, most = min(least, d), max(most, d)
	}
	if least < 0 || least > 100*time.Millisecond || most >= time.Second || most < 900*time.Millisecond {
		t.Errorf("from %s to %s", least, most)
	}
	if d := (tasks.Goroutines{}).Random(0); d != 0 {
		t.Errorf("%s of none", d)
	}
}
