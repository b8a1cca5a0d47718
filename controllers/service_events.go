package controllers

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// recordResultEvents records events for the difference between what a Service said before a
// write and what it says now. The conditions of before show what was reported earlier, so
// each thing is reported once, by whichever manager writes it. If the process ends between
// the write and the event, only the event is missing.
func (r *ServiceReconciler) recordResultEvents(
	ctx context.Context, before, svc *corev1.Service, result *allocation.Result,
) {
	r.recordAddressEvents(before, svc, result)
	r.recordWarningAndRefusal(ctx, before, svc, result)
}

// recordAddressEvents records events for addresses that a Service gets, loses or has restored.
func (r *ServiceReconciler) recordAddressEvents(before, svc *corev1.Service, result *allocation.Result) {
	allocated := allocation.RecordOf(before).Addresses
	isSame := slices.Equal(allocated, result.Addresses)
	if hasRecord(before) && isSame && len(allocated) > 0 && !showsAddressesOf(before, result) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventAddressOverwritten, "Restore",
			"Another controller has written %s in place of %s, which is restored: let only one controller serve this Service, "+
				"by spec.loadBalancerClass",
			addressesOrNothing(allocation.ShownAddresses(before)), allocation.JoinAddresses(allocated))
	}
	if len(result.LostAddresses) > 0 {
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeWarning, v1.EventDuplicateAddress, "Withdraw",
			"%s: it is not shared, and this one gives it up",
			strings.Join(textlimit.Texts(result.LostAddresses), ", "),
		)
	}
	released := slices.DeleteFunc(
		slices.Clone(allocated), func(a netip.Addr) bool { return slices.Contains(result.Addresses, a) },
	)
	if len(released) > 0 && len(result.LostAddresses) == 0 {
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s",
			allocation.JoinAddresses(released),
		)
	}
	if !result.KeepsAllocation && !isSame {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressAssigned,
			"Assign "+allocation.JoinAddresses(result.Addresses),
			"Assigned %s from pool %s", allocation.JoinAddresses(result.Addresses), result.Group)
	}
}

// recordWarningAndRefusal records events for a new warning and for a new reason why a Service does not
// have what it asks for, and counts the reason in the metrics.
func (r *ServiceReconciler) recordWarningAndRefusal(
	ctx context.Context, before, svc *corev1.Service, result *allocation.Result,
) {
	reported := meta.FindStatusCondition(before.Status.Conditions, v1.ConditionAllocated)
	if reported == nil {
		reported = &metav1.Condition{}
	}
	if warning := textlimit.Line(result.Warning); warning != "" && !strings.Contains(reported.Message, warning) {
		r.Recorder.Eventf(svc, nil, corev1.EventTypeWarning, v1.EventConfigurationWarning, "Allocate", "%s", warning)
	}
	if result.Reason == v1.ReasonAllocated {
		return
	}
	if reported.Reason != result.Reason {
		r.countRejected(ctx, result.RequestedGroup, result.Reason)
	}
	if reported.Reason != result.Reason || reported.Message != allocatedCondition(svc, *result).Message {
		r.recordAllocationFailed(svc, result)
	}
}

// countRejected counts a refusal in the metrics. The ServiceGroup may have been deleted since the decision, and its
// metrics with it: then they go once more. The cache is asked only after the refusal was counted, because the
// ServiceGroup's own reconciler deletes its metrics as soon as the cache does not have it any more.
func (r *ServiceReconciler) countRejected(ctx context.Context, pool, reason string) {
	r.Metrics.CountRejected(pool, reason)
	if pool == "" {
		return
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: pool}, &v1.ServiceGroup{})
	if apierrors.IsNotFound(err) {
		r.Metrics.DeletePool(pool)
	}
}

// recordAllocationFailed records an event for a Service that waits.
func (r *ServiceReconciler) recordAllocationFailed(svc *corev1.Service, result *allocation.Result) {
	r.Recorder.Eventf(
		svc, nil, corev1.EventTypeWarning, v1.EventAllocationFailed, "Allocate "+result.Reason, "%s: %s", result.Reason,
		result.Message,
	)
}

// remind records the event of a Service that waits once more, if it is due, and returns in how long
// the next one is; 0 if the Service does not wait.
func (r *ServiceReconciler) remind(svc *corev1.Service, result *allocation.Result, now time.Time) time.Duration {
	var refusal string
	if result.Reason != v1.ReasonAllocated {
		refusal = result.Reason + ": " + result.Message
	}
	isDue, wait := r.reminders.schedule(client.ObjectKeyFromObject(svc), refusal, now)
	if isDue {
		r.recordAllocationFailed(svc, result)
	}
	return wait
}

// recordReleasesOfDeleted records an event for what deleted Services of a name had.
func (r *ServiceReconciler) recordReleasesOfDeleted(key client.ObjectKey) {
	for _, released := range r.index.takeReleased(key) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: released.uid}}
		r.Recorder.Eventf(
			svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s",
			allocation.JoinAddresses(released.addresses),
		)
	}
}

func addressesOrNothing(addrs []netip.Addr) string {
	if len(addrs) == 0 {
		return "nothing"
	}
	return allocation.JoinAddresses(addrs)
}
