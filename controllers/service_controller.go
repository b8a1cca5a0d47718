package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// ServiceReconciler gives Services of type LoadBalancer their addresses.
//
// What is in use is read from all Services each time, plus what this process
// has written and does not see yet; so there is one worker, and it starts when
// the cache holds every Service.
type ServiceReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Namespace string // where ServiceGroups count
	IsDefault bool   // serve Services without a loadBalancerClass
	Metrics   *Metrics

	written written
}

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=purelb.io,resources=servicegroups,verbs=get;list;watch
// +kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the reconciler.
func (r *ServiceReconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.written = written{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("service").
		For(&corev1.Service{}).
		Watches(&corev1.Service{}, r.wakePending()).
		Watches(&v1.ServiceGroup{}, handler.EnqueueRequestsFromMapFunc(r.servicesOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(r)
}

// wakePending enqueues pending Services when another has given addresses back.
func (r *ServiceReconciler) wakePending() handler.EventHandler {
	wake := func(ctx context.Context, q queue) {
		r.enqueue(ctx, q, isPending)
	}
	return handler.Funcs{
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if svc, ok := e.Object.(*corev1.Service); ok && len(ingressOf(svc)) > 0 {
				wake(ctx, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*corev1.Service)
			after, ok2 := e.ObjectNew.(*corev1.Service)
			if !ok1 || !ok2 {
				return
			}
			now := ingressOf(after)
			if slices.ContainsFunc(ingressOf(before), func(a netip.Addr) bool { return !slices.Contains(now, a) }) {
				wake(ctx, q)
			}
		},
	}
}

func (r *ServiceReconciler) enqueue(ctx context.Context, q queue, which func(*corev1.Service) bool) {
	services, err := listServices(ctx, r.Client)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue Services")
		return
	}
	for i := range services {
		if which(&services[i]) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&services[i])})
		}
	}
}

// servicesOf maps a ServiceGroup to the Services that a change of it concerns:
// those that wait, and those that ask for it.
func (r *ServiceReconciler) servicesOf(ctx context.Context, group client.Object) []reconcile.Request {
	services, err := listServices(ctx, r.Client)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue Services")
		return nil
	}
	var requests []reconcile.Request
	for i := range services {
		svc := &services[i]
		if isOurs(svc, r.IsDefault) && (isPending(svc) || groupOf(svc) == group.GetName()) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)})
		}
	}
	return requests
}

// Reconcile gives one Service its addresses, or takes them back.
func (r *ServiceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	svc := &corev1.Service{}
	if err := r.Client.Get(ctx, req.NamespacedName, svc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !svc.DeletionTimestamp.IsZero() || r.written.isBehind(svc) {
		return reconcile.Result{}, nil // gone soon, or to be seen again soon
	}
	err := r.serve(ctx, svc)
	if apierrors.IsConflict(err) {
		// Somebody else wrote it; the cache will show what.
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

func (r *ServiceReconciler) serve(ctx context.Context, svc *corev1.Service) error {
	if !isOurs(svc, r.IsDefault) {
		if !isBranded(svc) && meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated) == nil {
			return nil
		}
		return r.release(ctx, svc)
	}
	result, err := r.decide(ctx, svc)
	if err != nil {
		return err
	}
	return r.assign(ctx, svc, result)
}

// decide gathers what the allocation depends on and lets it decide.
func (r *ServiceReconciler) decide(ctx context.Context, svc *corev1.Service) (allocation.Result, error) {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace)); err != nil {
		return allocation.Result{}, fmt.Errorf("list ServiceGroups: %w", err)
	}
	services, err := listServices(ctx, r.Client)
	if err != nil {
		return allocation.Result{}, err
	}
	reserved, err := reservedAddresses(ctx, r.Client, r.Namespace)
	if err != nil {
		return allocation.Result{}, err
	}
	r.written.prune(services)
	request := allocation.Request{
		Service:  keyOf(svc),
		Group:    groupOf(svc),
		Families: svc.Spec.IPFamilies,
		Policy:   ptr.Deref(svc.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack),
		Current:  ingressOf(svc),

		AllocatedFrom: svc.Annotations[v1.AnnotationAllocatedFrom],
	}
	catalog := allocation.NewCatalog(groups.Items, r.Namespace)
	return allocation.Allocate(request, catalog, inUse(services, r.written.addresses), reserved), nil
}

// assign writes the annotations first, then the addresses: whoever has an
// address of ours is branded.
func (r *ServiceReconciler) assign(ctx context.Context, svc *corev1.Service, result allocation.Result) error {
	read := svc.ResourceVersion
	if result.Reason == v1.ReasonAllocated {
		wanted := map[string]string{
			v1.AnnotationAllocatedBy:   v1.Brand,
			v1.AnnotationAllocatedFrom: result.Group,
			v1.AnnotationPoolType:      string(result.Type),
		}
		if err := r.annotate(ctx, svc, wanted); err != nil {
			return err
		}
	}
	condition := metav1.Condition{
		Type: v1.ConditionAllocated, Status: metav1.ConditionTrue, ObservedGeneration: svc.Generation,
		Reason: result.Reason, Message: result.Message,
	}
	if result.Reason != v1.ReasonAllocated {
		condition.Status = metav1.ConditionFalse
	}
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated).DeepCopy()
	sameAddresses := slices.Equal(result.Addresses, ingressOf(svc))
	conditions := slices.Clone(svc.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, condition) && sameAddresses {
		return nil
	}
	if err := r.writeStatus(ctx, svc, result.Addresses, meta.FindStatusCondition(conditions, v1.ConditionAllocated), read); err != nil {
		return err
	}
	switch {
	case result.Reason == v1.ReasonAllocated && !sameAddresses:
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressAssigned, "Assign "+allocation.Join(result.Addresses),
			"Assigned %s", result.Message)
	case result.Reason != v1.ReasonAllocated && (before == nil || before.Reason != result.Reason || before.Message != result.Message):
		pool := groupOf(svc)
		if result.Reason == v1.ReasonNoSuchGroup {
			pool = "" // whatever somebody wrote
		}
		r.Metrics.Rejected(pool, result.Reason)
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventAllocationFailed, "Allocate "+result.Reason,
			"%s: %s", result.Reason, result.Message)
	}
	return nil
}

// release takes addresses, condition and annotations back from a Service that
// is no longer ours: the annotations last, so that it stays branded until it has
// no address.
func (r *ServiceReconciler) release(ctx context.Context, svc *corev1.Service) error {
	condition := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	addrs := ingressOf(svc)
	if condition != nil || len(addrs) > 0 {
		what := allocation.Join(addrs)
		if condition != nil && condition.Status == metav1.ConditionTrue {
			// The API server clears the addresses itself when the type changes.
			what = condition.Message
		}
		if err := r.writeStatus(ctx, svc, nil, nil, svc.ResourceVersion); err != nil {
			return err
		}
		if what != "" {
			r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s", what)
		}
	}
	return r.annotate(ctx, svc, nil)
}

// annotate makes wanted the annotations that the allocator has on the Service,
// if the Service is still as read.
func (r *ServiceReconciler) annotate(ctx context.Context, svc *corev1.Service, wanted map[string]string) error {
	same := true
	for _, name := range []string{v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationPoolType} {
		same = same && svc.Annotations[name] == wanted[name]
	}
	if same {
		return nil
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithResourceVersion(svc.ResourceVersion).WithAnnotations(wanted)
	if err := r.Client.Apply(ctx, ac, client.FieldOwner(ownerAllocator), client.ForceOwnership); err != nil {
		return fmt.Errorf("annotate Service: %w", err)
	}
	svc.ResourceVersion = ptr.Deref(ac.ResourceVersion, svc.ResourceVersion)
	return nil
}

// writeStatus makes addrs and condition the Service's, if it is still as read.
func (r *ServiceReconciler) writeStatus(ctx context.Context, svc *corev1.Service, addrs []netip.Addr, condition *metav1.Condition, read string) error {
	status := corev1ac.ServiceStatus()
	if len(addrs) > 0 {
		lb := corev1ac.LoadBalancerStatus()
		for _, a := range addrs {
			lb.WithIngress(corev1ac.LoadBalancerIngress().WithIP(a.String()).WithIPMode(corev1.LoadBalancerIPModeVIP))
		}
		status.WithLoadBalancer(lb)
	}
	if condition != nil {
		status.WithConditions(conditionConfiguration(condition))
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithResourceVersion(svc.ResourceVersion).WithStatus(status)
	undo := r.written.note(svc, addrs, read, svc.ResourceVersion)
	if err := r.Client.Status().Apply(ctx, ac, client.FieldOwner(ownerAllocator), client.ForceOwnership); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
			undo() // certainly not written
		} else {
			r.written.doubt(svc)
		}
		return fmt.Errorf("write status of Service: %w", err)
	}
	svc.ResourceVersion = ptr.Deref(ac.ResourceVersion, svc.ResourceVersion)
	return nil
}

func conditionConfiguration(c *metav1.Condition) *metav1ac.ConditionApplyConfiguration {
	return metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithObservedGeneration(c.ObservedGeneration).
		WithReason(c.Reason).WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime)
}
