package sim

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// follower makes the cache of a process learn of changes.
type follower struct {
	owner  *process
	name   string
	server *apiserver.Server
	cache  *apiserver.Cache
	passOn func(apiserver.Change)
	// MinLag and MaxLag are how long the cache takes to learn of a change.
	MinLag, MaxLag time.Duration
	// isCut means that the API server cannot be reached.
	isCut bool
	// isFollowing means that the cache has been filled, and learns of changes.
	isFollowing, isLearning bool
	// isBlind means that the API server refuses all that the process reads.
	isBlind bool
	// pausesBy, if set, selects a request by which the process is paused, before it is sent.
	pausesBy func(apiserver.Request) bool
}

// newFollower returns one without a cache, which passes changes on.
func newFollower(
	owner *process, name string, server *apiserver.Server, passOn func(apiserver.Change),
) follower {
	return follower{
		owner: owner, name: name, server: server, passOn: passOn, MinLag: time.Millisecond, MaxLag: 20 * time.Millisecond,
	}
}

// follow makes the cache, which has just been filled, learn of changes from now on.
func (f *follower) follow() {
	f.isFollowing = true
	f.server.OnChange = append(f.server.OnChange, f.learnSoon)
}

// setCut cuts it off the API server, or connects it again.
func (f *follower) setCut(isCut bool) {
	f.isCut = isCut
	f.learnSoon()
}

// setBlind makes the API server refuse all that the process reads, or answer again.
func (f *follower) setBlind(isBlind bool) {
	f.isBlind = isBlind
	f.learnSoon()
}

// learnSoon makes the cache learn of changes after its lag.
func (f *follower) learnSoon() {
	if !f.isFollowing || f.isLearning || f.owner.isKilled {
		return
	}
	f.isLearning = true
	f.owner.after(f.owner.world.Between(f.MinLag, f.MaxLag), f.learn)
}

// learn learns of all changes until now. A cache that is too far behind lists.
func (f *follower) learn() {
	f.isLearning = false
	for !f.isCut && !f.isBlind {
		change, isChange, err := f.cache.Next()
		switch {
		case apierrors.IsResourceExpired(err):
			if err := f.relist(); err != nil {
				f.owner.world.Tell(f.name, "cannot list: %v", err)
			}
			return
		case err != nil:
			f.owner.world.Tell(f.name, "cannot learn: %v", err)
			return
		case !isChange:
			return
		}
		f.passOn(change)
	}
}

// relist makes the cache know all that there is.
func (f *follower) relist() error {
	changes, err := f.cache.Relist()
	for _, change := range changes {
		f.passOn(change)
	}
	return err
}

// How long a request, or its answer, is on its way.
const minRequest, maxRequest = 200 * time.Microsecond, 3 * time.Millisecond

var errCut = errors.New("the API server does not answer")

var errBusy error = apierrors.NewTooManyRequestsError("the API server is busy")

// ask makes a request, which takes its time. It hangs while the API server cannot be reached, and its answer
// is lost if that is so when it comes.
func (f *follower) ask(ctx context.Context, r apiserver.Request, do func() error) error {
	p := f.owner
	if f.pausesBy != nil && f.pausesBy(r) {
		f.pausesBy = nil
		p.Pause()
	}
	isRead := r.Verb == "get" || r.Verb == "list"
	isOver := func() bool { return p.Wait(ctx, p.world.Between(minRequest, maxRequest)) == tasks.Ended }
	if isOver() {
		return errors.Join(errCut, ctx.Err())
	}
	for f.isCut {
		if p.Wait(ctx, 100*time.Millisecond) == tasks.Ended {
			return errors.Join(errCut, context.DeadlineExceeded)
		}
	}
	err := errBusy
	if !f.isBlind || !isRead {
		err = do()
	}
	if isOver() || f.isCut {
		return errors.Join(errCut, context.DeadlineExceeded)
	}
	return err
}
