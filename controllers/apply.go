package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
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

// applyServiceStatus writes what owner has of a Service's status and of its
// annotations, which a write of a Service's status may change, too: those wanted, of
// those names. If it does not, or an older version wrote them otherwise, they are
// written apart. ac, which has the status, is what is stored then.
func applyServiceStatus(ctx context.Context, c client.Client, ac *corev1ac.ServiceApplyConfiguration, owner string, wanted map[string]string, names []string) error {
	uid := ac.UID
	ac.WithAnnotations(wanted)
	if err := c.Status().Apply(ctx, ac, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("write status of Service: %w", err)
	}
	if hasAnnotations(ac.Annotations, wanted, names) {
		return nil
	}
	apart := corev1ac.Service(*ac.Name, *ac.Namespace).WithAnnotations(wanted)
	apart.UID, apart.ResourceVersion = uid, ac.ResourceVersion
	if err := c.Apply(ctx, apart, client.FieldOwner(owner), client.ForceOwnership); err != nil {
		return fmt.Errorf("annotate Service: %w", err)
	}
	*ac = *apart
	return nil
}

// hasAnnotations reports whether of the annotations with those names exactly the
// wanted ones are there.
func hasAnnotations(annotations, wanted map[string]string, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return annotations[name] != wanted[name] })
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

// writers is how many nodes are written at the same time: most of the time that a
// write takes is waiting for the API server.
const writers = 8

// atOnce calls do for all numbers below count, some at the same time.
func atOnce(count int, do func(int) error) error {
	var wait sync.WaitGroup
	errs := make([]error, count)
	var next atomic.Int64
	for range min(writers, count) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
