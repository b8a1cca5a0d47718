package controllers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/config/policy"
)

// PolicyReconciler keeps the objects of config/policy as they are written there, whoever
// changes or deletes them: the tool that installs PureLB may not know their kinds. They go
// with the manager's namespace, which owns them.
type PolicyReconciler struct {
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	Recorder  events.EventRecorder
	// Namespace of the manager, and the name of its own pod, which events are about;
	// without a PodName there are no events.
	Namespace, PodName string
	// Users whom the objects name.
	Users policy.Users
}

// PolicyLabels are the labels of the objects.
func PolicyLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/managed-by": policy.ManagedBy}
}

// A request that creates an object by server-side apply has the object's name, so that even
// the right to create can be limited to names.
//
// +kubebuilder:rbac:groups="",resources=namespaces,namespace=purelb-system,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,verbs=get;list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=purelb-agents;purelb-announcements;purelb-crds;purelb-nodes;purelb-speakers,verbs=create;patch;update
// +kubebuilder:rbac:groups=flowcontrol.apiserver.k8s.io,resources=flowschemas,verbs=get;list;watch
// +kubebuilder:rbac:groups=flowcontrol.apiserver.k8s.io,resources=flowschemas,resourceNames=purelb-agents;purelb-manager,verbs=create;patch;update

// SetupWithManager registers the reconciler.
func (r *PolicyReconciler) SetupWithManager(mgr ctrl.Manager) error {
	// There is one request for all objects, which also comes at the start, when none of
	// them exists.
	allPolicies := reconcile.Request{NamespacedName: client.ObjectKey{Name: "policies"}}
	enqueue := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{allPolicies}
	})
	start := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(allPolicies)
		return nil
	})
	changed := builder.WithPredicates(predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
	))
	return ctrl.NewControllerManagedBy(mgr).
		Named("policy").
		Watches(&admissionv1.ValidatingAdmissionPolicy{}, enqueue, changed).
		Watches(&admissionv1.ValidatingAdmissionPolicyBinding{}, enqueue, changed).
		Watches(&flowcontrolv1.FlowSchema{}, enqueue, changed).
		WatchesRawSource(start).
		WithOptions(controller.Options{
			CacheSyncTimeout: policySyncWait,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				minPolicyRetry, maxPolicyRetry,
			),
		}).
		Complete(r)
}

// Reconcile applies all objects. To apply one that is as it should be changes nothing, and
// causes no event.
func (r *PolicyReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	objects, err := policy.Objects(r.Users)
	if err != nil {
		return reconcile.Result{}, err
	}
	owner, err := r.namespaceOwnerReference(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for _, u := range objects {
		u.SetOwnerReferences([]metav1.OwnerReference{owner})
		errs = append(errs, r.apply(ctx, u))
	}
	err = errors.Join(errs...)
	if err != nil && r.PodName != "" {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.PodName}}
		r.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, v1.EventPolicyNotApplied, "Apply policies",
			"Not all that limits what agents and users may write is in place: %s", err)
	}
	return reconcile.Result{}, err
}

// apply writes one object. Server-side apply leaves alone what others have added, such as a
// condition that exempts a user; then the whole object is replaced.
func (r *PolicyReconciler) apply(ctx context.Context, u *unstructured.Unstructured) error {
	stored := u.DeepCopy()
	if err := r.Client.Apply(
		ctx, client.ApplyConfigurationFromUnstructured(stored), client.FieldOwner(ownerPolicy), client.ForceOwnership,
	); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	if !othersWrote(stored.GetManagedFields(), ownerPolicy) {
		return nil
	}
	u.SetResourceVersion(stored.GetResourceVersion())
	if err := r.Client.Update(ctx, u, client.FieldOwner(ownerPolicy)); err != nil {
		return fmt.Errorf("replace %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// othersWrote reports whether another field manager than owner has set a field of the
// specification.
func othersWrote(fields []metav1.ManagedFieldsEntry, owner string) bool {
	return slices.ContainsFunc(fields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager != owner && e.Subresource == "" && e.FieldsV1 != nil &&
			bytes.Contains(e.FieldsV1.GetRawBytes(), []byte(`"f:spec"`))
	})
}

// namespaceOwnerReference is of the manager's namespace. A cluster-scoped object cannot be owned by an object in
// a namespace, such as the manager's Deployment.
func (r *PolicyReconciler) namespaceOwnerReference(ctx context.Context) (metav1.OwnerReference, error) {
	ns := &corev1.Namespace{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Name: r.Namespace}, ns); err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("look up the manager's namespace: %w", err)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID}, nil
}
