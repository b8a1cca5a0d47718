package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// IsOurs reports whether PureLB serves a Service. isDefaultLoadBalancer is whether it serves Services
// without a loadBalancerClass.
func IsOurs(svc *corev1.Service, isDefaultLoadBalancer bool) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if svc.Spec.LoadBalancerClass == nil {
		return isDefaultLoadBalancer
	}
	return *svc.Spec.LoadBalancerClass == v1.LoadBalancerClass
}

// hasAddressesToAnnounce reports whether a Service shows addresses that the manager has
// allocated to it.
func hasAddressesToAnnounce(svc *corev1.Service) bool {
	return len(allocation.AddressesToAnnounce(svc)) > 0
}

// requestedOrDefaultGroup returns the ServiceGroup that a Service asks for, if only by naming none.
func requestedOrDefaultGroup(svc *corev1.Service) string {
	return cmp.Or(allocation.RequestedGroup(svc), v1.DefaultServiceGroup)
}

// isWaitingForAddresses reports whether a Service does not have what it asks for.
func isWaitingForAddresses(svc *corev1.Service) bool {
	return meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionAllocated)
}

// hasRecord reports whether the manager has written what is allocated to a Service, even
// if that is nothing.
func hasRecord(svc *corev1.Service) bool {
	return meta.FindStatusCondition(svc.Status.Conditions, v1.ConditionAllocationRecord) != nil
}

// missingFamilies returns the families of which a Service has no address, although it has
// one of another family: it prefers both, and gets the other when there is one.
func missingFamilies(svc *corev1.Service) []allocation.Family {
	addrs := allocation.RecordOf(svc).Addresses
	if len(addrs) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(svc.Spec.IPFamilies), func(f allocation.Family) bool {
		return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return allocation.FamilyOf(a) == f })
	})
}

// KeyOf is namespace/name.
func KeyOf(obj client.Object) string { return client.ObjectKeyFromObject(obj).String() }

// listServices lists all Services, in no order. The objects are the cache's own: the
// caller must not change them.
func listServices(ctx context.Context, c client.Reader) ([]corev1.Service, error) {
	var list corev1.ServiceList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return list.Items, nil
}

// inUse indexes which Services have which addresses in use. Services that PureLB does not
// serve count, too: their addresses must not be allocated to anyone else.
func indexInUse(services []corev1.Service, isDefaultLoadBalancer bool) *allocation.InUse {
	index := allocation.NewInUse()
	for i := range services {
		if svc := &services[i]; len(svc.Status.LoadBalancer.Ingress) > 0 || hasRecord(svc) {
			index.Put(allocation.ServiceOf(svc, IsOurs(svc, isDefaultLoadBalancer)))
		}
	}
	return index
}
