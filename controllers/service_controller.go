package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// ServiceReconciler gives Services of type LoadBalancer their addresses.
//
// What is in use is derived from all Services: the ledger is an index of them.
// The first Service is served when the ledger has every one.
type ServiceReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Namespace string // where ServiceGroups count
	IsDefault bool   // serve Services without a loadBalancerClass
	Metrics   *Metrics

	reader client.Reader // of the API server itself
	ledger *ledger
}

// allocators is how many Services get their addresses at the same time: most of the
// time that it takes is waiting for the API server.
const allocators = 8

// catchUp is how long the cache is given to show what it is known to lack.
const catchUp = 50 * time.Millisecond

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=purelb.io,resources=servicegroups,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *ServiceReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.reader, r.ledger = mgr.GetAPIReader(), newLedger(r.IsDefault)
	return ctrl.NewControllerManagedBy(mgr).
		Named("service").
		For(&corev1.Service{}, builder.WithPredicates(asksDifferently)).
		Watches(&corev1.Service{}, r.observe()).
		WatchesRawSource(r.listFirst()).
		Watches(&v1.ServiceGroup{}, handler.EnqueueRequestsFromMapFunc(r.servicesOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1.Announcement{}, batched(r.factsMatterTo), builder.WithPredicates(factsChanged)).
		Watches(&corev1.Node{}, batched(r.factsMatterTo), builder.WithPredicates(addressesChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: allocators}).
		Complete(r)
}

// Reconcile gives one Service its addresses, or takes them back.
func (r *ServiceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc := &corev1.Service{}
	if err := r.Client.Get(ctx, req.NamespacedName, svc); apierrors.IsNotFound(err) {
		return r.forget(ctx, req.NamespacedName)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	r.ledger.see(svc, false)
	if !svc.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // gone soon
	}
	if r.ledger.isBehind(svc) {
		return reconcile.Result{RequeueAfter: catchUp}, nil
	}
	err := r.serve(ctx, svc)
	r.ledger.see(svc, false)
	if apierrors.IsConflict(err) {
		// Somebody else wrote it; the cache will show what.
		return reconcile.Result{RequeueAfter: catchUp}, nil
	}
	return reconcile.Result{}, err
}

// forget makes the ledger forget a Service that the cache does not have, unless
// it is one that the cache has yet to show.
func (r *ServiceReconciler) forget(ctx context.Context, key client.ObjectKey) (reconcile.Result, error) {
	if r.ledger.isUnseen(key) {
		err := r.reader.Get(ctx, key, &corev1.Service{})
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: catchUp}, err
		}
	}
	r.ledger.drop(key, "")
	return reconcile.Result{}, nil
}

func (r *ServiceReconciler) serve(ctx context.Context, svc *corev1.Service) error {
	if !isOurs(svc, r.IsDefault) {
		if !isBranded(svc) && meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated) == nil {
			return nil
		}
		return r.release(ctx, svc)
	}
	facts, err := r.facts(ctx)
	if err != nil {
		return err
	}
	return r.assign(ctx, svc, r.ledger.decide(svc, facts))
}

// facts gathers what allocations depend on, but for the Services.
func (r *ServiceReconciler) facts(ctx context.Context) (*allocation.Facts, error) {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, err
	}
	reserved, err := reservedAddresses(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, err
	}
	return &allocation.Facts{
		Catalog:  allocation.NewCatalog(groups.Items, r.Namespace),
		Reserved: reserved,
		Announce: (&cluster{announcements: announcements}).announceType,
	}, nil
}
