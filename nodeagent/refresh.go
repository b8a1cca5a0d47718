package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// SyncLive lists the node's Announcements at the API server and applies them.
// It fails if it could not list, or could not observe the kernel: what went wrong
// with single addresses is in the statuses, and retried by Reconcile.
func (a *Agent) SyncLive(ctx context.Context, timeout time.Duration) error {
	_, err := a.listAndSync(ctx, timeout, func() {
		a.freshness.noteListed()
		signal(a.wake) // for what has to be repaired or renewed
	})
	return err
}

// listAndSync lists at the API server, and applies what it listed. It calls onListed in
// between, if that is not nil. It returns when to sync again; 0 is when something changes.
func (a *Agent) listAndSync(ctx context.Context, timeout time.Duration, onListed func()) (time.Duration, error) {
	if err := a.listLock.take(ctx); err != nil {
		return 0, err
	}
	defer a.listLock.release()
	if err := a.syncLock.take(ctx); err != nil {
		return 0, err
	}
	a.state.isListing = true
	isCacheFilled := a.state.isCacheFilled
	a.syncLock.release()

	listCtx, cancel := context.WithTimeout(ctx, timeout)
	objects, err := a.readObjects(listCtx, true, isCacheFilled)
	cancel()

	if err := a.syncLock.take(ctx); err != nil {
		return 0, err
	}
	defer a.syncLock.release()
	a.state.isListing = false
	if a.state.isCacheReadDue { // the list may be older than the change that woke the worker meanwhile
		a.state.isCacheReadDue = false
		signal(a.wake)
	}
	if err != nil {
		return 0, err
	}
	a.state.objects = objects
	a.defender.forgetYieldsOfEarlierEntries(objects.announcements)
	if onListed != nil {
		onListed()
	}
	wait, err := a.sync(ctx, objects, true)
	if errors.Is(err, errUnobserved) {
		return 0, err
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "Not everything could be applied")
		wait = plan.Earliest(wait, plan.ReprobeInterval)
	}
	return wait, nil
}

// relistWhenAsked lists at the API server when the worker asks for it, until ctx ends, and
// calls syncAfter when there is something to do again.
func (a *Agent) relistWhenAsked(ctx context.Context, syncAfter func(time.Duration)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.relist:
		}
		wait, err := a.listAndSync(ctx, requestTimeout, nil)
		signal(a.reporter.changed)
		if err != nil { // the worker asks for another list, or reads the cache
			wait = minRetry
		}
		if wait > 0 {
			syncAfter(wait)
		}
	}
}

// syncCached applies the Announcements as the cache has them. While the cache may be
// behind what was listed at the API server, it applies what was listed, and asks for
// another list: the worker itself never waits for the API server. It returns when to call
// it again; 0 is when something changes.
func (a *Agent) syncCached(ctx context.Context) (time.Duration, error) {
	if err := a.syncLock.take(ctx); err != nil {
		return 0, err
	}
	defer a.syncLock.release()
	a.state.isCacheFilled = true // the queue is worked when the caches have synced
	switch hasRead := a.state.objects.lbNodeAgent != nil && !a.state.objects.isOffline; {
	case a.state.isListing && hasRead:
		a.state.isCacheReadDue = true
	case a.freshness.hasJustListed():
		signal(a.relist)
	default:
		objects, err := a.readObjects(ctx, false, true)
		if err != nil {
			a.watchdog.beginSync()
			a.watchdog.endSync(err)
			return 0, err
		}
		a.state.objects = objects
	}
	defer signal(a.reporter.changed)
	return a.sync(ctx, a.state.objects, a.freshness.isFresh())
}

// standIn syncs while no worker works the queue, since the cache has not been filled since
// the agent started: at most once in a while, unless the agent was woken. An agent that has
// read nothing keeps what the kernel has.
func (a *Agent) standIn(ctx context.Context, isWoken bool) {
	if a.syncLock.take(ctx) != nil {
		return
	}
	defer a.syncLock.release()
	now := time.Now()
	if a.state.isCacheFilled || !isWoken && a.state.standIns.Delay(now) > 0 {
		return
	}
	a.state.standIns.Note(now)
	defer signal(a.reporter.changed)
	if _, err := a.sync(ctx, a.state.objects, a.freshness.isFresh()); err != nil {
		log.FromContext(ctx).Error(err, "Not everything could be applied")
	}
}

// lock is held by one goroutine at a time. Unlike a sync.Mutex it is waited for no longer
// than a context lasts.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

// take waits for the lock, and fails when ctx ends first.
func (l lock) take(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another sync to end: %w", ctx.Err())
	}
}

func (l lock) release() { <-l }

// signal wakes the goroutine that waits for c, or will.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // is signalled already
	}
}
