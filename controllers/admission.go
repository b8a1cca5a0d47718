package controllers

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// IsOurs reports whether a Service is for us to serve. isDefault is whether we
// serve Services without a loadBalancerClass.
func IsOurs(svc *corev1.Service, isDefault bool) bool { return isOurs(svc, isDefault) }

// Surroundings reads, from the cache, what ServiceGroups and Services are
// judged against before they are written, but for Neighbours. namespace is
// where ServiceGroups count. What it returns may share memory with the cache:
// it must not be changed.
func Surroundings(ctx context.Context, c client.Reader, namespace string) (*allocation.Surroundings, error) {
	var groups v1.ServiceGroupList
	if err := c.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	reserved, err := reservedAddresses(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	announcements, err := listAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	return &allocation.Surroundings{
		Namespace: namespace,
		Groups:    groups.Items,
		Reserved:  reserved,
		Announce:  (&cluster{announcements: announcements}).announceType,
	}, nil
}

// Neighbours reads, from the cache, the Services that have an address, or wait
// to share one.
func Neighbours(ctx context.Context, c client.Reader, isDefault bool) ([]allocation.Neighbour, error) {
	var services corev1.ServiceList
	if err := c.List(ctx, &services, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return neighbours(services.Items, isDefault), nil
}

func neighbours(services []corev1.Service, isDefault bool) []allocation.Neighbour {
	all := make([]allocation.Neighbour, 0, len(services))
	for i := range services {
		svc := &services[i]
		ours := isOurs(svc, isDefault)
		n := allocation.Neighbour{
			Namespace: svc.Namespace,
			Name:      svc.Name,
			Served:    ours && isBranded(svc),
			Group:     cmp.Or(svc.Annotations[v1.AnnotationAllocatedFrom], groupOf(svc)),
			Ports:     svc.Spec.Ports,
			Families:  svc.Spec.IPFamilies,
			Addresses: ingressOf(svc),
		}
		if ours {
			n.SharingKey = svc.Annotations[v1.AnnotationAllowSharedIP]
		}
		if len(n.Addresses) > 0 || n.SharingKey != "" {
			all = append(all, n)
		}
	}
	return all
}
