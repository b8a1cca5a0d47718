package sim

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// queue is the queue of a component. It works one request after the other, each as a happening of the
// World.
type queue struct {
	// What handlers do not use of a queue panics.
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	process *process
	name    string
	work    func(reconcile.Request) (reconcile.Result, error)
	// due are the requests that wait, with what makes each begin.
	due map[reconcile.Request]*waiting
	// failures are how often a request has failed in a row.
	failures map[reconcile.Request]int
}

type waiting struct {
	at    time.Time
	begin *Happening
}

func newQueue(p *process, name string, work func(reconcile.Request) (reconcile.Result, error)) *queue {
	return &queue{
		process: p, name: name, work: work, due: map[reconcile.Request]*waiting{}, failures: map[reconcile.Request]int{},
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

// begin works a request.
func (q *queue) begin(r reconcile.Request) {
	delete(q.due, r)
	result, err := q.work(r)
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
}
