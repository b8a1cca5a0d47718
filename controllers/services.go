package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// isOurs reports whether a Service is for us to serve. isDefault is whether we
// serve Services without a class.
func isOurs(svc *corev1.Service, isDefault bool) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if svc.Spec.LoadBalancerClass == nil {
		return isDefault
	}
	return *svc.Spec.LoadBalancerClass == v1.LoadBalancerClass
}

// isBranded reports whether we have given a Service addresses.
func isBranded(svc *corev1.Service) bool {
	return svc.Annotations[v1.AnnotationAllocatedBy] == v1.Brand
}

// groupOf is the ServiceGroup that a Service asks for.
func groupOf(svc *corev1.Service) string {
	return cmp.Or(svc.Annotations[v1.AnnotationServiceGroup], v1.DefaultServiceGroup)
}

// ingressOf is the addresses in a Service's status.
func ingressOf(svc *corev1.Service) []netip.Addr { return allocation.AddressesOf(svc) }

// isPending reports whether a Service waits for an address.
func isPending(svc *corev1.Service) bool {
	return meta.IsStatusConditionFalse(svc.Status.Conditions, v1.ConditionAllocated)
}

// keyOf is namespace/name.
func keyOf(obj client.Object) string { return client.ObjectKeyFromObject(obj).String() }

// listServices lists all Services, in no order. The objects are the cache's own:
// they must not be changed.
func listServices(ctx context.Context, c client.Reader) ([]corev1.Service, error) {
	var list corev1.ServiceList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return list.Items, nil
}

// inUse is who has each address, for counting. Addresses of Services that are
// not ours count, too: they must not be given away.
func inUse(services []corev1.Service) *allocation.InUse {
	used := allocation.NewInUse()
	for i := range services {
		if len(services[i].Status.LoadBalancer.Ingress) > 0 {
			used.Put(&allocation.Holder{
				Namespace: services[i].Namespace, Name: services[i].Name, Addresses: ingressOf(&services[i]),
			})
		}
	}
	return used
}
