package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/condition"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// allocatorAnnotations are the annotations that the allocator writes on Services.
var allocatorAnnotations = []string{
	v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationAllocatedKey, v1.AnnotationPoolType,
}

// applyResult writes what the allocator has decided for a Service, then the events. If
// another controller keeps overwriting the Service's addresses, it writes nothing. It returns
// how long to wait before the next attempt, or before a Service that waits says so again.
func (r *ServiceReconciler) applyResult(
	ctx context.Context, svc *corev1.Service, result allocation.Result,
) (time.Duration, error) {
	now := time.Now() //nolint:forbidigo // what depends on it takes the time as an argument, and is tested with that
	if !showsAddressesOf(svc, &result) && isSettled(svc, &result) {
		if wait := r.restores.allowRestore(client.ObjectKeyFromObject(svc), now); wait > 0 {
			return wait, nil
		}
	}
	before := svc.DeepCopy()
	if err := r.write(ctx, svc, &result, allocatedCondition(svc, result)); err != nil {
		return 0, err
	}
	r.recordResultEvents(ctx, before, svc, &result)
	return r.remind(svc, &result, now), nil
}

// isSettled reports whether a result leaves a Service with what it was allocated. If the
// Service has no record, its annotation says that it may have had one: the worst that a
// wrong annotation does is to delay the write.
func isSettled(svc *corev1.Service, result *allocation.Result) bool {
	if hasRecord(svc) {
		return slices.Equal(allocation.RecordOf(svc).Addresses, result.Addresses)
	}
	return svc.Annotations[v1.AnnotationAllocatedBy] == v1.Brand
}

// allocatedCondition returns the condition v1.ConditionAllocated that a Service is to have.
func allocatedCondition(svc *corev1.Service, result allocation.Result) *metav1.Condition {
	message := result.Message
	if result.Warning != "" {
		message += "; " + result.Warning
	}
	return &metav1.Condition{
		Type: v1.ConditionAllocated, Status: condition.StatusOf(result.Reason == v1.ReasonAllocated),
		ObservedGeneration: svc.Generation, Reason: result.Reason, Message: textlimit.Shorten(message, maxServiceMessage),
	}
}

// allocationRecordCondition returns the condition v1.ConditionAllocationRecord that a Service is to have.
func allocationRecordCondition(svc *corev1.Service, record allocation.Record) *metav1.Condition {
	return &metav1.Condition{
		Type: v1.ConditionAllocationRecord, Status: condition.StatusOf(len(record.Addresses) > 0),
		ObservedGeneration: svc.Generation,
		Reason:             v1.ReasonRecorded, Message: record.String(),
	}
}

// annotationsOf returns the allocator's annotations that go with a record.
func annotationsOf(record allocation.Record) map[string]string {
	if len(record.Addresses) == 0 {
		return nil
	}
	wanted := map[string]string{
		v1.AnnotationAllocatedBy: v1.Brand, v1.AnnotationAllocatedFrom: record.Group,
		v1.AnnotationPoolType: string(record.Type),
	}
	if record.Key != "" {
		wanted[v1.AnnotationAllocatedKey] = record.Key
	}
	return wanted
}

// release takes addresses, conditions and annotations from a Service that PureLB no longer
// serves. What another controller has written there stays.
func (r *ServiceReconciler) release(ctx context.Context, svc *corev1.Service) error {
	// Of a Service whose type changes, the API server clears the addresses itself.
	released := allocation.RecordOf(svc)
	if err := r.write(ctx, svc, &allocation.Result{}, nil); err != nil {
		return err
	}
	if len(released.Addresses) > 0 {
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s from pool %s",
			allocation.JoinAddresses(released.Addresses), released.Group,
		)
	}
	return nil
}

// write writes the addresses that a Service is to show, its record, the condition and the annotations, in one
// apply, after a patch that takes addresses away if that is needed; if the Service is still as it was read.
// Without a condition, the record goes, too. Afterwards svc is what is stored.
func (r *ServiceReconciler) write(
	ctx context.Context, svc *corev1.Service, result *allocation.Result, condition *metav1.Condition,
) error {
	record := result.Record()
	annotations := annotationsOf(record)
	if len(record.Addresses) == 0 && !showsAddressesOf(svc, result) {
		// The addresses go before the record does, because only the record says that they
		// have to go. An apply would leave those that another field manager has written, too.
		if err := r.showOnly(ctx, svc, result.AddressesToShow(svc)); err != nil {
			return err
		}
	}
	conditions := slices.Clone(svc.Status.Conditions)
	isChanged := !hasExactAnnotations(svc.Annotations, annotations, allocatorAnnotations) || !showsAddressesOf(svc, result)
	status := corev1ac.ServiceStatus()
	if condition == nil {
		isChanged = meta.RemoveStatusCondition(&conditions, v1.ConditionAllocated) || isChanged
		isChanged = meta.RemoveStatusCondition(&conditions, v1.ConditionAllocationRecord) || isChanged
	} else {
		for _, c := range []*metav1.Condition{condition, allocationRecordCondition(svc, record)} {
			isChanged = meta.SetStatusCondition(&conditions, *c) || isChanged
			status.WithConditions(conditionApplyConfiguration(meta.FindStatusCondition(conditions, c.Type)))
		}
	}
	if !isChanged {
		return nil
	}
	if len(record.Addresses) > 0 {
		lb := corev1ac.LoadBalancerStatus()
		for _, a := range record.Addresses {
			lb.WithIngress(corev1ac.LoadBalancerIngress().WithIP(a.String()).WithIPMode(corev1.LoadBalancerIPModeVIP))
		}
		status.WithLoadBalancer(lb)
	}
	ac := corev1ac.Service(svc.Name, svc.Namespace).WithUID(svc.UID).WithResourceVersion(svc.ResourceVersion).WithStatus(
		status,
	)
	if err := applyServiceStatus(ctx, r.Client, ac, ownerAllocator, annotations, allocatorAnnotations); err != nil {
		return err
	}
	svc.ResourceVersion, svc.Annotations, svc.Status = ptr.Deref(ac.ResourceVersion, svc.ResourceVersion), ac.Annotations,
		statusOf(ac.Status)
	if condition == nil {
		return r.removeAllocatorConditions(ctx, svc)
	}
	return nil
}

// removeAllocatorConditions takes the allocator's conditions from a Service if an apply without them has left
// them, because another field manager has written them, too: what is in a record counts as in use.
func (r *ServiceReconciler) removeAllocatorConditions(ctx context.Context, svc *corev1.Service) error {
	if !hasRecord(svc) && meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocated) == nil {
		return nil
	}
	err := r.patchStatus(ctx, svc, func(status *corev1.ServiceStatus) {
		meta.RemoveStatusCondition(&status.Conditions, v1.ConditionAllocated)
		meta.RemoveStatusCondition(&status.Conditions, v1.ConditionAllocationRecord)
	})
	if err != nil {
		return fmt.Errorf("remove conditions from the status of Service: %w", err)
	}
	return nil
}

// showOnly makes a Service show no addresses but addrs, whoever has written the others, if
// the Service is still as it was read.
func (r *ServiceReconciler) showOnly(ctx context.Context, svc *corev1.Service, addrs []netip.Addr) error {
	err := r.patchStatus(ctx, svc, func(status *corev1.ServiceStatus) {
		status.LoadBalancer.Ingress = slices.DeleteFunc(slices.Clone(status.LoadBalancer.Ingress),
			func(in corev1.LoadBalancerIngress) bool {
				a, err := netip.ParseAddr(in.IP)
				return err == nil && !slices.Contains(addrs, a)
			})
	})
	if err != nil {
		return fmt.Errorf("remove addresses from the status of Service: %w", err)
	}
	return nil
}

// patchStatus changes the status of a Service, whoever has written what is there, if the Service is still
// as it was read. Afterwards svc is what is stored. The patch replaces whole lists, of which the cache has
// not everything (SlimService), so the entries that stay are those of the API server.
func (r *ServiceReconciler) patchStatus(
	ctx context.Context, svc *corev1.Service, change func(*corev1.ServiceStatus),
) error {
	stored := &corev1.Service{}
	if err := r.apiReader.Get(ctx, client.ObjectKeyFromObject(svc), stored); err != nil {
		return fmt.Errorf("read Service: %w", err)
	}
	stored.ResourceVersion = svc.ResourceVersion // the API server refuses the patch of another version
	patch := client.MergeFromWithOptions(stored.DeepCopy(), client.MergeFromWithOptimisticLock{})
	change(&stored.Status)
	if err := r.Client.Status().Patch(ctx, stored, patch, client.FieldOwner(ownerAllocator)); err != nil {
		return err
	}
	*svc = *stored
	return nil
}

// showsAddressesOf reports whether a Service shows the addresses that it is to show: those
// allocated to it exactly as the manager writes them, others as their writer likes.
func showsAddressesOf(svc *corev1.Service, result *allocation.Result) bool {
	entries := svc.Status.LoadBalancer.Ingress
	if !slices.Equal(allocation.ShownAddresses(svc), result.AddressesToShow(svc)) {
		return false
	}
	return len(result.Addresses) == 0 ||
		len(entries) == len(result.Addresses) && !slices.ContainsFunc(entries, func(in corev1.LoadBalancerIngress) bool {
			return in.Hostname != "" || ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP) != corev1.LoadBalancerIPModeVIP
		})
}

// statusOf returns the status in the API server's answer to an apply.
func statusOf(ac *corev1ac.ServiceStatusApplyConfiguration) corev1.ServiceStatus {
	var status corev1.ServiceStatus
	if ac == nil {
		return status
	}
	if ac.LoadBalancer != nil {
		for _, in := range ac.LoadBalancer.Ingress {
			status.LoadBalancer.Ingress = append(status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
				IP: ptr.Deref(in.IP, ""), Hostname: ptr.Deref(in.Hostname, ""), IPMode: in.IPMode,
			})
		}
	}
	for _, c := range ac.Conditions {
		status.Conditions = append(status.Conditions, metav1.Condition{
			Type: ptr.Deref(c.Type, ""), Status: ptr.Deref(c.Status, ""), ObservedGeneration: ptr.Deref(c.ObservedGeneration, 0),
			LastTransitionTime: ptr.Deref(c.LastTransitionTime, metav1.Time{}), Reason: ptr.Deref(c.Reason, ""),
			Message: ptr.Deref(c.Message, ""),
		})
	}
	return status
}
