package informer

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// resuming is a watch that goes on where it was when the API server ends it, or
// dies. It ends when it is stopped, with an error that the API server reports, or
// if it cannot be resumed: then the informer lists anew, after its own patience.
type resuming struct {
	open    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	options metav1.ListOptions
	result  chan watch.Event
	cancel  context.CancelFunc
	once    sync.Once
}

// resume makes first, opened with options, go on.
func resume(ctx context.Context, first watch.Interface, options metav1.ListOptions, open func(context.Context, metav1.ListOptions) (watch.Interface, error)) watch.Interface {
	ctx, cancel := context.WithCancel(ctx)
	r := &resuming{open: open, options: options, result: make(chan watch.Event), cancel: cancel}
	go r.run(ctx, first)
	return r
}

// ResultChan is closed when the watch has ended.
func (r *resuming) ResultChan() <-chan watch.Event { return r.result }

// Stop ends the watch.
func (r *resuming) Stop() { r.once.Do(r.cancel) }

func (r *resuming) run(ctx context.Context, current watch.Interface) {
	defer close(r.result)
	defer r.cancel()
	for ctx.Err() == nil {
		begun := time.Now()
		version, again := r.pass(ctx, current)
		current.Stop()
		if !again {
			return
		}
		select { // one that ends at once is not opened again at once
		case <-ctx.Done():
			return
		case <-time.After(retry - time.Since(begun)):
		}
		next := r.options
		next.ResourceVersion, next.ResourceVersionMatch, next.SendInitialEvents = version, "", nil
		opened, err := r.open(ctx, next)
		if err != nil {
			return // expired, most likely: all is to be listed anew
		}
		r.options, current = next, opened
	}
	current.Stop()
}

// pass passes events on until the watch ends. It returns from which version it
// can be resumed, and whether it can.
func (r *resuming) pass(ctx context.Context, current watch.Interface) (version string, again bool) {
	// What comes at first, if it was asked for, is in no order of versions.
	ordered := r.options.SendInitialEvents == nil || !*r.options.SendInitialEvents
	if ordered {
		version = r.options.ResourceVersion
	}
	for {
		select {
		case <-ctx.Done():
			return "", false
		case event, open := <-current.ResultChan():
			if !open {
				return version, version != "" && version != "0"
			}
			if event.Type == watch.Error {
				r.send(ctx, event)
				return "", false
			}
			if object, err := meta.Accessor(event.Object); err == nil {
				ordered = ordered || event.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
				if ordered {
					version = object.GetResourceVersion()
				}
			}
			if !r.send(ctx, event) {
				return "", false
			}
		}
	}
}

func (r *resuming) send(ctx context.Context, event watch.Event) bool {
	select {
	case <-ctx.Done():
		return false
	case r.result <- event:
		return true
	}
}
