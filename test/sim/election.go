package sim

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// election is how a manager becomes the leader, stays it and ceases to be it. Each attempt to acquire, renew
// or release the Lease is one of client-go's own elector. When there is the next attempt is said here, as
// client-go does it by timers and a random source of its own.
type election struct {
	// Leases are what the elector writes to. It reads and writes one Lease, and does nothing else.
	coordinationv1client.LeaseInterface

	manager *Manager
	client  client.Client
	// clockOffset is how wrong the clock of the manager's machine is.
	clockOffset time.Duration
	elector     *leaderelection.LeaderElector
	// isLeader is what the last attempt has found.
	isLeader bool
	// endAttempt ends the attempt after its first request: no other follows it.
	endAttempt context.CancelFunc
	// until is when the attempt is given up.
	until time.Time
	// isReleasing means that the present attempt is to release the Lease, and not to renew it. last is the Lease
	// as it was last written.
	isReleasing bool
	last        *coordinationv1.Lease
}

// leases gives the elector its Lease.
type leases struct{ election *election }

func (l leases) Leases(string) coordinationv1client.LeaseInterface { return l.election }

func newElection(m *Manager, server *apiserver.Server) (*election, error) {
	const wrong = time.Hour
	e := &election{manager: m, clockOffset: m.world.Between(-wrong, wrong), client: server.NewClient(
		m.ask, nil,
	)}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: Namespace, Name: controllers.LeaderLease},
		Client:    leases{e}, LockConfig: resourcelock.ResourceLockConfig{Identity: m.name},
	}
	var err error
	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: controllers.LeaderLeaseDuration, RenewDeadline: controllers.LeaderRenewDeadline,
		RetryPeriod: controllers.LeaderRetryPeriod, ReleaseOnCancel: true, Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {},
		},
	})
	return e, err
}

// run waits until the manager leads, lets it lead, and returns when it leads no more.
func (e *election) run() {
	m := e.manager
	for {
		e.attempt(time.Now().Add(controllers.LeaderRenewDeadline))
		if e.isLeader {
			break
		}
		wait := m.world.Between(controllers.LeaderRetryPeriod, controllers.LeaderRetryPeriod*22/10)
		if m.Wait(m.ctx, wait, m.stopped) != tasks.TimeOver {
			return
		}
	}
	m.world.Tell(m.name, "leads")
	m.Go(func() {
		if err := m.lead(); err != nil && !m.isKilled {
			m.world.Tell(m.name, "cannot lead: %v", err)
			m.world.After(0, m.endByItself)
		}
	})
	for e.renew() {
		if m.Wait(m.ctx, controllers.LeaderRetryPeriod, m.stopped) != tasks.TimeOver {
			m.endWork()
			break
		}
	}
	if m.isKilled {
		return
	}
	m.world.Tell(m.name, "leads no more")
	if e.isReleasing = e.elector.IsLeader(); e.isReleasing {
		e.attempt(time.Now().Add(controllers.LeaderRenewDeadline))
	}
}

// renew renews the Lease, and tries again until the deadline for that is over.
func (e *election) renew() bool {
	until := time.Now().Add(controllers.LeaderRenewDeadline)
	for time.Now().Before(until) {
		e.attempt(until)
		wait := min(controllers.LeaderRetryPeriod, time.Until(until))
		if e.isLeader || e.manager.Wait(context.Background(), wait) == tasks.Ended {
			return e.isLeader
		}
	}
	return false
}

// isAttempt is what the requests of an attempt to acquire or renew have in their contexts. The elector
// releases the Lease after each attempt that succeeds, by requests without it.
type isAttempt struct{}

// attempt tries to acquire or renew the Lease, and to release it if that is to be done.
func (e *election) attempt(until time.Time) {
	ctx := logr.NewContext(context.WithValue(context.Background(), isAttempt{}, true), logr.Discard())
	e.until, e.isLeader = until, false
	ctx, e.endAttempt = context.WithCancel(ctx)
	e.elector.Run(ctx)
	e.endAttempt()
}

// errNotReleased is why a Lease that is renewed is not released.
var errNotReleased = errors.New("the Lease is not to be released")

// ask makes a request of the elector. A request that renews the Lease while it is to be released is none.
func (e *election) ask(ctx context.Context, do func(ctx context.Context) error) error {
	const timeout = controllers.LeaderRenewDeadline / 2 // as of controller-runtime
	until := time.Now().Add(timeout)
	switch isOfAttempt := ctx.Value(isAttempt{}) != nil; {
	case isOfAttempt && e.isReleasing:
		e.endAttempt()
		return nil
	case isOfAttempt:
		e.endAttempt()
		if e.until.Before(until) {
			until = e.until
		}
	case !e.isReleasing:
		e.isLeader = true // the attempt has succeeded
		return errNotReleased
	}
	within, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	return do(within)
}

// Get reads the Lease.
func (e *election) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	err := e.ask(ctx, func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		err := e.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, lease)
		if err == nil {
			e.last = lease
		}
		return err
	})
	return e.last.DeepCopy(), err
}

// Create creates the Lease.
func (e *election) Create(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return e.write(ctx, lease, func(ctx context.Context) error { return e.client.Create(ctx, lease) })
}

// Update writes the Lease.
func (e *election) Update(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return e.write(ctx, lease, func(ctx context.Context) error { return e.client.Update(ctx, lease) })
}

func (e *election) write(
	ctx context.Context, lease *coordinationv1.Lease, do func(ctx context.Context) error,
) (*coordinationv1.Lease, error) {
	for _, at := range []*metav1.MicroTime{lease.Spec.AcquireTime, lease.Spec.RenewTime} {
		if at != nil {
			at.Time = at.Add(e.clockOffset)
		}
	}
	err := e.ask(ctx, do)
	if err == nil {
		e.last = lease.DeepCopy()
	}
	return lease, err
}
