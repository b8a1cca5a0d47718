package controllers

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// ServiceGroupReconciler reports on pools: whether they can be allocated from,
// and how much of them is in use.
type ServiceGroupReconciler struct {
	Client    client.Client
	Recorder  events.EventRecorder
	Namespace string // where ServiceGroups count
	Metrics   *Metrics
}

// countDelay is how late the counts of addresses may be: they take a look at all
// Services.
const countDelay = 500 * time.Millisecond

// +kubebuilder:rbac:groups=purelb.io,resources=servicegroups/status,verbs=patch

// SetupWithManager registers the reconciler.
func (r *ServiceGroupReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("servicegroup").
		For(&v1.ServiceGroup{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// A verdict depends on the other groups.
		Watches(&v1.ServiceGroup{}, batched(r.all), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// A status that somebody else has written.
		Watches(&v1.ServiceGroup{}, batchedFor(always(countDelay), itself)).
		Watches(&corev1.Service{}, batchedFor(always(countDelay), r.all), builder.WithPredicates(placedDifferently)).
		Watches(&v1.Announcement{}, batched(r.all), builder.WithPredicates(factsChanged)).
		Complete(r)
}

func itself(_ context.Context, obj client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(obj)}}
}

func (r *ServiceGroupReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Cannot list ServiceGroups")
		return nil
	}
	var requests []reconcile.Request
	for i := range groups.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&groups.Items[i])})
	}
	return requests
}

// Reconcile writes the status of one ServiceGroup.
func (r *ServiceGroupReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	sg := &v1.ServiceGroup{}
	if err := r.Client.Get(ctx, req.NamespacedName, sg); err != nil {
		if client.IgnoreNotFound(err) == nil && req.Namespace == r.Namespace {
			r.Metrics.PoolGone(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	verdict, used, announce, err := r.gather(ctx, sg)
	if err != nil || verdict == nil {
		return reconcile.Result{}, err // without a verdict, it has just been deleted
	}
	status := groupStatus(sg, verdict, used, announce)
	if sg.Namespace == r.Namespace {
		r.Metrics.Pool(sg.Name, &status)
	}
	if equality.Semantic.DeepEqual(status, sg.Status) {
		return reconcile.Result{}, nil
	}
	before, after := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionReady).DeepCopy(), meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	sg.Status = status
	if err := applyStatus(ctx, r.Client, sg, ownerServiceGroup); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if after.Status == metav1.ConditionFalse && (before == nil || before.Reason != after.Reason || before.Message != after.Message) {
		r.Recorder.Eventf(sg, nil, corev1.EventTypeWarning, after.Reason, "Validate", "%s", after.Message)
	}
	return reconcile.Result{}, nil
}

func (r *ServiceGroupReconciler) gather(ctx context.Context, sg *v1.ServiceGroup) (*allocation.Verdict, *allocation.InUse, func(allocation.Range) v1.AnnounceType, error) {
	if sg.Namespace != r.Namespace {
		return allocation.OutOfScope(sg, r.Namespace), nil, nil, nil
	}
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	var services corev1.ServiceList
	if err := r.Client.List(ctx, &services, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, nil, fmt.Errorf("list Services: %w", err)
	}
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, nil, nil, err
	}
	reserved, err := reservedAddresses(ctx, r.Client, r.Namespace)
	if err != nil {
		return nil, nil, nil, err
	}
	verdict := allocation.NewCatalog(groups.Items, r.Namespace)[sg.Name]
	if verdict != nil {
		verdict.Warnings = append(verdict.Warnings, allocation.ReservedWarnings(&verdict.Group, reserved)...)
	}
	return verdict, inUse(services.Items), (&cluster{announcements: announcements}).announceType, nil
}

// announceType is how addresses of a range of a local group are announced, or
// empty if no node has reported its interfaces.
func (in *cluster) announceType(r allocation.Range) v1.AnnounceType {
	var kind v1.AnnounceType
	for i := range in.announcements {
		for _, iface := range interfacesOf(&in.announcements[i]) {
			kind = v1.AnnounceVirtual
			for _, s := range iface.Subnets {
				if s.Bits() < s.Addr().BitLen() && s.Contains(r.Addrs.From()) {
					return v1.AnnounceLocal
				}
			}
		}
	}
	return kind
}

// groupStatus is the status that a ServiceGroup is to have.
func groupStatus(sg *v1.ServiceGroup, verdict *allocation.Verdict, used *allocation.InUse, announce func(allocation.Range) v1.AnnounceType) v1.ServiceGroupStatus {
	group := &verdict.Group
	status := v1.ServiceGroupStatus{
		ObservedGeneration: sg.Generation,
		Type:               group.Type,
		Conditions:         append([]metav1.Condition(nil), sg.Status.Conditions...),
	}
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: sg.Generation,
		Reason: verdict.Reason, Message: shorten(strings.Join(append([]string{verdict.Message}, verdict.Warnings...), "; "), 4096),
	}
	if !verdict.Ready() {
		ready.Status = metav1.ConditionFalse
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	setStalled(&status.Conditions, ready, !verdict.Ready())
	if !verdict.Ready() {
		return status
	}
	usage := group.Usage(used)
	status.AllocatedIPv4, status.AllocatedIPv6 = usage.AllocatedIPv4, usage.AllocatedIPv6
	status.AvailableIPv4, status.AvailableIPv6 = usage.AvailableIPv4, usage.AvailableIPv6
	var ranges []string
	for i, rg := range group.Ranges {
		pool := v1.PoolStatus{
			Range: rg.String(), Subnet: rg.Subnet.String(), Announce: v1.AnnounceVirtual,
			Capacity: rg.Capacity(), Allocated: usage.Ranges[i],
		}
		if group.Type == v1.PoolTypeLocal {
			pool.Announce = announce(rg)
		}
		status.Pools = append(status.Pools, pool)
		ranges = append(ranges, pool.Range)
	}
	status.Ranges = shorten(strings.Join(ranges, ","), 1024)
	return status
}

// setStalled makes Stalled say what Ready says, if stalled, else removes it.
func setStalled(conditions *[]metav1.Condition, ready metav1.Condition, stalled bool) {
	if !stalled {
		meta.RemoveStatusCondition(conditions, v1.ConditionStalled)
		return
	}
	ready.Type, ready.Status = v1.ConditionStalled, metav1.ConditionTrue
	meta.SetStatusCondition(conditions, ready)
}

// shorten cuts s to at most so many bytes, never within a letter: the API
// server would replace the rest of it, and the next comparison see a change.
func shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}
