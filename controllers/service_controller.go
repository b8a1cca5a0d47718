package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// ServiceReconciler allocates addresses to Services of type LoadBalancer.
//
// Which addresses are in use is derived from all Services: index holds that. The manager
// allocates to no Service before the index has every one.
type ServiceReconciler struct {
	Client                client.Client
	Recorder              events.EventRecorder
	Namespace             string // the manager's, where ServiceGroups have an effect
	IsDefaultLoadBalancer bool   // serve Services without a loadBalancerClass
	Metrics               *Metrics
	IPAM                  *ExternalIPAM
	// Random returns a random duration from 0 to below a longest one; nil for a source of the process.
	Random func(below time.Duration) time.Duration

	apiReader client.Reader // reads from the API server itself
	index     *serviceIndex
	restores  restoreBackoffs
	reminders reminders
}

// parallelAllocations is how many Services the manager allocates to at the same time. Most of the
// time that an allocation takes is waiting for the API server.
const parallelAllocations = 8

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=purelb.io,resources=servicegroups,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *ServiceReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c := r.Component(mgr)
	return c.setupWithManager(mgr)
}

// Component prepares the reconciler, and returns it and what wakes it.
func (r *ServiceReconciler) Component(cluster ComponentManager) Component {
	r.apiReader, r.index, r.reminders.random = cluster.GetAPIReader(), r.IPAM.index, r.Random
	r.Metrics.setServiceCounts(r.index.countWaiting, r.index.countProgress)
	return Component{
		Name: "service", Reconciler: r, For: &corev1.Service{}, ForChanged: allocationChanged,
		Watches: []Watch{
			{Object: &corev1.Service{}, Handler: r.serviceHandler()},
			{
				Object: &v1.ServiceGroup{}, Handler: handler.EnqueueRequestsFromMapFunc(r.requestsForServicesOfGroup),
				Changed: specOrRangesChanged,
			},
			{
				Object: &v1.Announcement{}, Handler: batched(r.requestsForServicesThatDependOnNodes),
				Changed: localSubnetsChanged,
			},
			{
				Object: &v1.LBNodeAgent{}, Handler: batched(r.requestsForServicesThatDependOnNodes),
				Changed: allowedSubnetsChanged,
			},
			{
				Object: &corev1.Namespace{}, Handler: batched(r.requestsForServicesOfNamespace),
				Changed: namespaceLabelsChanged, IsMetadata: true,
			},
			{Object: &corev1.Node{}, Handler: batched(r.requestsForServicesThatDependOnNodes), Changed: nodeAddressesChanged},
		},
		Sources: []source.Source{queueSource(&r.IPAM.serviceQueue), r.listBeforeAllocating()},
		Options: controller.Options{MaxConcurrentReconciles: parallelAllocations},
	}
}

// Reconcile allocates addresses to one Service, or releases them.
func (r *ServiceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc := &corev1.Service{}
	if err := r.Client.Get(ctx, req.NamespacedName, svc); apierrors.IsNotFound(err) {
		return r.reconcileMissing(ctx, req.NamespacedName)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	r.wakeServicesWaitingForFreed(ctx, req.NamespacedName, r.index.observe(svc))
	r.recordReleasesOfDeleted(req.NamespacedName) // a Service of this name before
	r.IPAM.broker.DropRequests(req.NamespacedName, svc.UID)
	if !svc.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // it will be gone soon, and has its addresses until then
	}
	if r.index.knowsNewer(svc) {
		return reconcile.Result{RequeueAfter: cacheLag}, nil
	}
	wait, err := r.allocateOrRelease(ctx, svc)
	r.wakeServicesWaitingForFreed(ctx, req.NamespacedName, r.index.observeWritten(svc))
	if err != nil {
		return resultOfWrite(err)
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// reconcileMissing forgets a Service that the cache does not have, unless the API server
// has it and the cache has yet to show it.
func (r *ServiceReconciler) reconcileMissing(ctx context.Context, key client.ObjectKey) (reconcile.Result, error) {
	if r.index.isMissingFromCache(key) {
		err := r.apiReader.Get(ctx, key, &corev1.Service{})
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: cacheLag}, err
		}
	}
	// If this is the first to find out that the Service is gone, or the Service was observed once more after its
	// end, others may have been refused its addresses since.
	r.wakeServicesWaitingForFreed(ctx, key, r.index.remove(key, ""))
	r.IPAM.broker.DropRequests(key, "")
	r.recordReleasesOfDeleted(key)
	r.restores.forget(key)
	r.reminders.forget(key)
	return reconcile.Result{}, nil
}

// allocateOrRelease allocates addresses to a Service that PureLB serves, and releases those
// of any other one. It returns how long to wait before the next attempt, or 0 if there is
// nothing to wait for.
func (r *ServiceReconciler) allocateOrRelease(ctx context.Context, svc *corev1.Service) (time.Duration, error) {
	if !IsOurs(svc, r.IsDefaultLoadBalancer) {
		r.IPAM.broker.DropRequests(client.ObjectKeyFromObject(svc), "")
		r.reminders.forget(client.ObjectKeyFromObject(svc))
		if !hasRecord(svc) && meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated) == nil {
			return 0, nil
		}
		return 0, r.release(ctx, svc)
	}
	inputs, _, err := allocationInputs(ctx, r.Client, r.Namespace)
	if err != nil {
		return 0, err
	}
	if _, isKnown := inputs.NamespaceLabels[svc.Namespace]; !isKnown && inputs.NamespaceLabels != nil {
		return cacheLag, nil
	}
	inputs.Offers = r.IPAM.broker.Offers(svc.UID)
	result := r.index.allocate(svc, inputs)
	r.IPAM.broker.SetRequests(ownerOf(svc), result.IPAMRequests)
	if result.IsAwaitingIPAM {
		return ipam.SlowAfter, nil // the answer wakes the Service; if it takes long, the Service says so
	}
	if isOld, err := r.usesStaleNamespaceLabels(ctx, svc, inputs, &result); isOld || err != nil {
		return cacheLag, err
	}
	return r.applyResult(ctx, svc, result)
}
