package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// overrideLocalPolicy sets externalTrafficPolicy Local of a Service to Cluster where Local
// would lose traffic. The manager writes nothing else of a Service's spec, ever. svc is a
// copy of the cache's object, and afterwards what was written. group is as for policyLocalFor.
//
// The annotation local-override says for which spec this was done. It is written together
// with the policy, and each event goes with a change of it: so each is recorded once, by
// whichever manager makes the change.
func (r *AnnouncedReconciler) overrideLocalPolicy(
	ctx context.Context, svc *corev1.Service, group *v1.ServiceGroup, places []announced.Place,
) error {
	o := announced.DecideOverride(svc, IsOurs(svc, r.IsDefaultLoadBalancer), policyLocalFor(svc, group), places)
	if o.AnnotationValue == svc.Annotations[v1.AnnotationLocalOverride] && !o.SetsCluster {
		return nil
	}
	patch := servicePatch{}
	patch.Metadata.Annotations = map[string]*string{v1.AnnotationLocalOverride: nil}
	if o.AnnotationValue != "" {
		patch.Metadata.Annotations[v1.AnnotationLocalOverride] = &o.AnnotationValue
	}
	if o.SetsCluster {
		patch.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	written, err := patch.write(ctx, r.Client, svc, ownerLocalPolicy)
	if err != nil {
		return fmt.Errorf("set externalTrafficPolicy of Service: %w", err)
	}
	*svc = *written
	if o.EventReason != "" {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, o.EventReason, "Override", "%s", o.Message)
	}
	return nil
}

// policyLocalFor returns what is to become of externalTrafficPolicy Local of a Service, as
// allocation.Catalog.PolicyLocalFor does, without parsing every ServiceGroup. group, which may be nil, is that
// of the Service's addresses.
func policyLocalFor(svc *corev1.Service, group *v1.ServiceGroup) v1.PolicyLocal {
	if group == nil {
		return allocation.DecidePolicyLocal(svc, "")
	}
	return allocation.DecidePolicyLocal(svc, allocation.PolicyLocalOf(group))
}

// requestsForServicesOfGroup maps a ServiceGroup to the Services that have addresses of it.
func (r *AnnouncedReconciler) requestsForServicesOfGroup(ctx context.Context, group client.Object) []reconcile.Request {
	return requestsForOurServicesWhere(ctx, r.Client, r.IsDefaultLoadBalancer, func(svc *corev1.Service) bool {
		return allocation.RecordOf(svc).Group == group.GetName()
	})
}

// groupReportChanged lets through changes of what a ServiceGroup says of policy Local, or of who
// advertises its addresses.
var groupReportChanged = changed(func(before, after *v1.ServiceGroup) bool {
	return allocation.PolicyLocalOf(before) != allocation.PolicyLocalOf(after) ||
		before.Spec.AdvertisedBy != after.Spec.AdvertisedBy ||
		meta.IsStatusConditionTrue(before.Status.Conditions, v1.ConditionSubnetNotFound) !=
			meta.IsStatusConditionTrue(after.Status.Conditions, v1.ConditionSubnetNotFound)
})
