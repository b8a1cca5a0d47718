package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/informer"
)

// Back-off after a Reconcile that failed.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 5 * time.Second
)

// settle is how long after a change of an Announcement's status the agent looks
// whether it is right. It is no shorter than reprobe: a state that changes with
// each look is not written more often than it was.
const settle = reprobe

// cacheSyncTimeout is for ever: an agent that starts while the API server is
// away waits for it.
const cacheSyncTimeout = 10 * 365 * 24 * time.Hour

// ManagerOptions are those of the manager that runs a node's agent. It knows
// the agent's few kinds by itself, so that it starts without an API server, and
// watches only what concerns the node.
func ManagerOptions(nodeName, namespace, lbNodeAgent string) (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(coordinationv1.AddToScheme(scheme), purelbv1.AddToScheme(scheme)); err != nil {
		return ctrl.Options{}, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	// The cache looks lists up by their own kinds.
	for _, kind := range []string{"Announcement", "AnnouncementList", "CommonAnnouncement", "CommonAnnouncementList", "LBNodeAgent", "LBNodeAgentList"} {
		mapper.Add(purelbv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	own := map[string]cache.Config{namespace: {}}
	return ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      informer.NewPersistent,
			ByObject: map[client.Object]cache.ByObject{
				&purelbv1.Announcement{}:       {Namespaces: own, Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
				&purelbv1.CommonAnnouncement{}: {Namespaces: own, Field: fields.OneTermEqualSelector("spec.lbNodeAgent", lbNodeAgent)},
				&purelbv1.LBNodeAgent{}:        {Namespaces: own, Field: fields.OneTermEqualSelector("metadata.name", lbNodeAgent)},
			},
		},
	}, nil
}

// prepare makes what the agent remembers.
func (a *Agent) prepare() {
	a.announcer = newAnnouncer(a.Neighbours, a.Metrics)
	a.guard = newGuard(a)
	a.waiting = map[netip.Addr]time.Time{}
	a.reported = map[string]reported{}
	a.pulse = newPulse()
	a.wake = make(chan struct{}, 1)
	a.prober = newProber(a.Neighbours, a.wake)
}

// SetupWithManager adds the agent to mgr, and its announcer, guard and heartbeat.
func (a *Agent) SetupWithManager(mgr ctrl.Manager) error {
	a.prepare()
	node := func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{a.request()} }
	err := ctrl.NewControllerManagedBy(mgr).
		Named("nodeagent").
		Watches(&purelbv1.Announcement{}, a.onAnnouncement()).
		Watches(&purelbv1.CommonAnnouncement{}, handler.EnqueueRequestsFromMapFunc(node)).
		Watches(&purelbv1.LBNodeAgent{}, handler.EnqueueRequestsFromMapFunc(node), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(a.watchNode)).
		WithOptions(controller.Options{
			CacheSyncTimeout: cacheSyncTimeout,
			NewQueue:         quietQueue,
			RateLimiter:      workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetry, maxRetry),
		}).
		Complete(a)
	a.load()
	return errors.Join(err, mgr.Add(a.announcer), mgr.Add(a.guard), mgr.Add(&heartbeat{agent: a}))
}

// quietQueue is a queue without metrics: to keep those up to date it would wake an
// idle agent twice a second, which else renews its Lease once.
func quietQueue(_ string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{})
}

// onAnnouncement asks for a Reconcile when a spec changes, and a little later
// when only a status does: a status that was compared with a cache that was
// behind may have to be written once more. Once it is right nothing is written,
// so nothing follows.
func (a *Agent) onAnnouncement() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { q.Add(a.request()) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { q.Add(a.request()) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				q.Add(a.request())
				return
			}
			q.AddAfter(a.request(), settle)
		},
	}
}

// request is the one work item.
func (a *Agent) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: a.NodeName}}
}

// watchNode asks for a Reconcile when the kernel's state changes, or the agent
// itself wants one.
func (a *Agent) watchNode(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		changed := func() {
			signal(a.wake)
			signal(a.guard.changed)
		}
		if err := a.Kernel.Watch(ctx, changed); err != nil {
			log.FromContext(ctx).Error(err, "The kernel is not watched: what others change is put right when lifetimes are renewed")
		}
	}()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.wake:
				a.standIn(ctx, true) // until the API server is there nobody works the queue
				queue.Add(a.request())
			}
		}
	}()
	return nil
}

// Reconcile makes the node announce what it is to.
func (a *Agent) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	again, err := a.syncCached(ctx)
	if err != nil && again > 0 && again <= reprobe {
		// An error would put off the addresses that wait for others to stop.
		log.FromContext(ctx).Error(err, "Not everything could be applied")
		return reconcile.Result{RequeueAfter: again}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("node %s: %w", a.NodeName, err)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}
