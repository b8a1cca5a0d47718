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
	dueAt     time.Time
	timesLeft int
	interval  time.Duration
}

// newAnnouncer returns an announcer, which does nothing until it is started.
func newAnnouncer(neighbours Neighbours, metrics *Metrics, runner tasks.Runner) *announcer {
	return &announcer{neighbours: neighbours, metrics: metrics, tasks: runner, wake: make(chan struct{}, 1)}
}

// schedule announces an address as the settings say, in place of what was scheduled for it
// before.
func (a *announcer) schedule(iface string, addr netip.Addr, settings plan.AnnounceSettings) {
	a.cancel(iface, addr)
	a.mu.Lock()
	defer a.mu.Unlock()
	due := a.tasks.Now().Add(settings.Delay)
	a.queue = append(a.queue, announcement{iface, addr, due, settings.Count, settings.Interval})
	pacing.Signal(a.wake)
}

// announceOnce announces an address now, besides what is scheduled for it.
func (a *announcer) announceOnce(iface string, addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = append(a.queue, announcement{iface: iface, addr: addr, dueAt: a.tasks.Now(), timesLeft: 1})
	pacing.Signal(a.wake)
}

// cancel announces an address no more.
func (a *announcer) cancel(iface string, addr netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	isCancelled := func(queued announcement) bool { return queued.iface == iface && queued.addr == addr }
	a.queue = slices.DeleteFunc(a.queue, isCancelled)
	pacing.Signal(a.wake)
}

// Start works the queue until ctx ends.
func (a *announcer) Start(ctx context.Context) error {
	for {
		wait := tasks.Forever
		if next := a.announceDue(ctx); !next.IsZero() {
			wait = tasks.Until(a.tasks, next)
		}
		if a.tasks.Wait(ctx, wait, a.wake) == tasks.Ended {
			return nil
		}
	}
}

// NeedLeaderElection is false: every node announces.
func (a *announcer) NeedLeaderElection() bool { return false }

// announceDue sends what is due, and returns when to call it next; the zero Time if nothing
// is left. It sends under the lock, so that nothing is announced after cancel has returned.
func (a *announcer) announceDue(ctx context.Context) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var next time.Time
	now := a.tasks.Now()
	rest := a.queue[:0]
	for _, queued := range a.queue {
		if !queued.dueAt.After(now) {
			if err := a.neighbours.Announce(queued.iface, queued.addr); err != nil {
				log.FromContext(ctx).Error(err, "An announcement was not sent")
			} else {
				a.metrics.announcementsSent.Inc()
			}
			queued.timesLeft--
			queued.dueAt = queued.dueAt.Add(queued.interval)
		}
		if queued.timesLeft <= 0 {
			continue
		}
		if next.IsZero() || queued.dueAt.Before(next) {
			next = queued.dueAt
		}
		rest = append(rest, queued)
	}
	clear(a.queue[len(rest):])
	a.queue = rest
	return next
}
