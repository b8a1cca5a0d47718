package sim

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// World is the time of a simulation and what is to happen in it.
type World struct {
	seed    uint64
	random  *rand.Rand
	story   io.Writer
	began   time.Time
	pending happenings
	number  int
	// running is the task that runs now; nil for none.
	running *task
	// version grows when nodes and links change.
	version int
	// Inspect, if set, is called after all that happens.
	Inspect func()
	// OnEvent, if set, is called with each event that a manager records.
	OnEvent func(Event)
}

// Event is an event of Kubernetes: what somebody says of an object.
type Event struct {
	// Related is nil, or another object that it is about.
	Regarding, Related         runtime.Object
	Type, Reason, Action, Note string
}

// NewWorld returns a world that begins now, in which seed decides what is random. What happens is told to
// story, a line each.
func NewWorld(seed uint64, story io.Writer) *World {
	return &World{seed: seed, random: rand.New(rand.NewPCG(seed, 0)), story: story, began: time.Now()}
}

// Happening is something that is to happen. It can be cancelled.
type Happening struct {
	at time.Time
	// turn decides which of those of one moment is first, and number which of those of one turn.
	turn, number int
	do           func()
	isCancelled  bool
}

// Cancel makes it not happen, if it has not happened yet.
func (h *Happening) Cancel() { h.isCancelled = true }

// happenings are a heap, the next one first.
type happenings []*Happening

func (p happenings) Len() int      { return len(p) }
func (p happenings) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *happenings) Push(h any)   { *p = append(*p, h.(*Happening)) }
func (p *happenings) Pop() any {
	last := (*p)[len(*p)-1]
	(*p)[len(*p)-1] = nil
	*p = (*p)[:len(*p)-1]
	return last
}

func (p happenings) Less(i, j int) bool {
	a, b := p[i], p[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	if a.turn != b.turn {
		return a.turn < b.turn
	}
	return a.number < b.number
}

// turns is how many turns there are: enough that what happens at one moment comes in any order.
const turns = 1 << 16

// After makes something happen after a while; at once, and before anything that is later, if that is 0 or
// less. What is to happen at one moment does so in an order that the seed decides.
func (w *World) After(wait time.Duration, do func()) *Happening {
	w.number++
	h := &Happening{at: time.Now().Add(max(wait, 0)), turn: w.random.IntN(turns), number: w.number, do: do}
	heap.Push(&w.pending, h)
	return h
}

// postpone makes something happen now that should have happened before.
func (w *World) postpone(h *Happening) {
	h.at = time.Now()
	heap.Push(&w.pending, h)
}

// Run lets a while pass, and what is to happen in it happen.
func (w *World) Run(while time.Duration) {
	end := time.Now().Add(while)
	for len(w.pending) > 0 && !w.pending[0].at.After(end) {
		h := heap.Pop(&w.pending).(*Happening)
		if h.isCancelled {
			continue
		}
		if wait := time.Until(h.at); wait > 0 {
			time.Sleep(wait)
			synctest.Wait() // until contexts know whose deadlines are over
		}
		h.do()
		if w.Inspect != nil {
			w.Inspect()
		}
	}
	if wait := time.Until(end); wait > 0 {
		time.Sleep(wait)
	}
}

// Between returns a duration of at least shortest and less than longest.
func (w *World) Between(shortest, longest time.Duration) time.Duration {
	return between(w.random, shortest, longest)
}

func between(random *rand.Rand, shortest, longest time.Duration) time.Duration {
	if longest <= shortest {
		return shortest
	}
	return shortest + time.Duration(random.Int64N(int64(longest-shortest)))
}

// Chance is true so often, of 1.
func (w *World) Chance(of float64) bool { return w.random.Float64() < of }

// Pick returns a number from 0 to count-1.
func (w *World) Pick(count int) int { return w.random.IntN(count) }

// Tell adds a line to the story: who does what, with the time since the world began.
func (w *World) Tell(who, what string, args ...any) {
	fmt.Fprintf(w.story, "%12.6f  %-10s %s\n", time.Since(w.began).Seconds(), who, fmt.Sprintf(what, args...))
}
