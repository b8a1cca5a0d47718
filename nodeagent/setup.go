package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// ManagerOptions returns the options of the controller manager that runs a node's agent. It
// knows the agent's few kinds without asking the API server, so that it starts while that is
// away, and watches only objects that concern the node.
func ManagerOptions(nodeName, namespace, lbNodeAgent string) (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(coordinationv1.AddToScheme(scheme), purelbv1.AddToScheme(scheme)); err != nil {
		return ctrl.Options{}, fmt.Errorf("make the scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	// The cache looks up the kinds of lists by themselves.
	for _, kind := range []string{"Announcement", "AnnouncementList", "CommonAnnouncement", "CommonAnnouncementList", "LBNodeAgent", "LBNodeAgentList"} {
		mapper.Add(purelbv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	inNamespace := map[string]cache.Config{namespace: {}}
	return ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer:      informer.NewPersistent,
			ByObject: map[client.Object]cache.ByObject{
				&purelbv1.Announcement{}:       {Namespaces: inNamespace, Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
				&purelbv1.CommonAnnouncement{}: {Namespaces: inNamespace, Field: fields.OneTermEqualSelector("spec.lbNodeAgent", lbNodeAgent)},
				&purelbv1.LBNodeAgent{}:        {Namespaces: inNamespace, Field: fields.OneTermEqualSelector("metadata.name", lbNodeAgent)},
			},
		},
	}, nil
}

// prepare makes the agent's components.
func (a *Agent) prepare() {
	a.listLock, a.syncLock = newLock(), newLock()
	a.wake, a.relist = make(chan struct{}, 1), make(chan struct{}, 1)
	a.state = state{standIns: pacing.Batch{Gap: standInGap}}
	a.freshness = newFreshness()
	a.watchdog = newWatchdog()
	a.announcer = newAnnouncer(a.Neighbours, a.Metrics)
	a.prober = newProber(a.Neighbours, a.wake)
	a.defender = newDefender(a)
	a.watching = newWatching(a)
	a.reporter = newReporter(a)
	a.saver = newCheckpointSaver(a)
	if a.Ownership != nil {
		a.ownershipSaver = newOwnershipSaver(a)
	}
}

// SetupWithManager adds the agent to mgr, and its announcer, defender, watching, reporter, savers
// and heartbeat.
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
			NewQueue:         newQueueWithoutMetrics,
			RateLimiter:      workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetry, maxRetry),
		}).
		Complete(a)
	a.loadCheckpoint()
	for _, s := range a.savers() {
		err = errors.Join(err, mgr.Add(s))
	}
	return errors.Join(err, mgr.Add(a.announcer), mgr.Add(a.defender), mgr.Add(a.watching), mgr.Add(a.reporter), mgr.Add(&heartbeat{agent: a}))
}

// newQueueWithoutMetrics returns a queue that keeps no metrics: for them it would wake an idle
// agent twice a second, which otherwise wakes once a second to renew its Lease.
func newQueueWithoutMetrics(_ string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{})
}

// onAnnouncement asks for a Reconcile when a spec changes, and a little later when only a status
// does: a status that the agent computed while the cache was behind may have to be written once
// more. Once the status is right the agent writes nothing, so that no further Reconcile follows.
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
			q.AddAfter(a.request(), statusSettle)
		},
	}
}

// request returns the one work item.
func (a *Agent) request() reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: a.NodeName}}
}

// emptyItem is a work item without work: that the worker takes it shows that the worker works.
var emptyItem = reconcile.Request{}

// watchNode asks for a Reconcile when what the kernel holds changes, or the agent is woken.
func (a *Agent) watchNode(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	a.watchdog.setGiveEmptyItem(func() { queue.Add(emptyItem) })
	go a.relistWhenAsked(ctx, func(wait time.Duration) { queue.AddAfter(a.request(), wait) })
	go func() {
		if err := a.Kernel.Watch(ctx, func() { signal(a.wake) }); err != nil {
			log.FromContext(ctx).Error(err, "The kernel is not watched: what others change is put right only when lifetimes are renewed")
		}
	}()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.wake:
				a.standIn(ctx, true) // no worker works the queue before the API server has answered
				queue.Add(a.request())
			}
		}
	}()
	return nil
}

// Reconcile makes the node announce what its Announcements ask.
func (a *Agent) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	a.watchdog.noteItemTaken()
	if request == emptyItem {
		return reconcile.Result{}, nil
	}
	wait, err := a.syncCached(ctx)
	if err != nil && wait > 0 && wait <= plan.ReprobeInterval {
		// An error would delay the addresses that wait until another station stops answering.
		log.FromContext(ctx).Error(err, "Not everything could be applied")
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("node %s: %w", a.NodeName, err)
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}
