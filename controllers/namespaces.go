package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/purelb/purelb-operator/controllers/allocation"
)

// NamespaceMetadata is an empty Namespace of which only the metadata are read: a
// ServiceGroup selects namespaces by their labels.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// NamespaceMetadataList is an empty list of them.
func NamespaceMetadataList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	return list
}

// SlimNamespace makes the cache keep of a Namespace its name and its labels.
func SlimNamespace(obj any) (any, error) {
	ns, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	slim := &metav1.PartialObjectMetadata{TypeMeta: ns.TypeMeta, ObjectMeta: slimMeta(&ns.ObjectMeta)}
	slim.Labels = ns.Labels
	return slim, nil
}

// namespaceLabels reads the labels of all namespaces from the cache.
func namespaceLabels(ctx context.Context, c client.Reader) (map[string]map[string]string, error) {
	list := NamespaceMetadataList()
	if err := c.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Namespaces: %w", err)
	}
	labels := make(map[string]map[string]string, len(list.Items))
	for i := range list.Items {
		labels[list.Items[i].Name] = list.Items[i].Labels
	}
	return labels, nil
}

// namespaceLabelsChanged lets through changes of the labels of a Namespace. A Service whose
// Namespace the cache does not have yet is tried again anyway.
var namespaceLabelsChanged = onlyChanged(func(before, after client.Object) bool {
	return !maps.Equal(before.GetLabels(), after.GetLabels())
})

// requestsForServicesOfNamespace maps a Namespace to the Services in it.
func (r *ServiceReconciler) requestsForServicesOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return requestsForOurServicesWhere(ctx, r.Client, r.IsDefaultLoadBalancer, func(svc *corev1.Service) bool {
		return svc.Namespace == ns.GetName()
	})
}

// usesStaleNamespaceLabels reports whether a Service would get further addresses of a ServiceGroup by
// labels that its Namespace does not have any more. A Service keeps what it gets, so the
// cache, which may be late, does not decide that alone: somebody may have just deleted the
// Namespace, and made another one of its name.
func (r *ServiceReconciler) usesStaleNamespaceLabels(
	ctx context.Context, svc *corev1.Service, inputs *allocation.Inputs, result *allocation.Result,
) (bool, error) {
	verdict, allocated := inputs.Catalog[result.Group], allocation.RecordOf(svc).Addresses
	if verdict == nil || verdict.Group.NamespaceSelector == nil {
		return false, nil
	}
	if !slices.ContainsFunc(result.Addresses, func(a netip.Addr) bool { return !slices.Contains(allocated, a) }) {
		return false, nil
	}
	stored := NamespaceMetadata()
	if err := r.apiReader.Get(ctx, client.ObjectKey{Name: svc.Namespace}, stored); err != nil {
		return false, fmt.Errorf("read Namespace: %w", err)
	}
	return !maps.Equal(stored.Labels, inputs.NamespaceLabels[svc.Namespace]), nil
}
