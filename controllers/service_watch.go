package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// listPatience is for how long a new leader tries to list Services.
const listPatience = 30 * time.Second

// listFirst reads all Services from the API server itself before the first one
// is served: the cache of a new leader may not have seen yet what the last one
// wrote. What the cache does not show at all is looked up again.
func (r *ServiceReconciler) listFirst() source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		err := wait.PollUntilContextTimeout(ctx, time.Second, listPatience, true, func(ctx context.Context) (bool, error) {
			err := r.listPages(ctx, q)
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

func (r *ServiceReconciler) listPages(ctx context.Context, q queue) error {
	const page = 500
	for next := ""; ; {
		var list corev1.ServiceList
		if err := r.reader.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return err
		}
		for i := range list.Items {
			r.ledger.see(&list.Items[i], true)
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// observe keeps the ledger up to date and enqueues those that a change of a
// Service concerns, apart from that Service.
func (r *ServiceReconciler) observe() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if svc, ok := e.Object.(*corev1.Service); ok {
				r.ledger.see(svc, false)
				r.wakeHolders(q, svc, ingressOf(svc))
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if svc, ok := e.Object.(*corev1.Service); ok {
				r.ledger.drop(client.ObjectKeyFromObject(svc), svc.UID)
				if addrs := ingressOf(svc); len(addrs) > 0 {
					if isBranded(svc) && isOurs(svc, r.IsDefault) {
						r.Recorder.Eventf(svc, nil, corev1.EventTypeNormal, v1.EventAddressReleased, "Release", "Released %s", allocation.Join(addrs))
					}
					r.wakePending(q, svc)
					r.wakeHolders(q, svc, addrs)
				}
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*corev1.Service)
			after, ok2 := e.ObjectNew.(*corev1.Service)
			if !ok1 || !ok2 {
				return
			}
			if before.UID != after.UID {
				r.ledger.drop(client.ObjectKeyFromObject(before), before.UID)
			}
			r.ledger.see(after, false)
			had, has := ingressOf(before), ingressOf(after)
			if slices.Equal(had, has) && sharesAlike(before, after) {
				return
			}
			if slices.ContainsFunc(had, func(a netip.Addr) bool { return !slices.Contains(has, a) }) || !sharesAlike(before, after) {
				r.wakePending(q, before)
			}
			r.wakeHolders(q, after, append(had, has...))
		},
	}
}

// sharesAlike reports whether two versions of a Service are the same to those
// who share its addresses.
func sharesAlike(before, after *corev1.Service) bool {
	for _, name := range []string{v1.AnnotationAllowSharedIP, v1.AnnotationAllocatedKey, v1.AnnotationAllocatedBy} {
		if before.Annotations[name] != after.Annotations[name] {
			return false
		}
	}
	return equality.Semantic.DeepEqual(before.Spec.Ports, after.Spec.Ports) && before.Spec.Type == after.Spec.Type
}

// wakePending enqueues the Services that wait for what svc may have released.
func (r *ServiceReconciler) wakePending(q queue, svc *corev1.Service) {
	group := anyGroup
	if isBranded(svc) {
		group = groupOfHeld(svc)
	}
	r.wake(q, svc, r.ledger.pending(group))
}

// wakeHolders enqueues the other Services that have one of the addresses.
func (r *ServiceReconciler) wakeHolders(q queue, svc *corev1.Service, addrs []netip.Addr) {
	r.wake(q, svc, r.ledger.holders(addrs))
}

func (r *ServiceReconciler) wake(q queue, not client.Object, keys []client.ObjectKey) {
	for _, key := range keys {
		if key != client.ObjectKeyFromObject(not) {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
}

// asksDifferently lets through changes of a Service that its allocation depends
// on or consists of.
var asksDifferently = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Service)
	after, ok2 := e.ObjectNew.(*corev1.Service)
	return !ok1 || !ok2 || before.Generation != after.Generation || before.UID != after.UID ||
		!equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!equality.Semantic.DeepEqual(before.Status.LoadBalancer, after.Status.LoadBalancer) ||
		!equality.Semantic.DeepEqual(meta.FindStatusCondition(before.Status.Conditions, v1.ConditionAllocated), meta.FindStatusCondition(after.Status.Conditions, v1.ConditionAllocated)) ||
		!maps.Equal(allocationAnnotations(before), allocationAnnotations(after))
}}

// allocationAnnotations is the annotations of ours but for those that say what
// is announced.
func allocationAnnotations(svc *corev1.Service) map[string]string {
	ours := map[string]string{}
	for name, value := range svc.Annotations {
		if strings.HasPrefix(name, "purelb.io/") && !slices.Contains(announced.All, name) {
			ours[name] = value
		}
	}
	return ours
}

// servicesOf maps a ServiceGroup to the Services that a change of it concerns:
// those that wait, and those that ask for it or have addresses of it.
func (r *ServiceReconciler) servicesOf(ctx context.Context, group client.Object) []reconcile.Request {
	return r.which(ctx, func(svc *corev1.Service) bool {
		return isPending(svc) || groupOf(svc) == group.GetName() || groupOfHeld(svc) == group.GetName()
	})
}

// factsMatterTo maps a change of what nodes report to the Services that wait,
// and to those that want an address of every range that a node can announce.
func (r *ServiceReconciler) factsMatterTo(ctx context.Context, _ client.Object) []reconcile.Request {
	var groups v1.ServiceGroupList
	if err := r.Client.List(ctx, &groups, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Cannot list ServiceGroups")
		return nil
	}
	multi := map[string]bool{}
	for i := range groups.Items {
		local := groups.Items[i].Spec.Local
		multi[groups.Items[i].Name] = local != nil && local.MultiPool
	}
	return r.which(ctx, func(svc *corev1.Service) bool {
		return isPending(svc) || svc.Annotations[v1.AnnotationMultiPool] == "true" || multi[groupOf(svc)] || multi[groupOfHeld(svc)]
	})
}

func (r *ServiceReconciler) which(ctx context.Context, concerned func(*corev1.Service) bool) []reconcile.Request {
	services, err := listServices(ctx, r.Client)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot enqueue Services")
		return nil
	}
	var requests []reconcile.Request
	for i := range services {
		if isOurs(&services[i], r.IsDefault) && concerned(&services[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&services[i])})
		}
	}
	return requests
}

// addressesChanged lets through changes of the addresses of a Node.
var addressesChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return !ok1 || !ok2 || !slices.Equal(before.Status.Addresses, after.Status.Addresses)
}}
