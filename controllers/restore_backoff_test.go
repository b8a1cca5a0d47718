package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

func TestRestoreBackoffs(t *testing.T) {
	var r restoreBackoffs
	key, other, now := client.ObjectKey{Name: "a"}, client.ObjectKey{Name: "b"}, time.Unix(0, 0)
	var pauses []time.Duration
	for range 12 { // overwritten again at once, each time
		if wait := r.allowRestore(key, now); wait != 0 {
			t.Fatalf("it waits for %s", wait)
		}
		wait := r.allowRestore(key, now)
		pauses = append(pauses, wait)
		now = now.Add(wait)
	}
	if want := []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300}; !slices.EqualFunc(
		pauses, want, func(a time.Duration, seconds int) bool { return a == time.Duration(seconds)*time.Second },
	) {
		t.Errorf("pauses are %v", pauses)
	}
	if r.allowRestore(other, now) != 0 {
		t.Error("another Service has to wait")
	}
	r.allowRestore(key, now)
	now = now.Add(time.Hour)
	r.allowRestore(key, now)
	if wait := r.allowRestore(key, now); wait != restorePauseMin {
		t.Errorf("after an hour of peace it waits for %s", wait)
	}
	r.forget(key)
	if _, isThere := r.services[key]; isThere {
		t.Error("a deleted Service is left over")
	}

	// A Service that lives on and is overwritten no more leaves nothing behind.
	for i := range 1000 {
		r.allowRestore(client.ObjectKey{Name: fmt.Sprint(i)}, now)
	}
	now = now.Add(2 * restoreMemory)
	r.allowRestore(key, now)
	if len(r.services) != 1 {
		t.Errorf("%d entries are left over", len(r.services)-1)
	}
}

// allocator makes a ServiceReconciler with a client that behaves like an API server, with
// owners of fields.
func allocator(t *testing.T, objects ...client.Object) (*ServiceReconciler, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Service{}).
		WithReturnManagedFields().Build()
	return &ServiceReconciler{
		Client: c, apiReader: c, index: newServiceIndex(true, time.Now), Namespace: "purelb-system",
		IsDefaultLoadBalancer: true,
		Metrics:               NewMetrics(prometheus.NewRegistry()), Recorder: events.NewFakeRecorder(1000),
		IPAM: NewExternalIPAM(c, c, ExternalIPAMOptions{Now: time.Now}),
	}, c
}

func oneAddress(name, pool string) *v1.ServiceGroup {
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "purelb-system", Name: name}}
	sg.Spec.Remote = &v1.RemotePools{PoolSet: v1.PoolSet{V4Pools: []v1.AddressPool{{Pool: pool, Subnet: "10.0.0.0/24"}}}}
	return sg
}

func loadBalancer(name string, change ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Annotations: map[string]string{}}}
	svc.Spec.Type, svc.Spec.IPFamilies = corev1.ServiceTypeLoadBalancer, []corev1.IPFamily{corev1.IPv4Protocol}
	svc.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	for _, c := range change {
		c(svc)
	}
	return svc
}

// TestFaultCoOwnedAddress has another controller write the same address into a Service,
// so that an apply without that address would leave it there.
func TestFaultCoOwnedAddress(t *testing.T) {
	ctx := context.Background()
	svc, key := loadBalancer("first"), client.ObjectKey{Namespace: "a", Name: "first"}
	r, c := allocator(t, oneAddress("default", "10.0.0.1"), svc)
	serve := func(key client.ObjectKey) *corev1.Service {
		t.Helper()
		if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		got := &corev1.Service{}
		if err := c.Get(ctx, key, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if err := c.Get(ctx, key, svc); err != nil {
		t.Fatal(err)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "10.0.0.1", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)},
	}
	if err := c.Status().Update(ctx, svc, client.FieldOwner("another")); err != nil {
		t.Fatal(err)
	}
	if got := serve(key); allocation.RecordOf(got).Group != "default" {
		t.Fatalf("not adopted: %+v", got.Status)
	}

	// The manager restarts, and no longer serves Services without a class.
	r.IsDefaultLoadBalancer, r.index = false, newServiceIndex(false, time.Now)
	got := serve(key)
	if len(got.Status.LoadBalancer.Ingress) > 0 || len(got.Status.Conditions) > 0 || len(got.Annotations) > 0 {
		t.Errorf("released, but left: %+v %v", got.Status, got.Annotations)
	}
	if err := c.Create(
		ctx, loadBalancer("second", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To(v1.LoadBalancerClass) }),
	); err != nil {
		t.Fatal(err)
	}
	second := serve(client.ObjectKey{Namespace: "a", Name: "second"})
	if first := serve(key); len(allocation.ShownAddresses(first)) > 0 || len(allocation.ShownAddresses(second)) != 1 {
		t.Errorf("the first shows %v, the second %v", allocation.ShownAddresses(first), allocation.ShownAddresses(second))
	}
}

// TestReleaseOfCoOwnedConditions has another field manager write the allocator's conditions, too, so that an apply
// without them leaves them there. What PureLB no longer serves loses them all the same, and keeps those of others.
func TestReleaseOfCoOwnedConditions(t *testing.T) {
	ctx := t.Context()
	svc := loadBalancer("web")
	r, c := allocator(t, oneAddress("default", "10.0.0.1"), svc)
	serve := func() *corev1.Service {
		t.Helper()
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)}
		if _, err := r.Reconcile(ctx, request); err != nil {
			t.Fatal(err)
		}
		got := &corev1.Service{}
		if err := c.Get(ctx, request.NamespacedName, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	const theirs = "example.com/Theirs"
	conditions := append(serve().Status.Conditions, metav1.Condition{
		Type: theirs, Status: metav1.ConditionTrue, Reason: "Kept", LastTransitionTime: metav1.Unix(1, 0),
	})
	status := corev1ac.ServiceStatus()
	for i := range conditions {
		status.WithConditions(conditionApplyConfiguration(&conditions[i]))
	}
	if err := c.Status().Apply(ctx, corev1ac.Service(svc.Name, svc.Namespace).WithStatus(status),
		client.FieldOwner("another"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}

	r.IsDefaultLoadBalancer, r.index = false, newServiceIndex(false, time.Now)
	for range 2 {
		got := serve()
		if len(got.Status.Conditions) != 1 || got.Status.Conditions[0].Type != theirs {
			t.Errorf("released, and left with %v", got.Status.Conditions)
		}
	}
	if n := len(r.index.inUse.ServicesWith(netip.MustParseAddr("10.0.0.1"))); n != 0 {
		t.Errorf("%d Services have the released address", n)
	}
}

// TestServiceIndexLearnsWhatIsStored checks that an address counts as in use for as long as
// the stored Service shows it, whatever the manager meant to write.
func TestServiceIndexLearnsWhatIsStored(t *testing.T) {
	ctx := context.Background()
	svc := loadBalancer("first", func(svc *corev1.Service) { svc.Annotations[v1.AnnotationServiceGroup] = "nowhere" })
	r, c := allocator(t, oneAddress("default", "10.0.0.1"), svc)
	if err := c.Get(ctx, client.ObjectKeyFromObject(svc), svc); err != nil {
		t.Fatal(err)
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
	if err := c.Status().Update(ctx, svc, client.FieldOwner("another")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.index.inUse.ServicesWith(netip.MustParseAddr("10.0.0.1"))); n != 1 {
		t.Errorf("%d Services hold what the first one shows", n)
	}
}

// TestAttackMetricLabels lets a user name ServiceGroups that do not exist.
func TestAttackMetricLabels(t *testing.T) {
	registry := prometheus.NewRegistry()
	svc := loadBalancer("waits")
	r, c := allocator(t, oneAddress("default", "10.0.0.1"), svc)
	r.Metrics = NewMetrics(registry)
	for i := range 100 {
		if err := c.Get(context.Background(), client.ObjectKeyFromObject(svc), svc); err != nil {
			t.Fatal(err)
		}
		svc.Annotations = map[string]string{
			v1.AnnotationServiceGroup: fmt.Sprintf("invented-%d", i),
			v1.AnnotationAddresses:    []string{"", "ten", "10.9.9.9"}[i%3],
		}
		if err := c.Update(context.Background(), svc); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(context.Background(),
			reconcile.Request{NamespacedName: client.ObjectKeyFromObject(svc)}); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if !strings.HasSuffix(f.GetName(), "rejected_total") {
			continue
		}
		if len(f.GetMetric()) != 3 {
			t.Errorf("%d series", len(f.GetMetric()))
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pool" && l.GetValue() != "" {
					t.Errorf("label pool is %q", l.GetValue())
				}
			}
		}
	}
}

// TestRejectedOfDeletedGroup counts refusals of a ServiceGroup that has been deleted since the decision.
func TestRejectedOfDeletedGroup(t *testing.T) {
	registry := prometheus.NewRegistry()
	r, _ := allocator(t, oneAddress("there", "10.0.0.1"))
	r.Metrics = NewMetrics(registry)
	for _, pool := range []string{"there", "deleted", ""} {
		r.countRejected(t.Context(), pool, v1.ReasonExhausted)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var pools []string
	for _, f := range families {
		if !strings.HasSuffix(f.GetName(), "rejected_total") {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pool" {
					pools = append(pools, l.GetValue())
				}
			}
		}
	}
	slices.Sort(pools)
	if want := []string{"", "there"}; !slices.Equal(pools, want) {
		t.Errorf("counted for %q, want %q", pools, want)
	}
}
