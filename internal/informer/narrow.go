package informer

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
// that it is the only one. Whenever such a watch has ended, which an API server sees to every few minutes, it also
// looks for objects that were created too early.
func NewNarrowing(
	lw toolscache.ListerWatcher, by Narrowing, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
) toolscache.SharedIndexInformer {
	narrowing := &narrowing{lw: toolscache.ToListerWatcherWithContext(lw), by: by}
	return toolscache.NewSharedIndexInformer(&persistent{lw: narrowing}, kind, resync, indexers)
}

// narrowing is a ListerWatcher whose watches end, to be resumed by the other selector, when the one object says that it
// is alone, and when it does so no more.
type narrowing struct {
	lw toolscache.ListerWatcherWithContext
	by Narrowing

	// mu protects what follows.
	mu sync.Mutex
	// isSole has, of each object that the informer knows, whether it says that it is the only one.
	isSole map[string]bool
	// wasNarrow means that the last watch was by the narrow selector.
	wasNarrow bool
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
	n.isSole, n.wasNarrow = map[string]bool{}, false
}

// noteWatch notes by which selector a watch was opened.
func (n *narrowing) noteWatch(isNarrow bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wasNarrow = isNarrow
}

// misses reports whether the informer does not know of an object, although a watch by the wide selector would have told
// it by a version.
func (n *narrowing) misses(object metav1.Object, version string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, isKnown := n.isSole[object.GetName()]
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), version)
	return !isKnown && err == nil && order <= 0
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
	missed, err := n.listMissed(ctx, options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	isNarrow := n.isAlone() && len(missed) == 0
	options.FieldSelector = n.by.Wide
	if isNarrow {
		options.FieldSelector = n.by.Narrow
	}
	inner, err := n.lw.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	n.noteWatch(isNarrow)
	ctx, cancel := context.WithCancel(ctx)
	w := &narrowingWatch{of: n, isNarrow: isNarrow, isInitial: isInitial, events: make(chan watch.Event), cancel: cancel}
	go w.run(ctx, inner, missed)
	return w, nil
}

// listMissed returns, after a watch by the narrow selector that has reached a version, events of the objects that the
// informer does not know of, and a bookmark with that version.
func (n *narrowing) listMissed(ctx context.Context, version string) ([]watch.Event, error) {
	n.mu.Lock()
	wasNarrow := n.wasNarrow
	n.mu.Unlock()
	if !wasNarrow {
		return nil, nil
	}
	list, err := n.lw.ListWithContext(ctx, metav1.ListOptions{
		FieldSelector: n.by.Wide, ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return nil, err
	}
	var missed []watch.Event
	err = meta.EachListItem(list, func(object runtime.Object) error {
		accessor, err := meta.Accessor(object)
		if err == nil && n.misses(accessor, version) {
			missed = append(missed, watch.Event{Type: watch.Added, Object: object})
		}
		return err
	})
	if err != nil || len(missed) == 0 {
		return nil, err
	}
	bookmark := missed[0].Object.DeepCopyObject()
	accessor, err := meta.Accessor(bookmark)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(version)
	return append(missed, watch.Event{Type: watch.Bookmark, Object: bookmark}), nil
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

// run passes on the first events, and those of the inner watch until it ends or another selector is due.
func (w *narrowingWatch) run(ctx context.Context, inner watch.Interface, first []watch.Event) {
	defer close(w.events)
	defer w.cancel()
	defer inner.Stop()
	for _, event := range first {
		if !w.pass(ctx, event) {
			return
		}
	}
	for w.isInitial || w.isNarrow == w.of.isAlone() {
		select {
		case <-ctx.Done():
			return
		case event, isOpen := <-inner.ResultChan():
			if !isOpen || !w.pass(ctx, event) {
				return
			}
		}
	}
}

// pass passes on an event, unless ctx ends before. An object counts as known once its event has been passed on.
func (w *narrowingWatch) pass(ctx context.Context, event watch.Event) bool {
	if !send(ctx, w.events, event) {
		return false
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
	return true
}
