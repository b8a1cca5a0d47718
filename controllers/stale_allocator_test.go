package controllers

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestFaultStaleAllocator has a leader that is late to step down allocate by its cache, which shows a
// Service as it was before a user edited the Service and the next leader allocated by that. The API
// server refuses what the late leader writes. This test shows the row "a leader that is late to step
// down allocates an address" of docs/trust.md.
func TestFaultStaleAllocator(t *testing.T) {
	ctx := t.Context()
	svc := loadBalancer("web")
	next, c := allocator(t, oneAddress("default", "10.0.0.1-10.0.0.9"), svc)
	api, canWatch := c.(client.WithWatch)
	if !canWatch {
		t.Fatal("the client cannot watch")
	}
	read := func() *corev1.Service {
		t.Helper()
		got := &corev1.Service{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(svc), got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	cached := read()
	late, _ := allocator(t)
	late.apiReader = c
	var answer error
	late.Client = interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey,
			obj client.Object, opts ...client.GetOption,
		) error {
			if shown, isService := obj.(*corev1.Service); isService {
				cached.DeepCopyInto(shown)
				return nil
			}
			return c.Get(ctx, key, obj, opts...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string,
			obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption,
		) error {
			answer = c.SubResource(sub).Apply(ctx, obj, opts...)
			return answer
		},
	})

	edited := read()
	edited.Annotations = map[string]string{v1.AnnotationAddresses: "10.0.0.5"}
	if err := c.Update(ctx, edited); err != nil {
		t.Fatal(err)
	}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)}
	if _, err := next.Reconcile(ctx, request); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Reconcile(ctx, request); err != nil || !apierrors.IsConflict(answer) {
		t.Errorf("the late leader ends with %v; the API server answers %v", err, answer)
	}
	got := read()
	has, shows := allocation.RecordOf(got).Addresses, allocation.ShownAddresses(got)
	if allocation.JoinAddresses(has) != "10.0.0.5" || allocation.JoinAddresses(shows) != "10.0.0.5" {
		t.Errorf("the Service has %v and shows %v", has, shows)
	}
}
