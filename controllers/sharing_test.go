package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

func annotated(name, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[name] = value }
}

func onPort(port int32) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Ports = []corev1.ServicePort{{Port: port}} }
}

func patch(t *testing.T, obj client.Object, body string) {
	t.Helper()
	NewWithT(t).Expect(api.Patch(context.Background(), obj,
		client.RawPatch("application/merge-patch+json", []byte(body)))).To(Succeed())
}

func TestServiceNamesAddresses(t *testing.T) {
	g := begin(t)
	serviceGroup(
		t, "named",
		"local: {v4pool: {pool: 10.30.0.0/28, subnet: 10.30.0.0/28}, v6pool: {pool: 'fd30::1-fd30::9', subnet: 'fd30::/64'}}",
	)
	first := service(
		t, "by-name", annotated(v1.AnnotationAddresses, " 10.30.0.7 "), annotated(v1.AnnotationServiceGroup, "elsewhere"),
		dualStack,
	)
	g.Eventually(ingress(first)).Should(Equal([]string{"10.30.0.7", "fd30::1"}))
	g.Expect(first.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "named"))
	g.Eventually(eventsOf(first, v1.EventConfigurationWarning)).Should(Equal([]string{
		"purelb-allocator: annotation purelb.io/service-group asks for ServiceGroup elsewhere, but 10.30.0.7 is of named, " +
			"and that decides"}))

	second := service(t, "by-field", func(svc *corev1.Service) { svc.Spec.LoadBalancerIP = "10.30.0.7" })
	g.Eventually(condition(second, v1.ConditionAllocated)).
		Should(Equal("False AddressInUse: 10.30.0.7 is in use by Service test/by-name"))
	patch(t, second, `{"spec":{"loadBalancerIP":"10.30.0.8"}}`)
	g.Eventually(ingress(second)).Should(Equal([]string{"10.30.0.8"}))
	patch(t, second, `{"spec":{"loadBalancerIP":"10.30.0.7"}}`)
	g.Eventually(condition(second, v1.ConditionAllocated)).
		Should(Equal("False AddressInUse: 10.30.0.7 is in use by Service test/by-name"))
	g.Expect(ingress(second)(g)).To(Equal([]string{"10.30.0.8"}), "until there is another in its place")
	remove(t, first)
	g.Eventually(ingress(second)).Should(Equal([]string{"10.30.0.7"}))
	patch(t, second, `{"spec":{"loadBalancerIP":""}}`)
	g.Eventually(condition(second, v1.ConditionAllocated)).Should(HavePrefix("True"))
	g.Expect(ingress(second)(g)).To(Equal([]string{"10.30.0.7"}))

	wrong := service(t, "wrong-name", annotated(v1.AnnotationAddresses, "10.30.0.3, ten"))
	g.Eventually(condition(wrong, v1.ConditionAllocated)).
		Should(Equal(`False Invalid: annotation purelb.io/addresses: "ten" is not an address`))
	patch(t, wrong, `{"metadata":{"annotations":{"purelb.io/addresses":"10.31.0.1"}}}`)
	g.Eventually(condition(wrong, v1.ConditionAllocated)).Should(HavePrefix("False AddressOutsidePools: "))
	serviceGroup(t, "grown", "remote: {pool: 10.31.0.1, subnet: 10.31.0.0/24}")
	g.Eventually(ingress(wrong)).Should(Equal([]string{"10.31.0.1"}))
}

func TestServicesShare(t *testing.T) {
	g := begin(t)
	serviceGroup(t, "sharing", "local: {pool: 10.32.0.1-10.32.0.9, subnet: 10.32.0.0/24}")
	web := service(t, "web", ofGroup("sharing"), annotated(v1.AnnotationAllowSharedIP, "k"), onPort(80))
	g.Eventually(ingress(web)).Should(Equal([]string{"10.32.0.1"}))
	tls := service(t, "tls", ofGroup("sharing"), annotated(v1.AnnotationAllowSharedIP, "k"), onPort(443))
	g.Eventually(ingress(tls)).Should(Equal([]string{"10.32.0.1"}))
	g.Expect(tls.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedKey, "k"))

	clash := service(t, "clash", ofGroup("sharing"), annotated(v1.AnnotationAllowSharedIP, "k"), onPort(80))
	g.Eventually(condition(clash, v1.ConditionAllocated)).
		Should(Equal("False PortConflict: 10.32.0.1 cannot be shared with Service test/web: both have port TCP/80"))
	g.Expect(ingress(clash)(g)).To(BeEmpty())

	// A Service that waited for the port gets the address when the port is free.
	patch(t, web, `{"spec":{"ports":[{"port":8080}]}}`)
	g.Eventually(ingress(clash)).Should(Equal([]string{"10.32.0.1"}))

	// Both Services report a clash, and keep the address.
	patch(t, web, `{"spec":{"ports":[{"port":443}]}}`)
	g.Eventually(condition(web, v1.ConditionAllocated)).
		Should(Equal("False PortConflict: 10.32.0.1 cannot be shared with Service test/tls: both have port TCP/443"))
	g.Eventually(condition(tls, v1.ConditionAllocated)).
		Should(Equal("False PortConflict: 10.32.0.1 cannot be shared with Service test/web: both have port TCP/443"))
	g.Expect(ingress(web)(g)).To(Equal([]string{"10.32.0.1"}))
	patch(t, web, `{"spec":{"ports":[{"port":8080}]}}`)
	for _, svc := range []*corev1.Service{web, tls} {
		g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("True Allocated: 10.32.0.1 from pool sharing"))
	}

	// A Service without the key reports that, and gets another address only if it asks.
	patch(t, clash, `{"metadata":{"annotations":{"purelb.io/allow-shared-ip":null}}}`)
	g.Eventually(condition(clash, v1.ConditionAllocated)).Should(HavePrefix("False SharingRefused: "))
	g.Expect(ingress(clash)(g)).To(Equal([]string{"10.32.0.1"}))
	patch(t, clash, `{"metadata":{"annotations":{"purelb.io/addresses":"10.32.0.5"}}}`)
	g.Eventually(ingress(clash)).Should(Equal([]string{"10.32.0.5"}))
	g.Eventually(func(g Gomega) map[string]string { return fetch(g, clash).Annotations }).
		ShouldNot(HaveKey(v1.AnnotationAllocatedKey))
	g.Eventually(condition(tls, v1.ConditionAllocated)).Should(HavePrefix("True"))
}

func TestServicesShareAcrossNamespaces(t *testing.T) {
	g := begin(t)
	const other = "test-other"
	g.Expect(client.IgnoreAlreadyExists(api.Create(
		context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}},
	))).To(Succeed())
	group := serviceGroup(t, "across", "{local: {pool: 10.33.0.1-10.33.0.9, subnet: 10.33.0.0/24}}")
	key := annotated(v1.AnnotationAllowSharedIP, "k")
	one := service(t, "here", ofGroup("across"), key, onPort(80))
	g.Eventually(ingress(one)).Should(Equal([]string{"10.33.0.1"}))
	two := service(t, "there", ofGroup("across"), key, onPort(443), annotated(v1.AnnotationAddresses, "10.33.0.1"),
		func(svc *corev1.Service) { svc.Namespace = other })
	g.Eventually(condition(two, v1.ConditionAllocated)).
		Should(HavePrefix(
			"False SharingRefused: 10.33.0.1 is in use by a Service of another namespace, and its ServiceGroup",
		))
	patch(t, group, `{"spec":{"shareAcrossNamespaces":true}}`)
	g.Eventually(ingress(two)).Should(Equal([]string{"10.33.0.1"}))
}

func TestServiceMultiPool(t *testing.T) {
	g := begin(t)
	lbNodeAgent(t, "multi", map[string]string{"multi": "yes"})
	node(t, "multi-1", map[string]string{"multi": "yes"})
	runAgent(t, "multi-1", eth("eth0", "10.34.1.9/24"))
	sg := serviceGroup(
		t, "multi",
		"local: {multiPool: true, v4pools: [{pool: 10.34.1.1-10.34.1.3, subnet: 10.34.1.0/24}, {pool: 10.34.2.1-10.34.2.3, "+
			"subnet: 10.34.2.0/24}]}",
	)
	g.Eventually(func(g Gomega) v1.AnnounceType {
		pools := fetch(g, sg).Status.Pools
		g.Expect(pools).To(HaveLen(2))
		return pools[1].Announce
	}).Should(Equal(v1.AnnounceVirtual))
	svc := service(t, "multi", ofGroup("multi"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.34.1.1"}))

	// When a node is in the other subnet, the Service gets an address of that, too.
	node(t, "multi-2", map[string]string{"multi": "yes"})
	runAgent(t, "multi-2", eth("eth0", "10.34.2.9/24"))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.34.1.1", "10.34.2.1"}))
	patch(t, svc, `{"metadata":{"annotations":{"purelb.io/multi-pool":"false"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.34.1.1"}))
}

func TestServiceIsAdopted(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	serviceGroup(t, "migrated", "remote: {pool: 10.35.0.1-10.35.0.9, subnet: 10.35.0.0/24}")
	ours := service(t, "adopted", ofGroup("nowhere"))
	g.Eventually(condition(ours, v1.ConditionAllocated)).Should(HavePrefix("False NoSuchGroup"))
	g.Eventually(func() error {
		fetch(g, ours)
		ours.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.35.0.7"}}
		return api.Status().Update(ctx, ours)
	}).Should(Succeed())
	patch(t, ours, `{"metadata":{"annotations":{"purelb.io/service-group":null}}}`)
	g.Eventually(condition(ours, v1.ConditionAllocated)).Should(Equal("True Allocated: 10.35.0.7 from pool migrated"))
	g.Expect(ours.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "migrated"))
}

// TestDuplicateIsRepaired writes the address of a Service into the status of a younger one, as a
// leader that is late to step down might: the younger one gives it up. This test shows the row "a
// leader that is late to step down allocates an address" of docs/trust.md.
func TestDuplicateIsRepaired(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	serviceGroup(t, "twice", "remote: {pool: 10.36.0.1-10.36.0.9, subnet: 10.36.0.0/24}")
	older := service(t, "older", ofGroup("twice"))
	g.Eventually(ingress(older)).Should(Equal([]string{"10.36.0.1"}))
	younger := service(t, "younger", ofGroup("twice"))
	g.Eventually(ingress(younger)).Should(Equal([]string{"10.36.0.2"}))

	// As a leader that was late to step down might write it.
	g.Eventually(func() error {
		fetch(g, younger)
		younger.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.36.0.1"}}
		return api.Status().Update(ctx, younger)
	}).Should(Succeed())
	g.Eventually(ingress(younger)).Should(Equal([]string{"10.36.0.2"}))
	g.Expect(ingress(older)(g)).To(Equal([]string{"10.36.0.1"}))
	g.Eventually(eventsOf(younger, v1.EventDuplicateAddress)).Should(Equal([]string{
		"purelb-allocator: 10.36.0.1 is Service test/older's: it is not shared, and this one gives it up"}))
}
