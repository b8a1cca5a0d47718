// Package informer makes informers that are back soon after the API server is:
// the manager's, and the agents'.
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

// retry is how often an API server that is away is asked.
const retry = time.Second

// NewPersistent makes an informer that asks an API server that is away again each
// second. Left to itself an informer waits up to half a minute: an agent would
// hear of a handover only then, after its Lease is long renewed again, and the
// manager of a new Service. It is for the cache.Options of controller-runtime.
func NewPersistent(lw toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(&persistent{lw: toolscache.ToListerWatcherWithContext(lw)}, kind, resync, indexers)
}

// persistent is a ListerWatcher that answers when the API server does, and
// passes on only errors that come from it. Its watches go on where they were.
type persistent struct {
	lw toolscache.ListerWatcherWithContext
}

func (p *persistent) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return persist(ctx, func() (runtime.Object, error) { return p.lw.ListWithContext(ctx, options) })
}

func (p *persistent) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	open := func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return persist(ctx, func() (watch.Interface, error) { return p.lw.WatchWithContext(ctx, options) })
	}
	first, err := open(ctx, options)
	if err != nil {
		return nil, err
	}
	return resume(ctx, first, options, open), nil
}

// List is ListWithContext for callers without a context.
func (p *persistent) List(options metav1.ListOptions) (runtime.Object, error) {
	return p.ListWithContext(context.Background(), options)
}

// Watch is WatchWithContext for callers without a context.
func (p *persistent) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return p.WatchWithContext(context.Background(), options)
}

func persist[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		answer, err := ask()
		if err == nil || ctx.Err() != nil || answered(err) {
			return answer, err
		}
		if attempt == 0 { // once for each outage
			log.FromContext(ctx).Error(err, "The API server cannot be watched; trying again each second")
		}
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(retry):
		}
	}
}

// answered is whether an error is a request's answer that a repetition would
// not change: it was understood, and refused.
func answered(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonInternalError,
		metav1.StatusReasonForbidden, metav1.StatusReasonUnauthorized, metav1.StatusReasonNotFound:
		return false
	}
	return true
}
