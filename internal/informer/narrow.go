package informer

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

// Narrowing says which objects an informer is about, and when it watches one of them by its name alone. An API server
// hands each event of a kind to every watch with another field selector, which compares it, but to a watch by name only
// those of the object with that name.
type Narrowing struct {
	// Wide and Narrow are field selectors: of all objects, and metadata.name of one of them.
	Wide, Narrow string
	// IsSole reports whether an object is the one that Narrow selects, and says that Wide selects no other. Its writer
	// has to say so only while there is no other, and to take it back before it creates one.
	IsSole func(runtime.Object) bool
}

// NewNarrowing makes an informer like NewPersistent that watches by the narrow selector as long as the one object says
// that it is the only one. Before it watches by the wide one again it lists: an object that was created too early is
// found then.
func NewNarrowing(
	lw toolscache.ListerWatcher, by Narrowing, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	narrowing := &narrowing{lw: toolscache.ToListerWatcherWithContext(lw), by: by}
	return toolscache.NewSharedIndexInformer(&persistent{lw: narrowing}, kind, resync, indexers)
}

// narrowing is a ListerWatcher. A watch by the wide selector ends, to be resumed by the narrow one, when the one object
// says that it is alone; one by the narrow selector fails when it does so no more: the informer lists then.
type narrowing struct {
	lw toolscache.ListerWatcherWithContext
	by Narrowing

	// mu protects what follows.
	mu sync.Mutex
	// isSole has, of each object that the informer knows, whether it says that it is the only one.
	isSole map[string]bool
}

// isAlone reports whether there is one object, which says that it is the only one.
func (n *narrowing) isAlone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.isSole) != 1 {
		return false
	}
	for _, isSole := range n.isSole {
		return isSole
	}
	return false
}

// note notes what is known of an object.
func (n *narrowing) note(object runtime.Object, exists bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !exists {
		delete(n.isSole, accessor.GetName())
		return
	}
	n.isSole[accessor.GetName()] = n.by.IsSole(object)
}

// forget forgets all objects, before all are listed.
func (n *narrowing) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isSole = map[string]bool{}
}

// ListWithContext lists by the wide selector.
func (n *narrowing) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = n.by.Wide
	list, err := n.lw.ListWithContext(ctx, options)
	if err != nil {
		return list, err
	}
	if options.Continue == "" {
		n.forget()
	}
	return list, meta.EachListItem(list, func(object runtime.Object) error {
		n.note(object, true)
		return nil
	})
}

// WatchWithContext watches by the selector that is due.
func (n *narrowing) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	isInitial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if isInitial {
		n.forget()
	}
	isNarrow := n.isAlone()
	options.FieldSelector = n.by.Wide
	if isNarrow {
		options.FieldSelector = n.by.Narrow
	}
	inner, err := n.lw.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &narrowingWatch{of: n, isNarrow: isNarrow, isInitial: isInitial, events: make(chan watch.Event), cancel: cancel}
	go w.run(ctx, inner)
	return w, nil
}

// narrowingWatch is a watch that ends when another selector is due.
type narrowingWatch struct {
	of       *narrowing
	isNarrow bool
	// isInitial means that not all initial events have come.
	isInitial bool
	events    chan watch.Event
	cancel    context.CancelFunc
}

// ResultChan returns the channel of events. It is closed when the watch has ended.
func (w *narrowingWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch.
func (w *narrowingWatch) Stop() { w.cancel() }

// run passes on events until the watch ends. An object counts as known once its event has been passed on.
func (w *narrowingWatch) run(ctx context.Context, inner watch.Interface) {
	defer close(w.events)
	defer w.cancel()
	defer inner.Stop()
	for {
		if isAlone := w.of.isAlone(); w.isNarrow && !isAlone {
			expired := apierrors.NewResourceExpired("there may be other objects than the one that is watched by its name")
			send(ctx, w.events, watch.Event{Type: watch.Error, Object: &expired.ErrStatus})
			return
		} else if !w.isNarrow && !w.isInitial && isAlone {
			return
		}
		select {
		case <-ctx.Done():
			return
		case event, isOpen := <-inner.ResultChan():
			if !isOpen || !send(ctx, w.events, event) {
				return
			}
			switch event.Type {
			case watch.Added, watch.Modified:
				w.of.note(event.Object, true)
			case watch.Deleted:
				w.of.note(event.Object, false)
			case watch.Bookmark:
				w.isInitial = w.isInitial && !endsInitialEvents(event)
			case watch.Error:
			}
		}
	}
}
