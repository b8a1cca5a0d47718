package controllers

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// allocatorAnnotations is what the allocator writes on Services.
var allocatorAnnotations = []string{v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationAllocatedKey, v1.AnnotationPoolType}

// assign makes the Service have, and say, what was decided.
func (r *ServiceReconciler) assign(ctx context.Context, svc *corev1.Service, result allocation.Result) error {
	before := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated).DeepCopy()
	had := ingressOf(svc)
	if err := r.write(ctx, svc, result.Addresses, conditionOf(svc, result), brandOf(svc, result)); err != nil {
		return err
	}
	r.report(svc, result, before, had)
	return nil
}

// conditionOf is what the Service is to say of its allocation.
func conditionOf(svc *corev1.Service, result allocation.Result) *metav1.Condition {
	condition := &metav1.Condition{
		Type: v1.ConditionAllocated, Status: metav1.ConditionTrue, ObservedGeneration: svc.Generation,
		Reason: result.Reason, Message: result.Message,
	}
	if result.Reason != v1.ReasonAllocated {
		condition.Status = metav1.ConditionFalse
	}
	if result.Warning != "" {
		condition.Message += warningSeparator + result.Warning
	}
	condition.Message = shorten(condition.Message, 32768)
	return condition
}

const warningSeparator = "; "

// report tells the Service's author what has changed: each thing once, as the
// condition before shows what was told already. had is the addresses before.
func (r *ServiceReconciler) report(svc *corev1.Service, result allocation.Result, before *metav1.Condition, had []netip.Addr) {
	if before == nil {
		before = &metav1.Condition{}
	}
	now := conditionOf(svc, result)
	if len(result.Lost) > 0 {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventDuplicateAddress, "Withdraw", "%s: it is not shared, and this one gives it up", strings.Join(result.Lost, ", "))
	}
	gone := slices.DeleteFunc(slices.Clone(had), func(a netip.Addr) bool { return slices.Contains(result.Addresses, a) })
	if len(gone) > 0 && len(result.Lost) == 0 {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s", allocation.Join(gone))
	}
	if result.Group != "" && !slices.Equal(result.Addresses, had) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressAssigned, "Assign "+allocation.Join(result.Addresses),
			"Assigned %s from pool %s", allocation.Join(result.Addresses), result.Group)
	}
	if result.Warning != "" && !strings.Contains(before.Message, result.Warning) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventConfigurationWarning, "Allocate", "%s", result.Warning)
	}
	if result.Reason == v1.ReasonAllocated {
		return
	}
	if before.Reason != result.Reason {
		pool := result.Asked
		if result.Reason == v1.ReasonNoSuchGroup {
			pool = "" // whatever somebody wrote
		}
		r.Metrics.Rejected(pool, result.Reason)
	}
	if before.Reason != result.Reason || before.Message != now.Message {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventAllocationFailed, "Allocate "+result.Reason, "%s: %s", result.Reason, result.Message)
	}
}

// release takes addresses, condition and annotations back from a Service that
// is no longer ours.
func (r *ServiceReconciler) release(ctx context.Context, svc *corev1.Service) error {
	condition := meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated)
	what := allocation.Join(ingressOf(svc))
	if condition != nil && condition.Status == metav1.ConditionTrue {
		// The API server clears the addresses itself when the type changes.
		what, _, _ = strings.Cut(condition.Message, warningSeparator)
	}
	if err := r.write(ctx, svc, nil, nil, nil); err != nil {
		return err
	}
	if what != "" {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s", what)
	}
	return nil
}

// brandOf is the annotations that the Service is to have. One that is left with what
// it has stays as it is, but for the key: others may have come to share its
// addresses.
func brandOf(svc *corev1.Service, result allocation.Result) map[string]string {
	wanted := map[string]string{}
	switch {
	case result.Group != "":
		wanted[v1.AnnotationAllocatedBy] = v1.Brand
		wanted[v1.AnnotationAllocatedFrom] = result.Group
		wanted[v1.AnnotationPoolType] = string(result.Type)
	case isBranded(svc):
		for _, name := range []string{v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationPoolType} {
			if value, ok := svc.Annotations[name]; ok {
				wanted[name] = value
			}
		}
	default:
		return nil
	}
	if result.Key != "" {
		wanted[v1.AnnotationAllocatedKey] = result.Key
	}
	return wanted
}

// write makes addresses, condition and annotations the Service's, if it is still
// as read: all at once, so that whoever has an address of ours is branded, and
// none says of a new group what is of the old one.
func (r *ServiceReconciler) write(ctx context.Context, svc *corev1.Service, addrs []netip.Addr, condition *metav1.Condition, annotations map[string]string) error {
	conditions := slices.Clone(svc.Status.Conditions)
	changed := !hasAnnotations(svc.Annotations, annotations, allocatorAnnotations)
	if condition == nil {
		changed = meta.RemoveStatusCondition(&conditions, v1.ConditionAllocated) || changed
	} else {
		changed = meta.SetStatusCondition(&conditions, *condition) || changed
	}
	if !changed && slices.Equal(addrs, ingressOf(svc)) {
		return nil
	}
	status := corev1ac.ServiceStatus()
	if len(addrs) > 0 {
		lb := corev1ac.LoadBalancerStatus()
		for _, a := range addrs {
			lb.WithIngress(corev1ac.LoadBalancerIngress().WithIP(a.String()).WithIPMode(corev1.LoadBalancerIPModeVIP))
		}
		status.WithLoadBalancer(lb)
	}
	if condition != nil {
		status.WithConditions(conditionConfiguration(meta.FindStatusCondition(conditions, v1.ConditionAllocated)))
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithResourceVersion(svc.ResourceVersion).WithStatus(status)
	if err := applyServiceStatus(ctx, r.Client, ac, ownerAllocator, annotations, allocatorAnnotations); err != nil {
		return err
	}
	svc.ResourceVersion, svc.Annotations = ptr.Deref(ac.ResourceVersion, svc.ResourceVersion), ac.Annotations
	svc.Status.Conditions = conditions
	svc.Status.LoadBalancer.Ingress = nil
	for _, a := range addrs {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	return nil
}

func conditionConfiguration(c *metav1.Condition) *metav1ac.ConditionApplyConfiguration {
	return metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithObservedGeneration(c.ObservedGeneration).
		WithReason(c.Reason).WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime)
}
