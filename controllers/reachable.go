package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// reachableCondition returns the condition v1.ConditionServiceReachable that a Service is to have, given its
// places and the Announcements by which other nodes ask for its addresses.
func (r *AnnouncedReconciler) reachableCondition(
	ctx context.Context, places []announced.Place, askings []v1.Announcement,
) (metav1.Condition, error) {
	var lbNodeAgents v1.LBNodeAgentList
	err := r.Client.List(ctx, &lbNodeAgents, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy)
	if err != nil {
		return metav1.Condition{}, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	asks := map[string]bool{}
	for i := range lbNodeAgents.Items {
		asks[lbNodeAgents.Items[i].Name] = lbNodeAgents.Items[i].AsksForAddresses()
	}
	return announced.ReachableCondition(
		announced.ReachVerdicts(places, askings, func(lbNodeAgent string) bool { return asks[lbNodeAgent] }),
	), nil
}

// recordReachable records that addresses of a Service are unreachable, or are reachable again. svc is
// the Service as it was before its report was written.
func (r *AnnouncedReconciler) recordReachable(svc *corev1.Service, written metav1.Condition) {
	wasUnreachable := meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionServiceReachable)
	switch isUnreachable := written.Status == metav1.ConditionFalse; {
	case isUnreachable && !wasUnreachable:
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventAddressUnreachable, "Ask", "%s", written.Message)
	case wasUnreachable && written.Status == metav1.ConditionTrue:
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressReachable, "Ask", "%s", written.Message)
	}
}

// reachabilityChanged lets through that an LBNodeAgent begins to have addresses asked for, or ends.
var reachabilityChanged = onlyChanged(func(before, after *v1.LBNodeAgent) bool {
	return before.AsksForAddresses() != after.AsksForAddresses()
})

// requestsForServicesOfLBNodeAgent maps an LBNodeAgent to the Services that have entries on its nodes.
func (r *AnnouncedReconciler) requestsForServicesOfLBNodeAgent(
	ctx context.Context, lbNodeAgent client.Object,
) []reconcile.Request {
	announcements, err := listAnnouncements(ctx, r.Client, r.Namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot find the Services of an LBNodeAgent", "lbNodeAgent", lbNodeAgent.GetName())
		return nil
	}
	var services []string
	for i := range announcements {
		if announcements[i].Spec.LBNodeAgent == lbNodeAgent.GetName() {
			services = append(services, announced.ServicesOfAnnouncement(&announcements[i])...)
		}
	}
	slices.Sort(services)
	return requestsOfKeys(slices.Compact(services))
}
