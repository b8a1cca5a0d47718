package sim

import (
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queue is the queue of a component. It works some requests side by side, each as a task of the process,
// and no request twice at a time.
type queue struct {
	// What handlers do not use of a queue panics.
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	process *process
	name    string
	// workers is how many requests are worked at a time.
	workers int
	work    func(reconcile.Request) (reconcile.Result, error)
	// due are the requests that wait, with what makes each begin.
	due map[reconcile.Request]*waiting
	// failures are how often a request has failed in a row.
	failures map[reconcile.Request]int
	// active are the requests that are worked, each with whether it has to be worked once more after that, and
	// ready are those that wait for a worker.
	active map[reconcile.Request]bool
	ready  []reconcile.Request
}

type waiting struct {
	at    time.Time
	begin *Happening
}

func newQueue(
	p *process, name string, workers int, work func(reconcile.Request) (reconcile.Result, error),
) *queue {
	return &queue{
		process: p, name: name, workers: max(workers, 1), work: work, due: map[reconcile.Request]*waiting{},
		failures: map[reconcile.Request]int{}, active: map[reconcile.Request]bool{},
	}
}

// Add makes a request be worked soon.
func (q *queue) Add(r reconcile.Request) { q.AddAfter(r, q.process.world.Between(minWork, maxWork)) }

// minWork and maxWork are how soon a component works what it has to.
const minWork, maxWork = 100 * time.Microsecond, 2 * time.Millisecond

// AddAfter makes a request be worked after a while, or sooner if it waits for less.
func (q *queue) AddAfter(r reconcile.Request, wait time.Duration) {
	at := time.Now().Add(wait)
	if w := q.due[r]; w != nil {
		if !at.Before(w.at) {
			return
		}
		w.begin.Cancel()
	}
	q.due[r] = &waiting{at, q.process.after(wait, func() { q.begin(r) })}
}

// begin works a request, as soon as it is not worked already and there is a worker.
func (q *queue) begin(r reconcile.Request) {
	delete(q.due, r)
	switch _, isActive := q.active[r]; {
	case isActive:
		q.active[r] = true
	case len(q.active) < q.workers:
		q.active[r] = false
		q.process.Go(func() { q.finish(r) })
	case !slices.Contains(q.ready, r):
		q.ready = append(q.ready, r)
	}
}

// finish works a request, and lets the next one begin.
func (q *queue) finish(r reconcile.Request) {
	result, err := q.work(r)
	if q.process.isKilled {
		return
	}
	switch {
	case err != nil:
		q.process.world.Tell(q.name, "%s fails: %v", r.Name, err)
		const first, most = 5 * time.Millisecond, 1000 * time.Second // as of controller-runtime
		wait := most
		if n := q.failures[r]; n < 18 {
			wait = min(first<<n, most)
		}
		q.failures[r]++
		q.AddAfter(r, wait)
	case result.RequeueAfter > 0:
		delete(q.failures, r)
		q.AddAfter(r, result.RequeueAfter)
	default:
		delete(q.failures, r)
	}
	isToRepeat := q.active[r]
	delete(q.active, r)
	if isToRepeat {
		q.Add(r)
	}
	if len(q.ready) > 0 {
		next := q.ready[0]
		q.ready = q.ready[1:]
		q.begin(next)
	}
}
