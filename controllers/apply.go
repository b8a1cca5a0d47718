package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/purelb/purelb-operator/internal/mergepatch"
	"github.com/purelb/purelb-operator/internal/writeerror"
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
	ownerRouting      = "purelb-routing"
)

// apply writes obj without its status. owner owns the whole of its spec.
func apply(ctx context.Context, c client.Client, obj client.Object, owner string) error {
	_, err := applyAndReturnStored(ctx, c, obj, owner)
	return err
}

// applyAndReturnStored is apply, and returns what is stored then.
func applyAndReturnStored(
	ctx context.Context, c client.Client, obj client.Object, owner string,
) (*unstructured.Unstructured, error) {
	u, err := toApplyConfiguration(c, obj)
	if err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(u.Object, "status")
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner),
		client.ForceOwnership); err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return u, nil
}

// applyStatus writes the status of obj, of which owner owns the whole.
func applyStatus(ctx context.Context, c client.Client, obj client.Object, owner string) error {
	return applyStatusOver(ctx, c, obj, owner, "")
}

// applyStatusOver writes the status of obj, of which owner owns the whole, over an object of a given
// version: if the API server has another version, it fails with a conflict. An empty version is any.
func applyStatusOver(ctx context.Context, c client.Client, obj client.Object, owner, resourceVersion string) error {
	full, err := toApplyConfiguration(c, obj)
	if err != nil {
		return err
	}
	stored := metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: obj.GetName(), ResourceVersion: resourceVersion}
	return applyStatusFields(ctx, c, full.GroupVersionKind(), stored, full.Object["status"], owner)
}

// applyStatusFields writes fields of a status, which are all that owner owns of it, over the object that
// stored names. Where stored has a UID or a version, and the API server has another, it fails.
func applyStatusFields(
	ctx context.Context, c client.Client, kind schema.GroupVersionKind, stored metav1.ObjectMeta, fields any, owner string,
) error {
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(stored.Namespace)
	u.SetName(stored.Name)
	u.SetUID(stored.UID)
	u.SetResourceVersion(stored.ResourceVersion)
	if err := c.Status().Apply(
		ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner), client.ForceOwnership,
	); err != nil {
		return fmt.Errorf("apply status of %s %s: %w", kind.Kind, stored.Name, err)
	}
	return nil
}

// resultOfWrite returns what a reconciler returns after a write that failed. An object that
// is gone wants nothing more. Of one that is not as it was read any more, changed or replaced
// by another of the same name, the reconciler looks at what the cache shows soon.
func resultOfWrite(err error) (reconcile.Result, error) {
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case writeerror.IsOutdated(err):
		return reconcile.Result{RequeueAfter: cacheLag}, nil
	}
	return reconcile.Result{}, err
}

// applyServiceStatus writes the part of a Service's status that owner owns, which is in ac,
// and its annotations, which a write of the status may change, too: of the annotations with
// the given names the Service is to have exactly the wanted ones. Where the apply leaves
// others, because it does not change annotations or because another field manager has
// written them, a patch of the Service writes them. Afterwards ac is what is stored.
//
// Where the API server refuses the annotations, as of a Service whose others leave no room for
// them, the Service goes without: only people read them.
func applyServiceStatus(
	ctx context.Context, c client.Client, ac *corev1ac.ServiceApplyConfiguration, owner string, wanted map[string]string,
	names []string,
) error {
	ac.WithAnnotations(wanted)
	err := c.Status().Apply(ctx, ac, client.FieldOwner(owner), client.ForceOwnership)
	areRefused := isRefused(err) && !writeerror.IsReplaced(err) && len(wanted) > 0
	if areRefused {
		ac.Annotations = nil
		err = c.Status().Apply(ctx, ac, client.FieldOwner(owner), client.ForceOwnership)
	}
	if err != nil {
		return fmt.Errorf("write status of Service: %w", err)
	}
	if areRefused || hasExactAnnotations(ac.Annotations, wanted, names) {
		return nil
	}
	patch := servicePatch{}
	patch.Metadata.Annotations = map[string]*string{}
	for _, name := range names {
		patch.Metadata.Annotations[name] = nil
		if value, isWanted := wanted[name]; isWanted {
			patch.Metadata.Annotations[name] = &value
		}
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: *ac.Namespace, Name: *ac.Name, ResourceVersion: ptr.Deref(ac.ResourceVersion, ""),
	}}
	written, err := patch.write(ctx, c, svc, owner)
	if isRefused(err) && !writeerror.IsReplaced(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("annotate Service: %w", err)
	}
	ac.ResourceVersion, ac.Annotations = &written.ResourceVersion, written.Annotations
	return nil
}

// servicePatch is a merge patch of a Service. The cache keeps less of one than there is.
type servicePatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		Annotations     map[string]*string `json:"annotations"` // those without a value go
	} `json:"metadata"`
	Spec struct {
		ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`
	} `json:"spec,omitzero"`
}

// write patches a Service, if it is still as it was read, and returns what is stored.
func (p servicePatch) write(
	ctx context.Context, c client.Client, read *corev1.Service, owner string,
) (*corev1.Service, error) {
	p.Metadata.ResourceVersion = read.ResourceVersion
	written := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: read.Namespace, Name: read.Name}}
	return written, mergepatch.Write(ctx, c, written, p, client.FieldOwner(owner))
}

// hasExactAnnotations reports whether of the annotations with the given names exactly the wanted
// ones exist.
func hasExactAnnotations(annotations, wanted map[string]string, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return annotations[name] != wanted[name] })
}

// toApplyConfiguration returns obj without what only the API server writes. Fields that are
// not omitted when empty are written with their zero value, on purpose.
func toApplyConfiguration(c client.Client, obj client.Object) (*unstructured.Unstructured, error) {
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

// parallelWrites is how many nodes are written at the same time: most of the time that a
// write takes is waiting for the API server.
const parallelWrites = 8

// forEachParallel calls do for all numbers below count, up to limit at a time, or parallelWrites if
// limit is 0, and returns all errors. A limit of 1 calls do for one after the other, in order, from
// the caller's goroutine.
func forEachParallel(limit, count int, do func(int) error) error {
	errs := make([]error, count)
	if limit == 1 {
		for i := range count {
			errs[i] = do(i)
		}
		return errors.Join(errs...)
	}
	var wait sync.WaitGroup
	var next atomic.Int64
	for range min(cmp.Or(limit, parallelWrites), count) {
		wait.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
