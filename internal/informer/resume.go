package informer

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// resumingWatch is a watch that opens a new one, from the version that it has reached, when
// the API server ends it or dies. It ends when it is stopped, when the API server reports an
// error, or if it cannot be resumed: then the informer lists again.
type resumingWatch struct {
	open     func(context.Context, metav1.ListOptions) (watch.Interface, error)
	options  metav1.ListOptions // of the present watch
	events   chan watch.Event
	cancel   context.CancelFunc
	stopOnce sync.Once
}

// resume makes a watch that resumes from one that was opened with options.
func resume(
	ctx context.Context, first watch.Interface, options metav1.ListOptions,
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) watch.Interface {
	ctx, cancel := context.WithCancel(ctx)
	r := &resumingWatch{open: open, options: options, events: make(chan watch.Event), cancel: cancel}
	go r.run(ctx, first)
	return r
}

// ResultChan returns the channel of events. It is closed when the watch has ended.
func (r *resumingWatch) ResultChan() <-chan watch.Event { return r.events }

// Stop ends the watch.
func (r *resumingWatch) Stop() { r.stopOnce.Do(r.cancel) }

// run passes on the events of the current watch and of those that follow it.
func (r *resumingWatch) run(ctx context.Context, current watch.Interface) {
	defer close(r.events)
	defer r.cancel()
	for ctx.Err() == nil {
		openedAt := time.Now()
		version, canResume := r.passOn(ctx, current)
		current.Stop()
		if !canResume {
			return
		}
		select { // opens at most one watch each retryInterval
		case <-ctx.Done():
			return
		case <-time.After(retryInterval - time.Since(openedAt)):
		}
		next := r.options
		next.ResourceVersion, next.ResourceVersionMatch, next.SendInitialEvents = version, "", nil
		opened, err := r.open(ctx, next)
		if err != nil {
			return // most likely the version is too old: the informer has to list again
		}
		r.options, current = next, opened
	}
	current.Stop()
}

// passOn passes on events until the watch ends. It returns the version from which the watch
// can be resumed, and whether it can.
func (r *resumingWatch) passOn(ctx context.Context, current watch.Interface) (version string, canResume bool) {
	// The initial events, if they were requested, are not in the order of versions.
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
				send(ctx, r.events, event)
				return "", false
			}
			if object, err := meta.Accessor(event.Object); err == nil {
				ordered = ordered || endsInitialEvents(event)
				if ordered {
					version = object.GetResourceVersion()
				}
			}
			if !send(ctx, r.events, event) {
				return "", false
			}
		}
	}
}

// send passes on one event, unless ctx ends before.
func send(ctx context.Context, events chan<- watch.Event, event watch.Event) bool {
	select {
	case <-ctx.Done():
		return false
	case events <- event:
		return true
	}
}

// endsInitialEvents reports whether an event comes after the initial ones.
func endsInitialEvents(event watch.Event) bool {
	if event.Type != watch.Bookmark {
		return false
	}
	object, err := meta.Accessor(event.Object)
	return err == nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
