// Package informer makes informers, for the manager and the agents, that continue within a
// second after the API server is back.
//
// An informer of client-go lists objects and then watches them. After a failure it waits up to
// half a minute, and then lists again. NewPersistent wraps the calls with which an informer
// lists and watches: a call that the API server does not answer is repeated each second, and a
// watch that ends is opened again from the version that it had reached.
package informer

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// retryInterval is the time between two attempts to reach an API server that is away. It does
// not grow, because an agent must soon learn of a handover that it has missed.
const retryInterval = time.Second

// NewPersistent makes an informer that asks an API server that is away again each second. An
// informer of client-go waits up to half a minute: an agent would learn of a handover, and the
// manager of a new Service, only then, long after the agent has renewed its Lease again.
// NewPersistent is for the cache.Options of controller-runtime.
func NewPersistent(
	lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(
		&persistent{lw: toolscache.ToListerWatcherWithContext(lw)}, kind, resync, indexers,
	)
}

// persistent is a ListerWatcher that repeats its requests until the API server answers, and
// returns only the API server's own errors. Its watches resume.
type persistent struct {
	lw toolscache.ListerWatcherWithContext
}

// ListWithContext lists as soon as the API server answers.
func (p *persistent) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return retryUntilFinal(ctx, func() (runtime.Object, error) { return p.lw.ListWithContext(ctx, options) })
}

// WatchWithContext watches as soon as the API server answers, and resumes the watch.
func (p *persistent) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	open := func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return retryUntilFinal(ctx, func() (watch.Interface, error) { return p.lw.WatchWithContext(ctx, options) })
	}
	first, err := open(ctx, options)
	if err != nil {
		return nil, err
	}
	return resume(ctx, first, options, open), nil
}

// List calls ListWithContext without a context.
func (p *persistent) List(options metav1.ListOptions) (runtime.Object, error) {
	return p.ListWithContext(context.Background(), options)
}

// Watch calls WatchWithContext without a context.
func (p *persistent) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return p.WatchWithContext(context.Background(), options)
}

// retryUntilFinal repeats a request until it succeeds, the API server refuses it for good,
// or ctx ends.
func retryUntilFinal[T any](ctx context.Context, request func() (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		answer, err := request()
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return answer, err
		}
		if attempt == 0 { // one log entry for each outage
			log.FromContext(ctx).Error(err, "The API server cannot be watched; trying again each second")
		}
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// isFinal reports whether repeating a request would not help: the API server has understood
// and refused it. Forbidden, Unauthorized and NotFound are not final: right after its start an
// API server refuses what it has not yet learnt to allow, or to serve. That it does not know the
// version yet from which the informer wants to go on is final, although its reason is Timeout:
// the informer then lists what there is, and a database that was restored from a backup may
// not reach that version for days.
func isFinal(err error) bool {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return true
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonInternalError,
		metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized, metav1.StatusReasonNotFound:
		return false
	}
	return true
}
