package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// advertisedCondition returns the condition v1.ConditionAdvertised that a Service is to have, given its
// ServiceGroup, which may be nil, and its places.
func (r *AnnouncedReconciler) advertisedCondition(
	ctx context.Context, group *v1.ServiceGroup, places []announced.Place,
) (metav1.Condition, error) {
	if !slices.ContainsFunc(places, func(p announced.Place) bool { return p.Type == v1.AnnounceVirtual }) {
		return metav1.Condition{}, nil
	}
	routings, err := listRoutings(ctx, r.Client, r.Namespace)
	if err != nil {
		return metav1.Condition{}, err
	}
	if routings, err = withDeadSpeakersDown(ctx, r.Client, r.Namespace, routings); err != nil {
		return metav1.Condition{}, err
	}
	return announced.AdvertisedCondition(places, routings, group), nil
}

// recordAdvertised records that no route to an address of a Service is known to have been sent, and why, or that one is
// to each address again. That no node announces the address has an event of its own. svc is the Service as it was
// before its report was written.
func (r *AnnouncedReconciler) recordAdvertised(svc *corev1.Service, written metav1.Condition) {
	before := ptr.Deref(meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAdvertised), metav1.Condition{})
	switch {
	case written.Status == metav1.ConditionFalse && written.Reason != v1.ReasonNotAnnounced &&
		(before.Status != metav1.ConditionFalse || before.Reason != written.Reason):
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, written.Reason, "Advertise", "%s",
			textlimit.Shorten(written.Message, maxNote))
	case written.Status == metav1.ConditionTrue && before.Status == metav1.ConditionFalse:
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, written.Reason, "Advertise", "%s",
			textlimit.Shorten(written.Message, maxNote))
	}
}

// requestsForServicesWithVirtualOn maps a Node, or its NodeRouting, which has its name, to the Services that have
// Virtual addresses on the node.
func (r *AnnouncedReconciler) requestsForServicesWithVirtualOn(
	ctx context.Context, node client.Object,
) []reconcile.Request {
	services, err := servicesWithVirtualOn(ctx, r.Client, r.Namespace, node.GetName())
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot find the Services of a node", "node", node.GetName())
	}
	return requestsOfKeys(services)
}

// nodeUnknownChanged lets through that condition Ready of a Node becomes Unknown, or is known again.
// A NodeRouting comes after its Node, and goes with it.
var nodeUnknownChanged = onlyChanged(func(before, after *corev1.Node) bool {
	isUnknown := func(n *corev1.Node) bool { return readinessOf(n).Status == corev1.ConditionUnknown }
	return isUnknown(before) != isUnknown(after)
})

// advertisingChanged lets through changes of a NodeRouting for which the condition
// v1.ConditionAdvertised of a Service may differ.
var advertisingChanged = changed(announced.AdvertisingChanged)

// servicesWithVirtualOn lists the Services, as namespace/name, that have Virtual addresses on a node; sorted.
func servicesWithVirtualOn(ctx context.Context, c client.Reader, namespace, node string) ([]string, error) {
	announcements, err := listAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	commons, err := listCommons(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	return announced.ServicesWithVirtualAddressesOn(node, announcements, commons), nil
}

// groupOf returns the ServiceGroup that the addresses of a Service are of, or nil if there is none.
func (r *AnnouncedReconciler) groupOf(ctx context.Context, svc *corev1.Service) (*v1.ServiceGroup, error) {
	name := allocation.RecordOf(svc).Group
	if name == "" {
		return nil, nil
	}
	sg := &v1.ServiceGroup{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, sg)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up ServiceGroup %s: %w", name, err)
	}
	return sg, nil
}
