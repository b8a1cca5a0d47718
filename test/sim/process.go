package sim

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

// process is a program that can be paused, as a machine that sleeps pauses it, and killed. It runs its
// tasks, as a tasks.Runner, one at a time.
type process struct {
	world *World
	// clock is that of its machine.
	clock *Clock
	// pauses are how many causes there are that the process is paused.
	pauses   int
	isKilled bool
	// missed is what would have happened while the process was paused.
	missed []*Happening
	// tasks have begun and not ended, in the order in which they began.
	tasks []*task
}

// How soon a process does something that it can do.
const minSlice, maxSlice = time.Microsecond, 30 * time.Microsecond

// after makes the process do something after a while. Paused, it does so as soon as it goes on; killed, it
// does nothing any more.
func (p *process) after(wait time.Duration, do func()) *Happening {
	return p.afterTrue(p.clock.wait(wait), do)
}

// afterTrue does so after a while that is not measured by the process's clock.
func (p *process) afterTrue(wait time.Duration, do func()) *Happening {
	var h *Happening
	h = p.world.After(wait, func() {
		switch {
		case p.isKilled:
		case p.isPaused():
			p.missed = append(p.missed, h)
		default:
			do()
			p.wakeTasks()
		}
	})
	return h
}

// Pause makes the process do nothing until Resume, which is to be called as often.
func (p *process) Pause() { p.pauses++ }

func (p *process) isPaused() bool { return p.pauses > 0 }

// Resume lets the process go on with what it missed.
func (p *process) Resume() {
	if p.pauses--; p.isPaused() {
		return
	}
	missed := p.missed
	p.missed = nil
	for _, h := range missed {
		p.world.postpone(h)
	}
}

// kill ends the process at once, as the kernel does.
func (p *process) kill() {
	p.isKilled = true
	for len(p.tasks) > 0 {
		p.tasks[0].run()
	}
}

// task is a coroutine of a process: it runs until it waits, and nothing else runs meanwhile.
type task struct {
	process *process
	next    func() (struct{}, bool)
	stop    func()
	pause   func(struct{}) bool
	// ctx and signals are what it waits for, and due is when it has waited for long enough.
	ctx     context.Context
	signals []<-chan struct{}
	due     *Happening
	// isWaking means that it goes on soon.
	isWaking bool
}

// Go begins a task.
func (p *process) Go(do func()) {
	if p.isKilled {
		return
	}
	t := &task{process: p, isWaking: true}
	t.next, t.stop = iter.Pull(func(pause func(struct{}) bool) {
		t.pause = pause
		do()
	})
	p.tasks = append(p.tasks, t)
	p.after(p.world.Between(minSlice, maxSlice), t.run)
}

// ForEachParallel calls do with the numbers from 0 to count-1, one after the other.
func (p *process) ForEachParallel(count int, do func(i int)) {
	for i := range count {
		do(i)
	}
}

// Random returns a random duration.
func (p *process) Random(below time.Duration) time.Duration { return p.world.Between(0, below) }

// Now tells the time.
func (p *process) Now() time.Time { return p.clock.Now() }

// Wait waits. A killed process waits no more: for its tasks everything has ended.
func (p *process) Wait(ctx context.Context, while time.Duration, signals ...<-chan struct{}) int {
	var until time.Time
	if while != tasks.Forever {
		until = p.Now().Add(while)
	}
	for {
		if p.isKilled || ctx.Err() != nil {
			return tasks.Ended
		}
		for i, signal := range signals {
			select {
			case <-signal:
				return i
			default:
			}
		}
		if !until.IsZero() && !p.Now().Before(until) {
			return tasks.TimeOver
		}
		p.world.running.wait(ctx, until, signals)
	}
}

// wait lets others run until there may be something to do.
func (t *task) wait(ctx context.Context, until time.Time, signals []<-chan struct{}) {
	t.ctx, t.signals, t.isWaking = ctx, signals, false
	wait, isBounded := time.Duration(0), !until.IsZero()
	if isBounded {
		wait = t.process.clock.wait(until.Sub(t.process.Now()))
	}
	if deadline, hasDeadline := ctx.Deadline(); hasDeadline && (!isBounded || time.Until(deadline) < wait) {
		wait, isBounded = time.Until(deadline), true
	}
	if isBounded {
		t.due = t.process.afterTrue(wait, t.run)
	}
	t.pause(struct{}{})
	if t.due != nil {
		t.due.Cancel()
		t.due = nil
	}
}

// run lets the task go on until it waits or ends.
func (t *task) run() {
	p := t.process
	if t.pause == nil && p.isKilled { // it has not begun
		t.stop()
	} else {
		p.world.running = t
		_, isWaiting := t.next()
		p.world.running = nil
		if isWaiting {
			return
		}
	}
	p.tasks = slices.DeleteFunc(p.tasks, func(other *task) bool { return other == t })
}

// wakeTasks lets the tasks go on soon for which there is something to do.
func (p *process) wakeTasks() {
	for _, t := range p.tasks {
		if !t.isWaking && t.hasSignal() {
			t.isWaking = true
			p.after(p.world.Between(minSlice, maxSlice), t.run)
		}
	}
}

func (t *task) hasSignal() bool {
	return t.ctx.Err() != nil ||
		slices.ContainsFunc(t.signals, func(signal <-chan struct{}) bool { return len(signal) > 0 })
}
