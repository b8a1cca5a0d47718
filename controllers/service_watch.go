package controllers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/internal/revision"
)

// listBeforeAllocating lists all Services from the API server itself before the manager
// allocates to the first one: the cache of a new leader may not have seen yet what the
// last leader wrote. Reconcile looks up again what the cache does not show at all.
func (r *ServiceReconciler) listBeforeAllocating() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		err := wait.PollUntilContextTimeout(ctx, listRetry, listTimeout, true, func(ctx context.Context) (bool, error) {
			err := r.listUncached(ctx, q)
			if err != nil {
				log.FromContext(ctx).Error(err, "Cannot list Services yet")
			}
			return err == nil, nil
		})
		if err != nil {
			return fmt.Errorf("list Services: %w", err)
		}
		return nil
	})
}

func (r *ServiceReconciler) listUncached(ctx context.Context, q queue) error {
	const pageSize = 50 // a Service can have more than a megabyte
	for next := ""; ; {
		var page corev1.ServiceList
		if err := r.apiReader.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			r.index.observeUncached(&page.Items[i])
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&page.Items[i])})
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// serviceHandler returns what, when a Service changes, keeps the index up to date and enqueues the other Services that
// the change concerns.
func (r *ServiceReconciler) serviceHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if svc, ok := e.Object.(*corev1.Service); ok {
				r.enqueueServicesWaitingForFreed(ctx, q, client.ObjectKeyFromObject(svc), r.index.observe(svc))
				r.enqueueServicesWith(q, svc, allocation.AddressesAllocatedOrShown(svc))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if svc, ok := e.Object.(*corev1.Service); ok {
				r.handleServiceDeletion(ctx, q, svc)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*corev1.Service)
			after, ok2 := e.ObjectNew.(*corev1.Service)
			if ok1 && ok2 {
				r.handleServiceUpdate(ctx, q, before, after)
			}
		},
	}
}

// handleServiceDeletion removes a Service from the index, has external systems release what the Service had, and
// enqueues the other Services that this concerns.
func (r *ServiceReconciler) handleServiceDeletion(ctx context.Context, q queue, svc *corev1.Service) {
	key, had := client.ObjectKeyFromObject(svc), addressesToFree(svc)
	r.enqueueServicesWaitingForFreed(ctx, q, key, r.index.remove(key, svc.UID).without(had.addresses))
	if len(had.addresses) > 0 {
		r.IPAM.releaseRecorded(allocation.RecordOf(svc), had.addresses)
		r.enqueueServicesWaitingFor(ctx, q, key, had)
		r.enqueueServicesWith(q, svc, had.addresses)
	}
}

// handleServiceUpdate brings the index up to date with a change of a Service, has external systems release what the
// Service does not have any more, and enqueues the other Services that the change concerns.
func (r *ServiceReconciler) handleServiceUpdate(ctx context.Context, q queue, before, after *corev1.Service) {
	key := client.ObjectKeyFromObject(after)
	oldAddrs, newAddrs := allocation.AddressesAllocatedOrShown(before), allocation.AddressesAllocatedOrShown(after)
	if before.UID != after.UID {
		r.enqueueServicesWaitingForFreed(ctx, q, key, r.index.remove(key, before.UID).without(oldAddrs))
	}
	if revision.IsOlder(after.ResourceVersion, before.ResourceVersion) {
		r.index.forgetVersion(key)
	}
	r.enqueueServicesWaitingForFreed(ctx, q, key, r.index.observe(after))
	isSameSharing := sharesAlike(before, after)
	if slices.Equal(oldAddrs, newAddrs) && isSameSharing {
		return
	}
	released := slices.DeleteFunc(slices.Clone(oldAddrs), func(a netip.Addr) bool { return slices.Contains(newAddrs, a) })
	r.IPAM.releaseRecorded(allocation.RecordOf(before), released)
	if len(released) > 0 || !isSameSharing {
		r.enqueueServicesWaitingFor(ctx, q, key, addressesToFree(before))
	}
	r.enqueueServicesWith(q, after, append(oldAddrs, newAddrs...))
}

// sharesAlike reports whether two versions of a Service are the same for those that share
// its addresses.
func sharesAlike(before, after *corev1.Service) bool {
	if before.Annotations[v1.AnnotationAllowSharedIP] != after.Annotations[v1.AnnotationAllowSharedIP] {
		return false
	}
	oldRecord, newRecord := allocation.RecordOf(before), allocation.RecordOf(after)
	return oldRecord.Key == newRecord.Key && slices.Equal(oldRecord.Addresses, newRecord.Addresses) &&
		equality.Semantic.DeepEqual(before.Spec.Ports, after.Spec.Ports) && before.Spec.Type == after.Spec.Type &&
		allocation.HasPolicyLocal(before) == allocation.HasPolicyLocal(after)
}

// addressesToFree are the addresses that a Service has, and that others can get once the Service does not have them.
func addressesToFree(svc *corev1.Service) freedAddresses {
	return freedAddresses{
		cmp.Or(allocation.RecordOf(svc).Group, anyGroup), allocation.AddressesAllocatedOrShown(svc),
	}
}

// enqueueServicesWaitingFor enqueues the Services, other than the one of a key, that wait for what that one
// may have released.
func (r *ServiceReconciler) enqueueServicesWaitingFor(
	ctx context.Context, q queue, key client.ObjectKey, freed freedAddresses,
) {
	var families []allocation.Family
	for _, a := range freed.addresses {
		families = append(families, allocation.FamilyOf(a))
	}
	for _, group := range append([]string{freed.group}, r.otherGroupsWith(ctx, freed)...) {
		enqueueOthers(q, key, r.index.servicesWaitingFor(group, families...))
	}
}

// enqueueServicesWaitingForFreed is enqueueServicesWaitingFor, if there are addresses. The index returns what it does
// not count as in use any more, and what no event of a Service may tell: such as addresses that were never written.
func (r *ServiceReconciler) enqueueServicesWaitingForFreed(
	ctx context.Context, q queue, key client.ObjectKey, freed freedAddresses,
) {
	if len(freed.addresses) > 0 {
		r.enqueueServicesWaitingFor(ctx, q, key, freed)
	}
}

// wakeServicesWaitingForFreed is enqueueServicesWaitingForFreed while a Service is reconciled.
func (r *ServiceReconciler) wakeServicesWaitingForFreed(
	ctx context.Context, key client.ObjectKey, freed freedAddresses,
) {
	if q := r.IPAM.serviceQueue.Load(); q != nil {
		r.enqueueServicesWaitingForFreed(ctx, *q, key, freed)
	}
}

// otherGroupsWith lists the groups that contain one of the addresses and of which Services wait for one, apart from
// the group from which the addresses are: that group may have been deleted, and made again by another name. Only of
// groups that Services wait for are the ranges looked at.
func (r *ServiceReconciler) otherGroupsWith(ctx context.Context, freed freedAddresses) []string {
	if freed.group == anyGroup || len(freed.addresses) == 0 {
		return nil
	}
	awaited := r.index.groupsWaitedFor()
	delete(awaited, freed.group)
	delete(awaited, anyGroup)
	if len(awaited) == 0 {
		return nil
	}
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Cannot list ServiceGroups")
		return nil
	}
	for i := range groups.Items {
		if sg := &groups.Items[i]; sg.Name == freed.group && isReadyWithAll(sg, freed.addresses) {
			return nil
		}
	}
	var names []string
	for i := range groups.Items {
		if sg := &groups.Items[i]; awaited[sg.Name] && countContained(sg, freed.addresses) > 0 {
			names = append(names, sg.Name)
		}
	}
	return names
}

// isReadyWithAll reports whether a ServiceGroup is ready and contains all addresses. Then no other one with pools of
// its own is ready and contains any of them.
func isReadyWithAll(sg *v1.ServiceGroup, addrs []netip.Addr) bool {
	return meta.IsStatusConditionTrue(sg.Status.Conditions, v1.ConditionReady) && countContained(sg, addrs) == len(addrs)
}

// countContained counts the addresses that are in ranges of a ServiceGroup, whether or not the ServiceGroup is ready.
func countContained(sg *v1.ServiceGroup, addrs []netip.Addr) int {
	group, _, _ := allocation.ParseGroup(sg)
	count := 0
	for _, a := range addrs {
		if _, isInGroup := group.RangeContaining(a); isInGroup {
			count++
		}
	}
	return count
}

// enqueueServicesWith enqueues the other Services that have one of the addresses in use.
func (r *ServiceReconciler) enqueueServicesWith(q queue, svc *corev1.Service, addrs []netip.Addr) {
	enqueueOthers(q, client.ObjectKeyFromObject(svc), r.index.servicesWith(addrs))
}

// enqueueOthers enqueues all keys but one.
func enqueueOthers(q queue, except client.ObjectKey, keys []client.ObjectKey) {
	for _, key := range keys {
		if key != except {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
}

// allocationChanged lets through changes of a Service that its allocation depends on or
// consists of.
var allocationChanged = changed(func(before, after *corev1.Service) bool {
	return before.Generation != after.Generation || before.UID != after.UID ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) ||
		isConditionChanged(before, after, v1.ConditionAllocated) ||
		isConditionChanged(before, after, v1.ConditionAllocationRecord) ||
		!maps.Equal(annotationsExceptReport(before), annotationsExceptReport(after))
})

func isConditionChanged(before, after *corev1.Service, conditionType string) bool {
	return !equality.Semantic.DeepEqual(
		meta.FindStatusCondition(before.Status.Conditions, conditionType),
		meta.FindStatusCondition(after.Status.Conditions, conditionType))
}

// annotationsExceptReport returns PureLB's annotations of a Service, without those that say
// what is announced.
func annotationsExceptReport(svc *corev1.Service) map[string]string {
	annotations := map[string]string{}
	for name, value := range svc.Annotations {
		if strings.HasPrefix(name, "purelb.io/") && !slices.Contains(announced.AnnotationNames, name) {
			annotations[name] = value
		}
	}
	return annotations
}

// requestsForServicesOfGroup maps a ServiceGroup to the Services that a change of it concerns: those
// that wait, and those that ask for the group or have addresses of it.
func (r *ServiceReconciler) requestsForServicesOfGroup(ctx context.Context, group client.Object) []reconcile.Request {
	return requestsForOurServicesWhere(ctx, r.Client, r.IsDefaultLoadBalancer, func(svc *corev1.Service) bool {
		return isWaitingForAddresses(svc) || requestedOrDefaultGroup(svc) == group.GetName() ||
			allocatedOrDefaultGroup(svc) == group.GetName()
	})
}

// requestsForServicesThatDependOnNodes maps a change of what nodes report to the Services that wait,
// and to those that get an address of every range that some node can announce.
func (r *ServiceReconciler) requestsForServicesThatDependOnNodes(
	ctx context.Context, _ client.Object,
) []reconcile.Request {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Cannot list ServiceGroups")
		return nil
	}
	isMultiPool := map[string]bool{}
	for i := range groups.Items {
		local := groups.Items[i].Spec.Local
		isMultiPool[groups.Items[i].Name] = local != nil && local.MultiPool
	}
	return requestsForOurServicesWhere(ctx, r.Client, r.IsDefaultLoadBalancer, func(svc *corev1.Service) bool {
		return isWaitingForAddresses(svc) || len(missingFamilies(svc)) > 0 ||
			svc.Annotations[v1.AnnotationMultiPool] == "true" ||
			isMultiPool[requestedOrDefaultGroup(svc)] || isMultiPool[allocatedOrDefaultGroup(svc)]
	})
}

// requestsForOurServicesWhere lists the Services that PureLB serves and for which isConcerned is true.
func requestsForOurServicesWhere(
	ctx context.Context, c client.Reader, isDefaultLoadBalancer bool, isConcerned func(*corev1.Service) bool,
) []reconcile.Request {
	services, err := listServices(ctx, c)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue Services")
		return nil
	}
	return requestsOf(services, func(svc *corev1.Service) bool {
		return IsOurs(svc, isDefaultLoadBalancer) && isConcerned(svc)
	})
}

// nodeAddressesChanged lets through changes of the addresses of a Node.
var nodeAddressesChanged = changed(func(before, after *corev1.Node) bool {
	return !slices.Equal(before.Status.Addresses, after.Status.Addresses)
})
