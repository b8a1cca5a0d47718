package sim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/test/sim/apiserver"
)

// Namespace is that of PureLB.
const Namespace = "purelb-system"

// Manager is a replica of the manager: the components that decide about addresses, which work while it
// leads, with a cache of its own.
type Manager struct {
	process
	follower
	client *apiserver.Client
	live   *controllers.LivenessTracker
	leases toolscache.ResourceEventHandler
	parts  []part
	// runnables work while it leads, as the components do.
	runnables []manager.Runnable
	// isLeading means that the components are told of changes.
	isLeading bool
	// pausesAtNetBox, if set, selects a request to NetBox by which the manager is paused, before it is sent.
	pausesAtNetBox func(*http.Request) bool
	ctx            context.Context
	end            context.CancelFunc
	// stopped is signalled when it is to end, and onEnd is called when it ends by itself.
	stopped chan struct{}
	onEnd   func()
}

// part is a component with its queue.
type part struct {
	controllers.Component
	queue *queue
}

// ManagerOptions say how a manager differs.
type ManagerOptions struct {
	// Intercept handles its requests, if it is not nil.
	Intercept apiserver.Intercept
	// NamesSuccessors is the feature gate WireFailover.
	NamesSuccessors bool
	// SlowsLeases is the feature gate SlowLeases.
	SlowsLeases bool
	// Clock is that of its machine; a right one, if it is nil.
	Clock *Clock
	// HasRouters means that the manager writes NodeRoutings.
	HasRouters bool
	// NetBox is what the manager asks for addresses of NetBox; nil if no ServiceGroup has any.
	NetBox *NetBox
}

// StartManager starts a manager that leads without having been elected.
func (w *World) StartManager(name string, server *apiserver.Server, options ManagerOptions) (*Manager, error) {
	m, err := w.newManager(name, server, options)
	if err != nil {
		return nil, err
	}
	if err := m.relist(); err != nil {
		return nil, err
	}
	if err := m.lead(); err != nil {
		return nil, err
	}
	m.follow()
	m.look()
	return m, nil
}

// StartReplica starts a manager that leads once it has been elected. onEnd is called when it has ended,
// because it was stopped, does not lead any more, or could not start to lead; not if it is killed. Its
// requests take time, and hang while it is cut off the API server.
func (w *World) StartReplica(
	name string, server *apiserver.Server, options ManagerOptions, onEnd func(),
) (*Manager, error) {
	var m *Manager
	options.Intercept = func(ctx context.Context, r apiserver.Request, do func() error) error { return m.ask(ctx, r, do) }
	m, err := w.newManager(name, server, options)
	if err != nil {
		return nil, err
	}
	e, err := newElection(m, server)
	if err != nil {
		return nil, err
	}
	m.onEnd = onEnd
	m.Go(func() {
		for m.isCut || m.relist() != nil {
			if m.Wait(m.ctx, time.Second) == tasks.Ended {
				return
			}
		}
		m.follow()
		m.look()
		e.run()
		m.world.After(0, m.endByItself)
	})
	return m, nil
}

func (m *Manager) endByItself() {
	if !m.isKilled {
		m.Kill()
		m.onEnd()
	}
}

func (w *World) newManager(name string, server *apiserver.Server, options ManagerOptions) (*Manager, error) {
	if options.Clock == nil {
		options.Clock = newClock()
	}
	m := &Manager{process: process{world: w, clock: options.Clock}, stopped: make(chan struct{}, 1)}
	m.follower = newFollower(&m.process, name, server, m.passOn)
	m.ctx, m.end = context.WithCancel(log.IntoContext(context.Background(), logr.Discard()))
	var err error
	selections := selectionsOf(controllers.CacheOptions(Namespace), server)
	selections = append(selections, apiserver.Selection{Of: &v1.ServiceGroup{}}) // as a whole, of all namespaces
	if m.cache, err = server.NewCache(selections...); err != nil {
		return nil, err
	}
	m.client = server.NewClient(options.Intercept, m.cache)
	return m, m.makeParts(server.NewClient(options.Intercept, nil), options)
}

// lead makes the components work.
func (m *Manager) lead() error {
	for i := range m.parts {
		for _, s := range m.parts[i].Sources {
			if err := s.Start(m.ctx, m.parts[i].queue); err != nil {
				return err
			}
		}
	}
	for _, r := range m.runnables {
		m.Go(func() {
			if err := r.Start(m.ctx); err != nil {
				m.world.Tell(m.name, "%v", err)
			}
		})
	}
	m.isLeading = true
	for _, change := range m.cache.Known() {
		m.passToParts(change)
	}
	return nil
}

// Add makes something work while the manager leads.
func (m *Manager) Add(r manager.Runnable) error {
	m.runnables = append(m.runnables, r)
	return nil
}

// Stop makes the manager end what it does, pass on the lead if it has it, and end.
func (m *Manager) Stop() {
	select {
	case m.stopped <- struct{}{}:
		m.after(0, func() {}) // which wakes its tasks
	default:
	}
}

// endWork lets the components finish what they do, and begin nothing.
func (m *Manager) endWork() {
	m.isLeading = false
	m.end()
	for i := range m.parts {
		q := m.parts[i].queue
		q.workers = 0
		for len(q.active) > 0 && !m.isKilled {
			m.Wait(context.Background(), time.Millisecond)
		}
	}
}

// selectionsOf returns what a cache with options keeps, by them, of the kinds that the server has.
func selectionsOf(options cache.Options, server *apiserver.Server) []apiserver.Selection {
	var selections []apiserver.Selection
	for obj, by := range options.ByObject {
		if !server.Serves(obj) {
			continue
		}
		selection := apiserver.Selection{Of: obj, Fields: by.Field, Transform: by.Transform}
		if len(by.Namespaces) > 0 {
			selection.Selects = func(obj client.Object) bool {
				_, isWatched := by.Namespaces[obj.GetNamespace()]
				return isWatched
			}
		}
		if _, isNamespace := obj.(*corev1.Namespace); isNamespace { // the manager watches their metadata
			selection.Transform = func(obj any) (any, error) {
				ns := controllers.NamespaceMetadata()
				obj.(*corev1.Namespace).ObjectMeta.DeepCopyInto(&ns.ObjectMeta) //nolint:forcetypeassert // of that kind
				return by.Transform(ns)
			}
		}
		selections = append(selections, selection)
	}
	return selections
}

// makeParts makes the components, with what one process of the manager shares among them.
func (m *Manager) makeParts(uncached client.Client, options ManagerOptions) error {
	m.live = controllers.NewLivenessTracker(m.Now)
	m.leases = m.live.Handler()
	own, reasons := controllers.NewMetrics(prometheus.NewRegistry()), &controllers.AddressExplanations{}
	tells := recorder{m}
	external := controllers.NewExternalIPAM(m.client, uncached, controllers.ExternalIPAMOptions{
		Recorder: tells, Namespace: Namespace, IsDefaultLoadBalancer: true, Metrics: own, Now: m.Now, Tasks: &m.process,
		Netbox: netbox.Options{Transport: way{options.NetBox, m}},
	})
	var err3 error
	if options.NetBox != nil {
		err3 = external.SetupWithManager(m)
	}
	cluster := managerCluster{m, uncached}
	placement, err1 := (&controllers.PlacementReconciler{
		Client: m.client, Recorder: tells, Namespace: Namespace, IsDefaultLoadBalancer: true, Liveness: m.live, Now: m.Now,
		Metrics:      own,
		Explanations: reasons, ParallelWrites: 1, NamesSuccessors: options.NamesSuccessors,
		SlowsLeases: options.SlowsLeases,
	}).Component(cluster)
	announced, err2 := (&controllers.AnnouncedReconciler{
		Client: m.client, Recorder: tells, Namespace: Namespace, IsDefaultLoadBalancer: true, Now: m.Now,
		Explanations: reasons,
	}).Component(cluster)
	components := []controllers.Component{
		(&controllers.ServiceReconciler{
			Client: m.client, Recorder: tells, Namespace: Namespace, IsDefaultLoadBalancer: true, Metrics: own, IPAM: external,
			Random: m.Random,
		}).Component(cluster),
		(&controllers.ServiceGroupReconciler{
			Client: m.client, Recorder: tells, Namespace: Namespace, IsDefaultLoadBalancer: true, Metrics: own, IPAM: external,
		}).Component(),
		placement, announced,
	}
	if options.HasRouters {
		components = append(components, (&controllers.RoutingReconciler{
			Client: m.client, Recorder: tells, Namespace: Namespace, Now: time.Now, ParallelWrites: 1,
		}).Component())
	}
	for _, c := range components {
		work := func(r reconcile.Request) (reconcile.Result, error) { return c.Reconciler.Reconcile(m.ctx, r) }
		m.parts = append(m.parts, part{c, newQueue(&m.process, m.name, c.Options.MaxConcurrentReconciles, work)})
	}
	return errors.Join(err1, err2, err3)
}

// Kill ends the manager at once, as the kernel does.
func (m *Manager) Kill() {
	m.end()
	m.kill()
}

// look finds Leases that have expired, again and again, and passes on what that brings.
func (m *Manager) look() {
	m.live.SignalChanges()
	for i := range m.parts {
		p := &m.parts[i]
		for _, ch := range p.Channels {
			if !m.isLeading {
				break
			}
			select {
			case e := <-ch.Events:
				ch.Handler.Generic(m.ctx, e, p.queue)
			default:
			}
		}
	}
	m.after(controllers.LivenessInterval, m.look)
}

// passOn passes a change on to those that it concerns.
func (m *Manager) passOn(c apiserver.Change) {
	if c.Kind.Kind == "Lease" {
		switch {
		case c.New == nil:
			m.leases.OnDelete(c.Old)
		case c.Old == nil:
			m.leases.OnAdd(c.New, false)
		default:
			m.leases.OnUpdate(c.Old, c.New)
		}
	}
	if m.isLeading {
		m.passToParts(c)
	}
}

// passToParts passes a change on to the components that it wakes.
func (m *Manager) passToParts(c apiserver.Change) {
	for i := range m.parts {
		p := &m.parts[i]
		if p.For != nil {
			m.pass(
				c, controllers.Watch{Object: p.For, Handler: &handler.EnqueueRequestForObject{}, Changed: p.ForChanged}, p.queue,
			)
		}
		for _, watch := range p.Watches {
			m.pass(c, watch, p.queue)
		}
	}
}

// pass turns a change into requests, if a watch is of its kind and lets it through.
func (m *Manager) pass(c apiserver.Change, watch controllers.Watch, q *queue) {
	gvk, err := m.client.GroupVersionKindFor(watch.Object)
	if err != nil || gvk != c.Kind {
		return
	}
	changed := watch.Changed
	if changed == nil {
		changed = predicate.Funcs{}
	}
	switch {
	case c.Old == nil:
		if e := (event.CreateEvent{Object: c.New}); changed.Create(e) {
			watch.Handler.Create(m.ctx, e, q)
		}
	case c.New == nil:
		if e := (event.DeleteEvent{Object: c.Old}); changed.Delete(e) {
			watch.Handler.Delete(m.ctx, e, q)
		}
	default:
		if e := (event.UpdateEvent{ObjectOld: c.Old, ObjectNew: c.New}); changed.Update(e) {
			watch.Handler.Update(m.ctx, e, q)
		}
	}
}

// managerCluster is what components ask of the manager when they are made.
type managerCluster struct {
	manager  *Manager
	uncached client.Reader
}

func (c managerCluster) GetAPIReader() client.Reader          { return c.uncached }
func (c managerCluster) GetFieldIndexer() client.FieldIndexer { return c }

// IndexField adds an index to the cache.
func (c managerCluster) IndexField(
	_ context.Context, obj client.Object, name string, valuesOf client.IndexerFunc,
) error {
	return c.manager.cache.AddIndex(obj, name, valuesOf)
}

// recorder tells events.
type recorder struct{ manager *Manager }

// Eventf tells an event.
func (r recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	name := ""
	if obj, isObject := regarding.(metav1.Object); isObject {
		name = obj.GetName()
	}
	text, w := fmt.Sprintf(note, args...), r.manager.world
	w.Tell(r.manager.name, "event %s %s of %s: %s", kind, reason, name, text)
	if w.OnEvent != nil {
		w.OnEvent(Event{regarding, related, kind, reason, action, text})
	}
}

// PauseInRequest pauses the manager when it makes its next request, which it sends when it goes on.
func (m *Manager) PauseInRequest() { m.pausesBy = func(apiserver.Request) bool { return true } }

// Resume lets the manager go on that was paused, or was to be paused.
func (m *Manager) Resume() {
	if m.pausesBy != nil {
		m.pausesBy = nil
		return
	}
	m.process.Resume()
}

// IsLeading reports whether the manager leads, as far as it knows.
func (m *Manager) IsLeading() bool { return m.isLeading && !m.isKilled }
