package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

// playTasks plays tasks of a process, kills it, and returns the story.
func playTasks(t *testing.T, seed uint64, do func(p *process)) string {
	t.Helper()
	var story strings.Builder
	synctest.Test(t, func(*testing.T) {
		p := &process{world: NewWorld(seed, &story), clock: newClock()}
		do(p)
		p.kill()
		if len(p.tasks) > 0 {
			t.Errorf("%d tasks are left", len(p.tasks))
		}
	})
	return story.String()
}

// A task waits for a signal of another, for time, for the end of its context, and for its deadline.
func TestTasks(t *testing.T) {
	story := playTasks(t, 1, func(p *process) {
		w, signal := p.world, make(chan struct{}, 1)
		ctx, end := context.WithCancel(context.Background())
		p.Go(func() {
			for {
				reason := p.Wait(ctx, 2*time.Second, signal)
				w.Tell("a", "%d", reason)
				if reason == tasks.Ended {
					return
				}
			}
		})
		p.Go(func() {
			p.Wait(ctx, time.Second)
			signal <- struct{}{}
			p.Wait(ctx, 4*time.Second)
			end()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			w.Tell("b", "%d %v", p.Wait(ctx, tasks.Forever), ctx.Err())
		})
		w.Run(10 * time.Second)
	})
	got := ""
	for line := range strings.Lines(story) {
		var at float64
		var what string
		if _, err := fmt.Sscanf(line, "%f", &at); err != nil {
			t.Fatal(err)
		}
		_, what, _ = strings.Cut(strings.TrimSpace(line), " ")
		got += fmt.Sprintf("%.0f %s\n", at, strings.Join(strings.Fields(what), " "))
	}
	if want := "1 a 0\n3 a -1\n5 a -2\n6 b -2 context deadline exceeded\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// A process that is paused goes on later with what its tasks missed, and one that is killed ends them.
func TestTasksOfPausedAndKilledProcess(t *testing.T) {
	story := playTasks(t, 1, func(p *process) {
		w := p.world
		p.Go(func() {
			for p.Wait(context.Background(), time.Second) == tasks.TimeOver {
				w.Tell("a", "tick")
			}
			w.Tell("a", "ended")
		})
		w.Run(1500 * time.Millisecond)
		p.Pause()
		w.Run(10 * time.Second)
		p.Resume()
		w.Run(1500 * time.Millisecond)
		p.kill()
		p.Go(func() { w.Tell("a", "begun by a dead process") })
		w.Run(10 * time.Second)
	})
	var got []string
	for line := range strings.Lines(story) {
		got = append(got, strings.Join(strings.Fields(line)[:1], "")[:2]+strings.Fields(line)[2])
	}
	if want := "[1.tick 11tick 12tick 13ended]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s\n%s", got, want, story)
	}
}
