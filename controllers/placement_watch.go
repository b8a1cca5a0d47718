package controllers

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
)

// SetupWithManager registers the reconciler.
func (r *PlacementReconciler) SetupWithManager(mgr ctrl.Manager) error {
	c, err := r.Component(mgr)
	if err != nil {
		return err
	}
	return c.setupWithManager(mgr)
}

// Component prepares the reconciler, and returns it and what wakes it.
func (r *PlacementReconciler) Component(cluster ComponentManager) (Component, error) {
	if r.APIReader == nil {
		r.APIReader = cluster.GetAPIReader()
	}
	r.resetState()
	err := indexEndpoints(context.Background(), cluster)
	r.batch = pacing.Batch{
		Wait: firstPlacementWait, Gap: batchWait, RestPerWork: restPerPlacement, MaxGap: maxPlacementRest,
	}
	placeCluster := batchedBy(&r.batch, r.Now, func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{wholeCluster}
	})
	return Component{
		Name: "placement", Reconciler: r,
		Watches: []Watch{
			{Object: &v1.Announcement{}, Handler: placeCluster, Changed: announcementPlacementChanged(r.SlowsLeases)},
			{Object: &v1.CommonAnnouncement{}, Handler: placeCluster},
			{Object: &v1.NodeRouting{}, Handler: placeCluster, Changed: routingSpecOrDrainedChanged},
			{Object: &v1.ServiceGroup{}, Handler: placeCluster, Changed: specOrRangesChanged},
			{Object: &v1.LBNodeAgent{}, Handler: placeCluster, Changed: predicate.GenerationChangedPredicate{}},
			{Object: &corev1.Service{}, Handler: placeCluster, Changed: servicePlacementChanged},
			{Object: &corev1.Node{}, Handler: placeCluster, Changed: nodePlacementChanged},
			{Object: &discoveryv1.EndpointSlice{}, Handler: batchedBy(&r.batch, r.Now, r.requestIfEndpointsMatter)},
		},
		Channels: []Channel{{r.Liveness.Changes(), placeCluster}},
	}, err
}

// announcementPlacementChanged keeps out what askers report, and what watchers report besides the addresses that they
// have claimed and, where Leases are slow for it, whether they watch: placement does not depend on it.
func announcementPlacementChanged(slowsLeases bool) predicate.Predicate {
	return changed(func(before, after *v1.Announcement) bool {
		switch {
		case before.Generation != after.Generation:
		case after.Spec.Asking != nil:
			return false
		case after.Spec.Standby != nil:
			return !equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) ||
				slowsLeases && isWatching(before) != isWatching(after)
		}
		return true
	})
}

// servicePlacementChanged lets through changes of a Service that placement depends on: of
// a Service that has addresses, or had.
var servicePlacementChanged = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return hasAddresses(e.Object) },
	DeleteFunc: func(e event.DeleteEvent) bool { return hasAddresses(e.Object) },
	UpdateFunc: changed(func(before, after *corev1.Service) bool {
		return (hasAddresses(before) || hasAddresses(after)) &&
			(!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) ||
				!equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
				hasAddressesToAnnounce(before) != hasAddressesToAnnounce(after) || insistenceChanged(before, after))
	}).UpdateFunc,
}

func hasAddresses(obj client.Object) bool {
	svc, ok := obj.(*corev1.Service)
	return ok && len(svc.Status.LoadBalancer.Ingress) > 0
}

// nodePlacementChanged lets through changes of a Node that placement depends on, which
// keeps the kubelet's regular status reports out.
var nodePlacementChanged = changed(func(before, after *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
		before.Annotations[v1.AnnotationHandover] != after.Annotations[v1.AnnotationHandover] ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
		before.Spec.Unschedulable != after.Spec.Unschedulable ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses) || readinessOf(before) != readinessOf(after)
})

// nodeReadinessChanged lets through that a Node becomes Ready, or is not any more: its agent is, or is not,
// expected to report facts.
var nodeReadinessChanged = changed(func(before, after *corev1.Node) bool {
	return readinessOf(before).Status != readinessOf(after).Status
})

// readinessOf returns status and message of the condition Ready of a Node.
func readinessOf(n *corev1.Node) corev1.NodeCondition {
	ready := readyOf(n)
	return corev1.NodeCondition{Status: ready.Status, Message: ready.Message}
}

// readyOf returns the condition Ready of a Node; it has no status if there is none.
func readyOf(n *corev1.Node) corev1.NodeCondition {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return corev1.NodeCondition{}
	}
	return n.Status.Conditions[i]
}

// factsChanged lets through changes of the facts that an agent reports of its node.
var factsChanged = changed(func(before, after *v1.Announcement) bool {
	return !equality.Semantic.DeepEqual(before.Status.Interfaces, after.Status.Interfaces) ||
		!equality.Semantic.DeepEqual(before.Status.Gateways, after.Status.Gateways) ||
		hasReportedFacts(before) != hasReportedFacts(after)
})
