package controllers

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Component is a reconciler and what wakes it.
type Component struct {
	Name       string
	Reconciler reconcile.Reconciler
	// For is the kind that it reconciles, nil if it does not go by objects of one kind. ForChanged
	// says which changes of one count.
	For        client.Object
	ForChanged predicate.Predicate
	Watches    []Watch
	Channels   []Channel
	// Sources are told of its queue when it starts, and begin with what they know.
	Sources []source.Source
	Options controller.Options
}

// Watch says which changes of objects of a kind make which requests.
type Watch struct {
	Object  client.Object
	Handler handler.EventHandler
	// Changed, if set, says which changes count.
	Changed predicate.Predicate
	// IsMetadata says that nothing but metadata is watched, and that Object has no more.
	IsMetadata bool
}

// changed lets through that an object of a kind comes or goes, and those changes of one that isChanged reports.
func changed[T client.Object](isChanged func(before, after T) bool) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(T)
		after, ok2 := e.ObjectNew.(T)
		return !ok1 || !ok2 || isChanged(before, after)
	}}
}

// onlyChanged lets through those changes of an object of a kind that isChanged reports, and not that one comes or goes.
func onlyChanged[T client.Object](isChanged func(before, after T) bool) predicate.Funcs {
	p := changed(isChanged)
	p.CreateFunc = func(event.CreateEvent) bool { return false }
	p.DeleteFunc = func(event.DeleteEvent) bool { return false }
	return p
}

// Channel brings events that are no changes of objects.
type Channel struct {
	Events  <-chan event.GenericEvent
	Handler handler.EventHandler
}

// ComponentManager is what components need of a manager of controller-runtime besides a client.
type ComponentManager interface {
	// GetAPIReader returns a client that reads from the API server itself.
	GetAPIReader() client.Reader
	// GetFieldIndexer returns what adds indexes to the cache.
	GetFieldIndexer() client.FieldIndexer
}

// requestsOf returns the requests of those objects that isConcerned reports.
func requestsOf[T any, P interface {
	*T
	client.Object
}](objects []T, isConcerned func(P) bool) []reconcile.Request {
	var requests []reconcile.Request
	for i := range objects {
		if o := P(&objects[i]); isConcerned(o) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
		}
	}
	return requests
}

// requestsOfKeys returns the requests of objects, given as namespace/name.
func requestsOfKeys(keys []string) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range keys {
		requests = append(requests, reconcile.Request{NamespacedName: parseKey(key)})
	}
	return requests
}

// setupWithManager registers the component.
func (c *Component) setupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).Named(c.Name).WithOptions(c.Options)
	for _, s := range c.Sources {
		b = b.WatchesRawSource(s)
	}
	if c.For != nil {
		b = b.For(c.For, builder.WithPredicates(c.ForChanged))
	}
	for _, w := range c.Watches {
		var options []builder.WatchesOption
		if w.Changed != nil {
			options = append(options, builder.WithPredicates(w.Changed))
		}
		if w.IsMetadata {
			options = append(options, builder.OnlyMetadata)
		}
		b = b.Watches(w.Object, w.Handler, options...)
	}
	for _, ch := range c.Channels {
		b = b.WatchesRawSource(source.Channel(ch.Events, ch.Handler))
	}
	return b.Complete(c.Reconciler)
}
