package nodeagent

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// announcer announces addresses to links: once when they are added, and then again a few
// times, since a neighbour may have missed or ignored the first announcement. Its queue is lost
// with the process. That is harmless: neighbours ask again for an address that does not answer
// at the MAC that they know.
type announcer struct {
	neighbours Neighbours
	metrics    *Metrics
	tasks      tasks.Runner

	mu    sync.Mutex
	queue []announcement
	// wake is signalled when the queue has changed.
	wake chan struct{}
}

// announcement is an address that is to be announced some more times.
type announcement struct {
	iface     string
	addr      netip.Addr
	due       time.Time
	timesLeft int
	interval  time.Duration
}

// newAnnouncer returns an announcer, which does nothing until it is started.
func newAnnouncer(neighbours Neighbours, metrics *Metrics, runner tasks.Runner) *announcer {
	return &announcer{neighbours: neighbours, metrics: metrics, tasks: runner, wake: make(chan struct{}, 1)}
}

// schedule announces an address as the settings say, in place of what was scheduled for it
// before.
func (q *announcer) schedule(iface string, addr netip.Addr, settings plan.AnnounceSettings) {
	q.cancel(iface, addr)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, announcement{iface, addr, time.Now().Add(settings.Delay), settings.Count, settings.Interval})
	pacing.Signal(q.wake)
}

// announceOnce announces an address now, besides what is scheduled for it.
func (q *announcer) announceOnce(iface string, addr netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, announcement{iface: iface, addr: addr, due: time.Now(), timesLeft: 1})
	pacing.Signal(q.wake)
}

// cancel announces an address no more.
func (q *announcer) cancel(iface string, addr netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = slices.DeleteFunc(q.queue, func(a announcement) bool { return a.iface == iface && a.addr == addr })
	pacing.Signal(q.wake)
}

// Start works the queue until ctx ends.
func (q *announcer) Start(ctx context.Context) error {
	for {
		wait := tasks.Forever
		if next := q.announceDue(ctx); !next.IsZero() {
			wait = time.Until(next)
		}
		if q.tasks.Wait(ctx, wait, q.wake) == tasks.Ended {
			return nil
		}
	}
}

// NeedLeaderElection is false: every node announces.
func (q *announcer) NeedLeaderElection() bool { return false }

// announceDue sends what is due, and returns when to call it next; the zero Time if nothing
// is left. It sends under the lock, so that nothing is
// announced after cancel has returned.
func (q *announcer) announceDue(ctx context.Context) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	var next time.Time
	now := time.Now()
	rest := q.queue[:0]
	for _, a := range q.queue {
		if !a.due.After(now) {
			if err := q.neighbours.Announce(a.iface, a.addr); err != nil {
				log.FromContext(ctx).Error(err, "An announcement was not sent")
			} else {
				q.metrics.sent.Inc()
			}
			a.timesLeft--
			a.due = a.due.Add(a.interval)
		}
		if a.timesLeft <= 0 {
			continue
		}
		if next.IsZero() || a.due.Before(next) {
			next = a.due
		}
		rest = append(rest, a)
	}
	clear(q.queue[len(rest):])
	q.queue = rest
	return next
}
