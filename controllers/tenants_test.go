package controllers_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/cmd/kubectl-purelb/plugin"
)

// tenant makes a namespace, or gives one of an earlier run the labels.
func tenant(t *testing.T, name string, labels map[string]string) *corev1.Namespace {
	t.Helper()
	g, ctx := NewWithT(t), context.Background()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Expect(client.IgnoreAlreadyExists(api.Create(ctx, ns.DeepCopy()))).To(Succeed())
	fetch(g, ns)
	delete(ns.Labels, "tier")
	for key, value := range labels {
		ns.Labels[key] = value
	}
	g.Expect(api.Update(ctx, ns)).To(Succeed())
	return ns
}

func inNamespace(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Namespace = name }
}

func loadBalancerIP(addr string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.LoadBalancerIP = addr }
}

// TestServiceNamespaceIsSelected labels a namespace so that its Services may use a group, and takes
// the label away.
func TestServiceNamespaceIsSelected(t *testing.T) {
	g := begin(t)
	tenant(t, "tenant-gold", map[string]string{"tier": "gold"})
	free := tenant(t, "tenant-free", nil)
	group := serviceGroup(
		t, "selective",
		"{remote: {pool: 172.16.80.1-172.16.80.9, subnet: 172.16.80.0/24}, allowedNamespaces: {from: Selector, selector: "+
			"{matchLabels: {tier: gold}}}}",
	)
	gold := service(t, "gold", ofGroup("selective"), inNamespace("tenant-gold"))
	g.Eventually(ingress(gold)).Should(Equal([]string{"172.16.80.1"}))
	svc := service(t, "free", ofGroup("selective"), inNamespace("tenant-free"))
	const no = "ServiceGroup selective is not for namespace tenant-free: ask for another one, or have its administrator " +
		"select the namespace in spec.allowedNamespaces"
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("False NotAllowed: " + no))
	g.Eventually(eventsOf(svc, v1.EventAllocationFailed)).Should(Equal([]string{"purelb-allocator: NotAllowed: " + no}))

	patch(t, free, `{"metadata":{"labels":{"tier":"gold"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"172.16.80.2"}))
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("True Allocated: 172.16.80.2 from pool selective"))

	// The Service keeps the address when the label goes, and says so; so does the group.
	patch(t, free, `{"metadata":{"labels":{"tier":null}}}`)
	const kept = "ServiceGroup selective is not for namespace tenant-free any more: the Service keeps what it has, and " +
		"gets nothing else of it"
	g.Eventually(condition(svc, v1.ConditionAllocated)).
		Should(Equal("True Allocated: 172.16.80.2 from pool selective; " + kept))
	g.Eventually(eventsOf(svc, v1.EventConfigurationWarning)).Should(Equal([]string{"purelb-allocator: " + kept}))
	g.Eventually(ready(group)).
		Should(Equal("True Accepted: 1 range; spec.allowedNamespaces: leaves out namespaces with 1 address in use by 1 " +
			"Service (tenant-free/free): " +
			"they stay until their Services go or ask for another group"))
	g.Expect(ingress(svc)(g)).To(Equal([]string{"172.16.80.2"}))
	late := service(t, "late", ofGroup("selective"), inNamespace("tenant-free"))
	g.Eventually(condition(late, v1.ConditionAllocated)).Should(HavePrefix("False NotAllowed: "))

	// The group is opened.
	patch(t, group, `{"spec":{"allowedNamespaces":null}}`)
	g.Eventually(ingress(late)).Should(Equal([]string{"172.16.80.3"}))
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("True Allocated: 172.16.80.2 from pool selective"))
	g.Eventually(ready(group)).Should(Equal("True Accepted: 1 range"))
	g.Expect(eventsOf(svc, v1.EventAddressReleased)(g)).To(BeEmpty())
}

// comeBacks counts how often TestServiceComesBack has run: each time has a pool of its own, as the
// manager remembers who had which address.
var comeBacks int

// TestServiceComesBack deletes Services, of which one is made again.
func TestServiceComesBack(t *testing.T) {
	g := begin(t)
	comeBacks++
	addr := func(n int) []string { return []string{fmt.Sprintf("172.30.%d.%d", comeBacks, n)} }
	group := serviceGroup(t, "sticky", fmt.Sprintf(
		"{remote: {pool: %s-%s, subnet: 172.30.0.0/16}, stickyFor: 24h}", addr(1)[0], addr(3)[0],
	))
	first, second := service(t, "first", ofGroup("sticky")), (*corev1.Service)(nil)
	g.Eventually(ingress(first)).Should(Equal(addr(1)))
	second = service(t, "second", ofGroup("sticky"))
	g.Eventually(ingress(second)).Should(Equal(addr(2)))
	remove(t, first)
	remove(t, second)

	third := service(t, "third", ofGroup("sticky"))
	g.Eventually(ingress(third)).Should(Equal(addr(3)), "the only one that is left to no other")
	second = service(t, "second", ofGroup("sticky"))
	g.Eventually(ingress(second)).Should(Equal(addr(2)), "as before")
	fourth := service(t, "fourth", ofGroup("sticky"))
	g.Eventually(ingress(fourth)).Should(Equal(addr(1)), "nothing else is free")
	first = service(t, "first", ofGroup("sticky"))
	g.Eventually(condition(first, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))

	remove(t, second)
	g.Eventually(ingress(first)).Should(Equal(addr(2)))
	remove(t, first)
	remove(t, third)
	patch(t, group, `{"spec":{"stickyFor":"0s"}}`)
	g.Eventually(func(g Gomega) int64 { return fetch(g, group).Status.ObservedGeneration }).Should(BeEquivalentTo(2))
	g.Eventually(ingress(service(t, "third", ofGroup("sticky")))).Should(Equal(addr(2)), "the first one")
}

// TestServiceReservation keeps an address for a Service before that exists, while it exists, and
// afterwards.
func TestServiceReservation(t *testing.T) {
	g := begin(t)
	group := serviceGroup(t, "reserving",
		"{remote: {pool: 172.16.81.1-172.16.81.3, subnet: 172.16.81.0/24, v6pool: {pool: 'fd81::1-fd81::4', subnet: "+
			"'fd81::/64'}}, "+
			"reservations: [{address: 172.16.81.1, service: test/kept}, {address: 'fd81::1', service: test/kept}]}")
	counts := func(g Gomega) string {
		s := fetch(g, group).Status
		g.Expect(s.Pools).To(HaveLen(2))
		return fmt.Sprintf("IPv4 %d+%d+%d IPv6 %d+%d+%d, range %d of %d", s.AllocatedIPv4, s.ReservedIPv4, s.AvailableIPv4,
			s.AllocatedIPv6, s.ReservedIPv6, s.AvailableIPv6,
			s.Pools[0].Reserved, s.Pools[0].Capacity)
	}
	g.Eventually(counts).Should(Equal("IPv4 0+1+2 IPv6 0+1+3, range 1 of 3"))
	others := []*corev1.Service{service(t, "first", ofGroup("reserving")), service(t, "second", ofGroup("reserving"))}
	g.Eventually(func(g Gomega) []string { return append(ingress(others[0])(g), ingress(others[1])(g)...) }).
		Should(ConsistOf("172.16.81.2", "172.16.81.3"))
	third := service(t, "third", ofGroup("reserving"))
	g.Eventually(condition(third, v1.ConditionAllocated)).
		Should(Equal("False Exhausted: ServiceGroup reserving has no free IPv4 address" + addRange))
	g.Eventually(counts).Should(Equal("IPv4 2+1+0 IPv6 0+1+3, range 1 of 3"))

	for range 2 { // and again, when it was deleted
		kept := service(t, "kept", dualStack)
		g.Eventually(ingress(kept)).Should(Equal([]string{"172.16.81.1", "fd81::1"}), "although it does not name the group")
		g.Eventually(counts).Should(Equal("IPv4 3+0+0 IPv6 1+0+3, range 0 of 3"))
		remove(t, kept)
	}
	waitUntilAllocated(t)
	g.Expect(ingress(third)(g)).To(BeEmpty())
	patch(t, group, `{"spec":{"reservations":null}}`)
	g.Eventually(ingress(third)).Should(Equal([]string{"172.16.81.1"}))

	// Whoever has an address that is reserved afterwards keeps it.
	patch(t, group, `{"spec":{"reservations":[{"address":"172.16.81.1","service":"test/kept"}]}}`)
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(Equal(
		"True Allocated: 172.16.81.1 from pool reserving; 172.16.81.1 is reserved for Service test/kept: this one keeps it " +
			"until it asks for another one"))
	g.Eventually(ready(group)).
		Should(Equal("True Accepted: 2 ranges; spec.reservations: 172.16.81.1, reserved for Service test/kept, is in use " +
			"by Service test/third, " +
			"which keeps it until it goes or asks for another one"))
	patch(t, group, `{"spec":{"reservations":[{"address":"172.16.81.9","service":"test/kept"}]}}`)
	g.Eventually(ready(group)).
		Should(Equal(
			`False Invalid: spec.reservations[0].address: Invalid value: "172.16.81.9": is in no pool of the group: add it to ` +
				`one, or remove the reservation`,
		))
	g.Expect(ingress(third)(g)).To(Equal([]string{"172.16.81.1"}))
}

// TestServiceAutoAssign has a second group for Services that name none.
func TestServiceAutoAssign(t *testing.T) {
	g := begin(t)
	group := serviceGroup(t, "default", "{remote: {pool: 172.16.82.1, subnet: 172.16.82.0/24}}")
	first := service(t, "unnamed-1")
	g.Eventually(ingress(first)).Should(Equal([]string{"172.16.82.1"}))
	second := service(t, "unnamed-2")
	g.Eventually(condition(second, v1.ConditionAllocated)).
		Should(Equal("False Exhausted: ServiceGroup default has no free IPv4 address" + addRange))
	more := serviceGroup(t, "more", "{remote: {pool: 172.16.83.1, subnet: 172.16.83.0/24}, autoAssign: true}")
	g.Eventually(ingress(second)).Should(Equal([]string{"172.16.83.1"}))
	third := service(t, "unnamed-3")
	g.Eventually(condition(third, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))
	remove(t, second)
	g.Eventually(ingress(third)).Should(Equal([]string{"172.16.83.1"}), "what another group releases")
	patch(t, more, `{"spec":{"autoAssign":false}}`)
	patch(t, group, `{"spec":{"autoAssign":false}}`)
	fourth := service(t, "unnamed-4")
	g.Eventually(condition(fourth, v1.ConditionAllocated)).
		Should(Equal("False NotAllowed: ServiceGroup default is only for Services that name it (autoAssign: false): " +
			"name it, or another one, by annotation purelb.io/service-group"))
	waitUntilAllocated(t)
	g.Expect(condition(third, v1.ConditionAllocated)(g)).To(Equal("True Allocated: 172.16.83.1 from pool more"))
}

// TestAttackForbiddenGroup has a user ask in every way for an address of a group that is not for
// the user's namespace: by the group's name, an address, the deprecated field, the sharing key of a
// Service that has one, and a status that shows one. This test shows the row "get an address of a
// ServiceGroup that is not for the namespace" of docs/trust.md.
func TestAttackForbiddenGroup(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	tenant(t, "tenant-gold", map[string]string{"tier": "gold"})
	tenant(t, "tenant-free", map[string]string{"tier": "free"})
	serviceGroup(t, "forbidden",
		"{remote: {pool: 172.16.84.1-172.16.84.9, subnet: 172.16.84.0/24}, shareAcrossNamespaces: true, "+
			"allowedNamespaces: {from: Selector, selector: {matchLabels: {tier: gold}}}}")
	key := annotated(v1.AnnotationAllowSharedIP, "k")
	victim := service(t, "victim", ofGroup("forbidden"), key, onPort(80), inNamespace("tenant-gold"))
	g.Eventually(ingress(victim)).Should(Equal([]string{"172.16.84.1"}))
	const no = "False NotAllowed: ServiceGroup forbidden is not for namespace tenant-free: ask for another one, or have " +
		"its administrator select the namespace in spec.allowedNamespaces"
	for name, change := range map[string][]func(*corev1.Service){
		"by-name":    {ofGroup("forbidden")},
		"by-address": {annotated(v1.AnnotationAddresses, "172.16.84.2")},
		"by-field":   {loadBalancerIP("172.16.84.2")},
		"by-key":     {ofGroup("forbidden"), key, onPort(443)},
		"by-both":    {annotated(v1.AnnotationAddresses, "172.16.84.1"), key, onPort(443)},
		"by-record": {
			ofGroup("forbidden"), annotated(v1.AnnotationAllocatedFrom, "forbidden"),
			annotated(v1.AnnotationAllocatedBy, v1.Brand),
		},
	} {
		attacker := service(t, name, append(change, inNamespace("tenant-free"))...)
		g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(no), name)
		g.Expect(ingress(attacker)(g)).To(BeEmpty(), name)
	}

	// Whoever may write the status shows an address there, and gets none.
	attacker := service(t, "by-status", ofGroup("nowhere"), inNamespace("tenant-free"))
	g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(HavePrefix("False NoSuchGroup: "))
	g.Expect(overwrite(ctx, attacker, "172.16.84.3")).To(Succeed())
	patch(t, attacker, `{"metadata":{"annotations":{"purelb.io/service-group":"forbidden"}}}`)
	g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(no))
	g.Expect(condition(attacker, v1.ConditionAllocationRecord)(g)).To(Equal("False Recorded: none"))
	g.Expect(ingress(victim)(g)).To(Equal([]string{"172.16.84.1"}))
}

// TestAttackReservedAddress has a user ask in every way for an address that is reserved for a
// Service of another namespace, while that Service does not exist and while it does. This test
// shows the row "get an address that is reserved for another Service" of docs/trust.md.
func TestAttackReservedAddress(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	tenant(t, "tenant-gold", map[string]string{"tier": "gold"})
	tenant(t, "tenant-free", nil)
	serviceGroup(t, "keeping",
		"{remote: {pool: 172.16.85.1-172.16.85.2, subnet: 172.16.85.0/24}, shareAcrossNamespaces: true, "+
			"reservations: [{address: 172.16.85.1, service: tenant-gold/victim}]}")
	key := annotated(v1.AnnotationAllowSharedIP, "k")
	taker := service(t, "taker", ofGroup("keeping"), inNamespace("tenant-free"))
	g.Eventually(ingress(taker)).Should(Equal([]string{"172.16.85.2"}))
	const no = "False AddressInUse: 172.16.85.1 is reserved for a Service of another namespace: no other Service gets " +
		"it, and none shares it"
	attack := func(round string) {
		for name, try := range map[string]struct {
			change []func(*corev1.Service)
			want   string
		}{
			"by-name": {
				[]func(*corev1.Service){ofGroup("keeping")},
				"False Exhausted: ServiceGroup keeping has no free IPv4 address" + addRange,
			},
			"by-address": {[]func(*corev1.Service){annotated(v1.AnnotationAddresses, "172.16.85.1")}, no},
			"by-field":   {[]func(*corev1.Service){loadBalancerIP("172.16.85.1")}, no},
			"by-both":    {[]func(*corev1.Service){annotated(v1.AnnotationAddresses, "172.16.85.1"), key, onPort(443)}, no},
		} {
			attacker := service(t, name+round, append(try.change, inNamespace("tenant-free"))...)
			g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(try.want), name)
			g.Expect(ingress(attacker)(g)).To(BeEmpty(), name)
		}
	}
	attack("-before")
	namesake := service(t, "victim", ofGroup("keeping"), inNamespace("tenant-free"))
	g.Eventually(condition(namesake, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))

	// Whoever may write the status shows the address there; the Service that it is kept for gets it
	// all the same, and the other one shows it no more.
	forger := service(t, "by-status", ofGroup("nowhere"), inNamespace("tenant-free"))
	g.Eventually(condition(forger, v1.ConditionAllocated)).Should(HavePrefix("False NoSuchGroup: "))
	g.Expect(overwrite(ctx, forger, "172.16.85.1")).To(Succeed())
	patch(t, forger, `{"metadata":{"annotations":{"purelb.io/service-group":"keeping"}}}`)
	g.Eventually(condition(forger, v1.ConditionAllocated)).Should(HavePrefix("False Exhausted: "))
	victim := service(t, "victim", ofGroup("keeping"), key, onPort(80), inNamespace("tenant-gold"))
	g.Eventually(ingress(victim)).Should(Equal([]string{"172.16.85.1"}))
	g.Eventually(ingress(forger)).Should(BeEmpty())
	attack("-after")
	byKey := service(t, "by-key", ofGroup("keeping"), key, onPort(443), inNamespace("tenant-free"))
	g.Eventually(condition(byKey, v1.ConditionAllocated)).Should(Equal(no))
	g.Expect(ingress(victim)(g)).To(Equal([]string{"172.16.85.1"}))
}

// tenantsPage returns docs/how-to/tenants.md with single spaces, and the objects of its manifests in
// order.
func tenantsPage(g Gomega) (text string, objects []client.Object) {
	page, err := os.ReadFile("../docs/how-to/tenants.md")
	g.Expect(err).NotTo(HaveOccurred())
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		for _, document := range bytes.Split(block[1], []byte("---\n")) {
			text, err := yaml.ToJSON(document)
			g.Expect(err).NotTo(HaveOccurred())
			object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), text)
			g.Expect(err).NotTo(HaveOccurred(), "%s", document)
			objects = append(objects, object.(client.Object))
		}
	}
	return strings.Join(strings.Fields(string(page)), " "), objects
}

// TestTenantsPage applies the manifests of docs/how-to/tenants.md, does what the page says, and
// compares what comes of it with the page.
func TestTenantsPage(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	page, objects := tenantsPage(g)
	says := func(text string) { t.Helper(); g.Expect(page).To(ContainSubstring(text)) }
	services, groups := map[string]*corev1.Service{}, map[string]*v1.ServiceGroup{}
	var quota *corev1.ResourceQuota
	for _, object := range objects {
		switch x := object.(type) {
		case *corev1.Namespace:
			tenant(t, x.Name, x.Labels)
		case *corev1.ResourceQuota:
			quota = x
		case *corev1.Service:
			services[x.Name] = x
		case *v1.ServiceGroup:
			groups[x.Name] = x
			create(t, x)
		}
	}
	shop, web, public := services["shop"], services["web"], groups["public"]
	create(t, shop)
	const no = "ServiceGroup public is not for namespace team-b: ask for another one, or have its administrator select " +
		"the namespace in spec.allowedNamespaces"
	g.Eventually(condition(shop, v1.ConditionAllocated)).Should(Equal("False NotAllowed: " + no))
	says("Warning: " + no)

	teamB := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}
	patch(t, teamB, `{"metadata":{"labels":{"network":"public"}}}`)
	g.Eventually(ingress(shop)).Should(Equal([]string{"198.51.100.2"}))
	says("LoadBalancer 10.96.12.201 198.51.100.2 ")
	patch(t, teamB, `{"metadata":{"labels":{"network":null}}}`)
	const kept = "198.51.100.2 from pool public; ServiceGroup public is not for namespace team-b any more: the Service " +
		"keeps what it has, and gets nothing else of it"
	g.Eventually(condition(shop, v1.ConditionAllocated)).Should(Equal("True Allocated: " + kept))
	says(kept)
	const leftOut = "1 range; spec.allowedNamespaces: leaves out namespaces with 1 address in use by 1 Service " +
		"(team-b/shop): they stay until their Services go or ask for another group"
	g.Eventually(ready(public)).Should(Equal("True Accepted: " + leftOut))
	says(leftOut)
	patch(t, shop, `{"metadata":{"annotations":{"purelb.io/service-group":"default"}}}`)
	g.Eventually(ingress(shop)).Should(Equal([]string{"192.168.1.240"}))
	patch(t, shop, `{"metadata":{"annotations":{"purelb.io/addresses":"198.51.100.3"}}}`)
	g.Eventually(condition(shop, v1.ConditionAllocated)).Should(HavePrefix("False NotAllowed: "))
	remove(t, shop)

	patch(t, public, `{"spec":{"autoAssign":true}}`)
	patch(t, groups["default"], `{"spec":{"autoAssign":false}}`)
	g.Eventually(func(g Gomega) {
		read, err := plugin.ReadObjects(ctx, api, namespace, "")
		g.Expect(err).NotTo(HaveOccurred())
		cluster, err := plugin.NewCluster(ctx, read, namespace)
		g.Expect(err).NotTo(HaveOccurred())
		var table strings.Builder
		g.Expect(plugin.PoolListOf(cluster).WriteText(&table, plugin.Style{})).To(Succeed())
		g.Expect(page).To(ContainSubstring(strings.Join(strings.Fields(table.String()), " ")))
	}).Should(Succeed())

	create(t, web)
	g.Eventually(ingress(web)).Should(Equal([]string{"198.51.100.1"}))
	says("LoadBalancer 10.96.55.17 198.51.100.1 ")
	asks := service(t, "api", inNamespace("team-a"), annotated(v1.AnnotationAddresses, "198.51.100.1"))
	const reserved = "198.51.100.1 is reserved for Service team-a/web: no other Service gets it, and none shares it"
	g.Eventually(condition(asks, v1.ConditionAllocated)).Should(Equal("False AddressInUse: " + reserved))
	says("Warning: " + reserved)
	remove(t, asks)
	g.Eventually(func(g Gomega) string {
		s := fetch(g, public).Status
		return fmt.Sprintf("%d %d %d", s.AllocatedIPv4, s.ReservedIPv4, s.AvailableIPv4)
	}).Should(Equal("1 0 8"))
	says("{.status.allocatedIPv4} {.status.availableIPv4}' 1 8 ")

	// There is no quota controller here that counts the Services.
	create(t, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: quota.Spec.Hard}
	g.Expect(api.Status().Update(ctx, quota)).To(Succeed())
	second := web.DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: "second"}
	second.Spec.ClusterIP, second.Spec.ClusterIPs, second.Spec.Ports = "", nil, []corev1.ServicePort{{Port: 80}}
	var refusal error
	g.Eventually(func() error {
		refusal = api.Create(ctx, second.DeepCopy(), client.DryRunAll)
		return refusal
	}).Should(HaveOccurred())
	says(refusal.Error())
}
