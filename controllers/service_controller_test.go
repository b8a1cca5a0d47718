package controllers_test

import (
	"context"
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// allocatorAnnotations are the annotations that the allocator writes.
var allocatorAnnotations = []string{v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationPoolType}

// addRange is what a refusal for want of an address advises.
const addRange = ": add a range to it, or delete Services"

func TestServiceGetsAddresses(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	before := rejected(g, "dual", v1.ReasonExhausted) // this test may have run before
	serviceGroup(t, "dual", `
remote:
  v4pool: {pool: 172.32.100.225-172.32.100.226, subnet: 172.32.100.0/24, aggregation: /32}
  v6pool: {pool: 'fc00:370:155:0:8000::/126', subnet: 'fc00:370:155::/64', aggregation: /128}`)

	first := service(t, "first", ofGroup("dual"), dualStack)
	g.Eventually(ingress(first)).Should(Equal([]string{"172.32.100.225", "fc00:370:155:0:8000::"}))
	g.Eventually(condition(first, v1.ConditionAllocated)).
		Should(Equal("True Allocated: 172.32.100.225, fc00:370:155:0:8000:: from pool dual"))
	g.Expect(first.Annotations).To(SatisfyAll(
		HaveKeyWithValue(v1.AnnotationAllocatedBy, "PureLB"),
		HaveKeyWithValue(v1.AnnotationAllocatedFrom, "dual"),
		HaveKeyWithValue(v1.AnnotationPoolType, "remote")))
	for _, in := range first.Status.LoadBalancer.Ingress {
		g.Expect(in.IPMode).To(HaveValue(Equal(corev1.LoadBalancerIPModeVIP)))
	}
	g.Eventually(eventsOf(first, v1.EventAddressAssigned)).Should(Equal([]string{
		"purelb-allocator: Assigned 172.32.100.225, fc00:370:155:0:8000:: from pool dual"}))

	second := service(t, "second", ofGroup("dual"))
	g.Eventually(ingress(second)).Should(Equal([]string{"172.32.100.226"}))

	// The group has no more addresses: the third Service waits, and says why.
	third := service(t, "third", ofGroup("dual"))
	g.Eventually(condition(third, v1.ConditionAllocated)).
		Should(Equal("False Exhausted: ServiceGroup dual has no free IPv4 address" + addRange))
	g.Eventually(eventsOf(third, v1.EventAllocationFailed)).Should(Equal([]string{
		"purelb-allocator: Exhausted: ServiceGroup dual has no free IPv4 address" + addRange}))
	for _, name := range allocatorAnnotations {
		g.Expect(third.Annotations).NotTo(HaveKey(name))
	}

	// A Service that asks no more is left as if it had never asked.
	quitter := service(t, "quitter", ofGroup("dual"))
	g.Eventually(condition(quitter, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))
	g.Expect(api.Patch(ctx, quitter, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"type":"ClusterIP","allocateLoadBalancerNodePorts":null}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) []metav1.Condition { return fetch(g, quitter).Status.Conditions }).Should(BeEmpty())
	g.Expect(eventsOf(quitter, v1.EventAddressReleased)(g)).To(BeEmpty())

	g.Expect(rejected(g, "dual", v1.ReasonExhausted)-before).To(
		BeEquivalentTo(2), "once for each Service that had to wait",
	)
	g.Eventually(waiting("dual", v1.ReasonExhausted)).Should(BeEquivalentTo(1),
		"the third Service waits, and the other one asks no more")

	// The third Service gets what the first one releases, and an event reports the release.
	remove(t, first)
	g.Eventually(eventsOf(first, v1.EventAddressReleased)).
		Should(Equal([]string{"purelb-allocator: Released 172.32.100.225, fc00:370:155:0:8000::"}))
	g.Eventually(ingress(third)).Should(Equal([]string{"172.32.100.225"}))
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(HavePrefix("True Allocated: "))
	g.Eventually(waiting("dual", v1.ReasonExhausted)).Should(BeZero())

	// A Service that is no load balancer any more releases what it has.
	fourth := service(t, "fourth", ofGroup("dual"))
	g.Eventually(condition(fourth, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))
	fetch(g, second)
	g.Expect(api.Patch(ctx, second, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"type":"ClusterIP","allocateLoadBalancerNodePorts":null}}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(ingress(second)(g)).To(BeEmpty())
		for _, name := range allocatorAnnotations {
			g.Expect(second.Annotations).NotTo(HaveKey(name))
		}
		g.Expect(second.Annotations).To(HaveKey(v1.AnnotationServiceGroup), "the user's own")
		g.Expect(second.Status.Conditions).To(BeEmpty())
	}).Should(Succeed())
	g.Eventually(eventsOf(second, v1.EventAddressReleased)).
		Should(Equal([]string{"purelb-allocator: Released 172.32.100.226 from pool dual"}))
	g.Eventually(ingress(fourth)).Should(Equal([]string{"172.32.100.226"}))
}

func TestServiceEdits(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	serviceGroup(
		t, "here",
		"local: {v4pool: {pool: 10.20.0.1-10.20.0.9, subnet: 10.20.0.0/24}, v6pool: {pool: 'fd20::1-fd20::9', subnet: "+
			"'fd20::/64'}}",
	)
	serviceGroup(t, "there", "local: {pool: 10.21.0.1-10.21.0.9, subnet: 10.21.0.0/24}")
	svc := service(t, "edited", ofGroup("here"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.20.0.1"}))

	patch := func(body string) {
		t.Helper()
		g.Expect(api.Patch(ctx, svc, client.RawPatch("application/merge-patch+json", []byte(body)))).To(Succeed())
	}
	patch(`{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.20.0.1", "fd20::1"}))
	patch(`{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"]}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.20.0.1"}))
	patch(`{"metadata":{"annotations":{"purelb.io/service-group":"there"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.21.0.1"}))
	g.Eventually(func(g Gomega) map[string]string { return fetch(g, svc).Annotations }).
		Should(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "there"))

	// Asking for a group that does not exist leaves the Service with its address.
	patch(`{"metadata":{"annotations":{"purelb.io/service-group":"nowhere"}}}`)
	g.Eventually(condition(svc, v1.ConditionAllocated)).
		Should(Equal("False NoSuchGroup: there is no ServiceGroup nowhere"))
	g.Expect(ingress(svc)(g)).To(Equal([]string{"10.21.0.1"}))

	// After the Service has settled, nobody writes it, although the manager looks at it again.
	patch(`{"metadata":{"annotations":{"purelb.io/service-group":"there"}}}`)
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(HavePrefix("True"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("False"), "the first report comes later")
	version := func(g Gomega) string { return fetch(g, svc).ResourceVersion }
	waitUntilAllocated(t)
	now := version(g)
	serviceGroup(t, "unrelated", "local: {pool: 10.22.0.1, subnet: 10.22.0.0/24}")
	waitUntilAllocated(t)
	g.Expect(version(g)).To(Equal(now))
}

// TestAnnotationsOfAnotherApply has the allocator's annotations written by an apply of their
// own: the allocator changes and removes them all the same.
func TestAnnotationsOfAnotherApply(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	serviceGroup(t, "apart-here", "local: {pool: 10.24.0.1, subnet: 10.24.0.0/24}")
	serviceGroup(t, "apart-there", "local: {pool: 10.24.1.1, subnet: 10.24.1.0/24}")
	svc := service(t, "apart", ofGroup("apart-here"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.24.0.1"}))
	ours := func(g Gomega) map[string]string {
		annotations := map[string]string{}
		for name, value := range fetch(g, svc).Annotations {
			if name != v1.AnnotationServiceGroup {
				annotations[name] = value
			}
		}
		return annotations
	}
	apart := corev1ac.Service(svc.Name, svc.Namespace).WithAnnotations(ours(g))
	g.Expect(api.Apply(ctx, apart, client.FieldOwner("purelb-allocator"))).To(Succeed())

	g.Expect(api.Patch(
		ctx, svc,
		client.RawPatch(
			"application/merge-patch+json", []byte(`{"metadata":{"annotations":{"purelb.io/service-group":"apart-there"}}}`),
		),
	)).To(Succeed())
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.24.1.1"}))
	g.Eventually(ours).Should(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "apart-there"))
	g.Expect(api.Patch(ctx, svc,
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"type":"ClusterIP"}}`)))).To(Succeed())
	g.Eventually(ours).Should(BeEmpty())
}

func TestServiceWithoutGroup(t *testing.T) {
	g := begin(t)
	svc := service(t, "early", ofGroup("later"))
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("False NoSuchGroup: there is no ServiceGroup later"))
	// However often the Service is reconciled, there is one event.
	serviceGroup(t, "unrelated", "local: {pool: 10.22.0.1, subnet: 10.22.0.0/24}")
	waitUntilAllocated(t)
	g.Eventually(eventsOf(svc, v1.EventAllocationFailed)).
		Should(Equal([]string{"purelb-allocator: NoSuchGroup: there is no ServiceGroup later"}))

	serviceGroup(t, "later", "local: {pool: 10.23.0.1, subnet: 10.23.0.0/24}")
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.23.0.1"}))
	g.Expect(fetch(g, svc).Annotations).To(HaveKeyWithValue(v1.AnnotationPoolType, "local"))
}

func TestServiceDefaultGroup(t *testing.T) {
	g := begin(t)
	serviceGroup(t, "default", "local: {pool: 10.24.0.1-10.24.0.9, subnet: 10.24.0.0/24}")
	branded := service(
		t, "branded", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To(v1.LoadBalancerClass) },
	)
	foreign := service(
		t, "foreign", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/other") },
	)
	internal := service(t, "internal", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeClusterIP, nil
	})
	g.Eventually(ingress(branded)).Should(Equal([]string{"10.24.0.1"}))
	waitUntilAllocated(t)
	for _, svc := range []*corev1.Service{foreign, internal} {
		g.Expect(ingress(svc)(g)).To(BeEmpty())
		g.Expect(svc.Annotations).To(BeEmpty())
		g.Expect(svc.Status.Conditions).To(BeEmpty())
	}
}

// TestServiceKeepsAway checks that nobody is allocated what others have.
func TestServiceKeepsAway(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	foreign := service(
		t, "other-lb", func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = ptr.To("example.com/other") },
	)
	foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.25.0.1"}}
	g.Expect(api.Status().Update(ctx, foreign)).To(Succeed())
	n := node(t, "addressed", nil)
	g.Eventually(func() error {
		fetch(g, n)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.25.0.2"}}
		return api.Status().Update(ctx, n)
	}).Should(Succeed())
	serviceGroup(t, "shared", "local: {pool: 10.25.0.0/24, subnet: 10.25.0.0/24}")
	svc := service(t, "away", ofGroup("shared"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.25.0.3"}))
}

func TestManyServicesGetDifferentAddresses(t *testing.T) {
	g := begin(t)
	serviceGroup(t, "many", "local: {pool: 10.26.0.0/27, subnet: 10.26.0.0/24}")
	const many = 25
	for range many {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "many-"}}
		service(t, "", ofGroup("many"), func(s *corev1.Service) { s.GenerateName = svc.GenerateName })
	}
	g.Eventually(func(g Gomega) {
		var list corev1.ServiceList
		g.Expect(api.List(context.Background(), &list, client.InNamespace(user))).To(Succeed())
		holder := map[string]string{}
		for i := range list.Items {
			for _, in := range list.Items[i].Status.LoadBalancer.Ingress {
				g.Expect(holder).NotTo(HaveKey(in.IP))
				holder[in.IP] = list.Items[i].Name
			}
		}
		g.Expect(holder).To(HaveLen(many))
	}).Should(Succeed())
}

// rejected returns how many refusals the metrics count of a pool for a reason.
func rejected(g Gomega, pool, reason string) float64 {
	return valueOf(g, registry, "purelb_address_pool_allocation_rejected_total", "pool", pool, "reason", reason)
}

// waiting returns how many Services the metrics say wait for addresses of a pool, and why.
func waiting(pool, reason string) func(Gomega) float64 {
	return func(g Gomega) float64 {
		return valueOf(g, registry, "purelb_services_waiting", "pool", pool, "reason", reason)
	}
}

// valueOf returns the value of a counter or gauge with some labels, or 0 if there is none.
func valueOf(g Gomega, metrics prometheus.Gatherer, name string, namesAndValues ...string) float64 {
	families, err := metrics.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	wanted := map[string]string{}
	for i := 0; i < len(namesAndValues); i += 2 {
		wanted[namesAndValues[i]] = namesAndValues[i+1]
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == name && maps.Equal(labels, wanted) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
