package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Field owners of server-side apply, one for each controller.
const (
	ownerAllocator    = "purelb-allocator"
	ownerServiceGroup = "purelb-servicegroup"
	ownerLBNodeAgent  = "purelb-lbnodeagent"
	ownerPlacement    = "purelb-placement"
	ownerAnnounced    = "purelb-announced"
	ownerLocalPolicy  = "purelb-local-policy"
	ownerPolicy       = "purelb-policy"
)

// apply writes obj, whose spec this owner has the whole of, without its status.
// It returns what is stored then.
func apply(ctx context.Context, c client.Client, obj client.Object, owner string) (*unstructured.Unstructured, error) {
	u, err := applyConfiguration(c, obj)
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(u.Object, "status")
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return u, nil
}

// applyStatus writes the status of obj, which this owner has the whole of.
func applyStatus(ctx context.Context, c client.Client, obj client.Object, owner string) error {
	full, err := applyConfiguration(c, obj)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": full.Object["status"]}}
	u.SetGroupVersionKind(full.GroupVersionKind())
	u.SetName(obj.GetName())
	u.SetNamespace(obj.GetNamespace())
	if err := c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply status of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// applyConfiguration is obj without what only the API server writes. Fields
// that are not omitted when empty are written with their zero value: that is
// meant.
func applyConfiguration(c client.Client, obj client.Object) (*unstructured.Unstructured, error) {
	gvk, err := apiutil.GVKForObject(obj, c.Scheme())
	if err != nil {
		return nil, fmt.Errorf("look up the kind of %s: %w", obj.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("convert %s %s: %w", gvk.Kind, obj.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvk)
	for _, path := range [][]string{
		{"metadata", "creationTimestamp"}, {"metadata", "managedFields"}, {"metadata", "generation"},
		{"metadata", "uid"}, {"metadata", "resourceVersion"}, {"spec", "template", "metadata", "creationTimestamp"},
	} {
		unstructured.RemoveNestedField(u.Object, path...)
	}
	return u, nil
}
