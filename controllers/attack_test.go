package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// overwrite writes addresses into a Service, as another controller may.
func overwrite(ctx context.Context, svc *corev1.Service, addresses ...string) error {
	for {
		stored := &corev1.Service{}
		if err := api.Get(ctx, client.ObjectKeyFromObject(svc), stored); err != nil {
			return err
		}
		stored.Status.LoadBalancer.Ingress = nil
		for _, a := range addresses {
			stored.Status.LoadBalancer.Ingress = append(stored.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		if err := api.Status().Update(ctx, stored, client.FieldOwner("another")); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// TestAttackAllocatorAnnotations edits what the manager writes on Services for people to
// read: the manager writes it again, and nothing else changes. This test shows the row "take or keep
// an address that was not allocated" of docs/trust.md.
func TestAttackAllocatorAnnotations(t *testing.T) {
	g := begin(t)
	startNodes(t, g, "10.60.0", "node1")
	serviceGroup(t, "forged-1", "remote: {pool: 172.16.60.1-172.16.60.9, subnet: 172.16.60.0/24}")
	serviceGroup(t, "forged-2", "remote: {pool: 172.16.61.1-172.16.61.9, subnet: 172.16.61.0/24}")
	svc := service(t, "forger", ofGroup("forged-1"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	written := fetch(g, svc).Annotations
	patch(t, svc, fmt.Sprintf(`{"metadata":{"annotations":{%q:null,%q:%q,%q:"z",%q:"local"}}}`,
		v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, strings.Repeat("z", 300), v1.AnnotationAllocatedKey,
		v1.AnnotationPoolType))
	g.Eventually(func(g Gomega) map[string]string { return fetch(g, svc).Annotations }).Should(Equal(written))
	g.Expect(ingress(svc)(g)).To(Equal([]string{"172.16.60.1"}))
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("True Allocated: 172.16.60.1 from pool forged-1"))
	for _, e := range asked(g, "node1") {
		g.Expect(e.ServiceGroup).NotTo(ContainSubstring("zzz"))
	}

	// A Service that pretends to have an allocation gets nothing by that.
	late := service(
		t, "claims", ofGroup("forged-2"), annotated(v1.AnnotationAllocatedBy, v1.Brand),
		annotated(v1.AnnotationAllocatedFrom, "forged-1"),
	)
	g.Eventually(ingress(late)).Should(Equal([]string{"172.16.61.1"}))
	g.Expect(late.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "forged-2"))
}

// TestFaultAnotherController has another controller write its own address over those of
// a Service, once and then again and again. The manager doubles its pauses, from one second on:
// what it has restored n times has taken it 2ⁿ⁻¹-1 seconds at the least, however fast the machine is.
// This test shows the row "another controller writes into the status of a Service" of docs/trust.md.
func TestFaultAnotherController(t *testing.T) {
	g := begin(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	startNodes(t, g, "10.62.0", "node1")
	serviceGroup(t, "contested", "remote: {pool: 172.16.62.1-172.16.62.9, subnet: 172.16.62.0/24}")
	svc := service(t, "contested", ofGroup("contested"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	start := time.Now()
	g.Expect(overwrite(ctx, svc, "8.8.8.8")).To(Succeed())
	g.Eventually(ingress(svc)).Should(Equal([]string{"172.16.62.1"}))
	g.Eventually(eventsOf(svc, v1.EventAddressOverwritten)).
		Should(ConsistOf(ContainSubstring(
			"Another controller has written 8.8.8.8 in place of 172.16.62.1, which is restored",
		)))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))

	var restores atomic.Int64
	ended := make(chan struct{})
	go func() { // a controller that overwrites at once, without end
		defer close(ended)
		for tick := time.NewTicker(5 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			stored := &corev1.Service{}
			if err := api.Get(ctx, client.ObjectKeyFromObject(svc), stored); err != nil {
				continue
			}
			if in := stored.Status.LoadBalancer.Ingress; len(in) == 1 && in[0].IP == "8.8.8.8" {
				continue
			}
			if overwrite(ctx, svc, "8.8.8.8") == nil {
				restores.Add(1)
			}
		}
	}()
	defer func() { cancel(); <-ended }()
	g.Eventually(restores.Load).Should(BeNumerically(">=", 3))
	n := restores.Load()
	g.Expect(time.Since(start)).To(BeNumerically(">=", (1<<(n-1)-1)*time.Second), "%d times restored, ever less often", n)
	// While the Service shows the other address, nodes announce neither.
	g.Eventually(func(g Gomega) []string {
		var all []string
		for _, e := range asked(g, "node1") {
			if !e.HandingOver {
				all = append(all, e.Address)
			}
		}
		return all
	}).Should(BeEmpty())
	cancel()
	<-ended
	g.Eventually(ingress(svc)).Should(Equal([]string{"172.16.62.1"}))
}

// TestAttackLongKey asks to share by a key that would not fit on the Service twice.
func TestAttackLongKey(t *testing.T) {
	g := begin(t)
	serviceGroup(t, "long-key", "remote: {pool: 172.16.63.1-172.16.63.9, subnet: 172.16.63.0/24}")
	svc := service(t, "long-key", ofGroup("long-key"), annotated(v1.AnnotationAllowSharedIP, strings.Repeat("k", 140<<10)))
	const why = "annotation purelb.io/allow-shared-ip is too long: it may have 253 bytes"
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("False Invalid: " + why))
	g.Eventually(eventsOf(svc, v1.EventAllocationFailed)).Should(Equal([]string{"purelb-allocator: Invalid: " + why}))
	patch(t, svc, `{"metadata":{"annotations":{"purelb.io/allow-shared-ip":"k"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"172.16.63.1"}))
}

// TestAttackSharerAcrossNamespaces edits a Service so that it would get the traffic of a
// Service of another namespace with which it shares an address.
func TestAttackSharerAcrossNamespaces(t *testing.T) {
	g := begin(t)
	const other = "test-younger" // of Services made in one second, the first by namespace is the older
	g.Expect(client.IgnoreAlreadyExists(api.Create(
		context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}},
	))).To(Succeed())
	serviceGroup(
		t, "shared-across", "{remote: {pool: 172.16.64.1-172.16.64.9, subnet: 172.16.64.0/24}, shareAcrossNamespaces: true}",
	)
	key := annotated(v1.AnnotationAllowSharedIP, "k")
	victim := service(t, "victim", ofGroup("shared-across"), key, onPort(80))
	g.Eventually(ingress(victim)).Should(Equal([]string{"172.16.64.1"}))
	attacker := service(
		t, "attacker", ofGroup("shared-across"), key, onPort(443), func(svc *corev1.Service) { svc.Namespace = other },
	)
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.64.1"}))
	patch(t, attacker, `{"spec":{"ports":[{"port":80}]}}`)
	g.Eventually(ingress(attacker)).Should(BeEmpty())
	g.Eventually(condition(attacker, v1.ConditionAllocated)).
		Should(Equal(
			"False PortConflict: 172.16.64.1 cannot be shared with a Service of another namespace: both have port TCP/80",
		))
	g.Expect(ingress(victim)(g)).To(Equal([]string{"172.16.64.1"}))
	waitUntilAllocated(t)
	g.Expect(condition(victim, v1.ConditionAllocated)(g)).To(Equal("True Allocated: 172.16.64.1 from pool shared-across"))
	patch(t, attacker, `{"spec":{"ports":[{"port":8080}]}}`)
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.64.1"}))
}

// TestAttackOlderSharer edits the older one of two Services of different namespaces that share
// an address so that it would get the traffic of the younger one. This test shows the row "take a
// shared address from a Service of another namespace" of docs/trust.md.
func TestAttackOlderSharer(t *testing.T) {
	g := begin(t)
	const other = "test-victim" // of Services made in one second, the first by namespace is the older
	g.Expect(client.IgnoreAlreadyExists(api.Create(
		context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}},
	))).To(Succeed())
	serviceGroup(
		t, "older-shares", "{remote: {pool: 172.16.67.1-172.16.67.9, subnet: 172.16.67.0/24}, shareAcrossNamespaces: true}",
	)
	key := annotated(v1.AnnotationAllowSharedIP, "k")
	attacker := service(t, "attacker", ofGroup("older-shares"), key, onPort(8080))
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.67.1"}))
	victim := service(
		t, "victim", ofGroup("older-shares"), key, onPort(443), func(svc *corev1.Service) { svc.Namespace = other },
	)
	g.Eventually(ingress(victim)).Should(Equal([]string{"172.16.67.1"}))

	patch(t, attacker, `{"spec":{"ports":[{"port":443}]}}`)
	g.Eventually(ingress(attacker)).Should(BeEmpty())
	g.Eventually(condition(attacker, v1.ConditionAllocated)).
		Should(Equal(
			"False PortConflict: 172.16.67.1 cannot be shared with a Service of another namespace: both have port TCP/443",
		))
	patch(t, attacker, `{"spec":{"ports":[{"port":8080}]}}`)
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.67.1"}))
	patch(t, attacker, `{"metadata":{"annotations":{"purelb.io/allow-shared-ip":"another"}}}`)
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.67.2"}))
	waitUntilAllocated(t)
	g.Expect(condition(victim, v1.ConditionAllocated)(g)).To(Equal("True Allocated: 172.16.67.1 from pool older-shares"))
	g.Expect(condition(victim, v1.ConditionAllocationRecord)(g)).
		To(Equal("True Recorded: 172.16.67.1 group=older-shares type=remote ports=TCP/443 key=k"))
	g.Expect(eventsOf(victim, v1.EventAddressReleased)(g)).To(BeEmpty())
	g.Expect(eventsOf(victim, v1.EventDuplicateAddress)(g)).To(BeEmpty())
}

// TestAttackSharerWithPolicyLocal lets a user join, by policy Local, the address of a Service of
// another namespace, or change to that policy afterwards: then endpoints of one would decide
// where the traffic of the other goes. This test shows the row "withdraw or move an address that a
// Service of another namespace shares" of docs/trust.md.
func TestAttackSharerWithPolicyLocal(t *testing.T) {
	g := begin(t)
	const other = "test-victim" // of Services made in one second, the first by namespace is the older
	g.Expect(client.IgnoreAlreadyExists(api.Create(
		context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}},
	))).To(Succeed())
	serviceGroup(
		t, "local-across", "{remote: {pool: 172.16.69.1-172.16.69.9, subnet: 172.16.69.0/24}, shareAcrossNamespaces: true}",
	)
	const why = "False SharingRefused: 172.16.69.1 cannot be shared with a Service of another namespace: one of the two " +
		"has externalTrafficPolicy Local"
	key, insists := annotated(v1.AnnotationAllowSharedIP, "k"), annotated(v1.AnnotationAllowLocal, "true")
	setPolicy := func(svc *corev1.Service, policy string) {
		t.Helper()
		patch(t, svc, fmt.Sprintf(`{"spec":{"externalTrafficPolicy":%q}}`, policy))
	}

	// The victim insists on its policy, so nobody joins.
	attacker := service(t, "attacker", ofGroup("nowhere"), key, onPort(443))
	victim := service(
		t, "victim", ofGroup("local-across"), key, onPort(80), policyLocal, insists,
		func(svc *corev1.Service) { svc.Namespace = other },
	)
	g.Eventually(ingress(victim)).Should(Equal([]string{"172.16.69.1"}))
	g.Eventually(condition(victim, v1.ConditionAllocationRecord)).
		Should(Equal("True Recorded: 172.16.69.1 group=local-across type=remote key=k"))
	patch(t, attacker, `{"metadata":{"annotations":{"purelb.io/service-group":"local-across"}}}`)
	g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(why))
	patch(
		t, attacker, `{"spec":{"externalTrafficPolicy":"Local"},"metadata":{"annotations":{"purelb.io/allow-local":"true"}}}`,
	)
	g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(why))

	// With policy Cluster both share. Who then changes it loses the address, although it is the
	// older one.
	setPolicy(attacker, "Cluster")
	setPolicy(victim, "Cluster")
	g.Eventually(ingress(attacker)).Should(Equal([]string{"172.16.69.1"}))
	setPolicy(attacker, "Local")
	g.Eventually(ingress(attacker)).Should(BeEmpty())
	g.Eventually(condition(attacker, v1.ConditionAllocated)).Should(Equal(why))
	waitUntilAllocated(t)
	g.Expect(condition(victim, v1.ConditionAllocated)(g)).To(Equal("True Allocated: 172.16.69.1 from pool local-across"))
	g.Expect(ingress(victim)(g)).To(Equal([]string{"172.16.69.1"}))
	g.Expect(eventsOf(victim, v1.EventAddressReleased)(g)).To(BeEmpty())
}

// TestPreferDualStackGetsTheOtherFamily releases an address of the family of which a Service
// has none.
func TestPreferDualStackGetsTheOtherFamily(t *testing.T) {
	g := begin(t)
	serviceGroup(
		t, "prefer",
		"remote: {v4pool: {pool: 172.16.65.1-172.16.65.9, subnet: 172.16.65.0/24}, v6pool: {pool: 'fd65::1', subnet: "+
			"'fd65::/64'}}",
	)
	holder := service(t, "holds-it", ofGroup("prefer"), dualStack)
	g.Eventually(ingress(holder)).Should(Equal([]string{"172.16.65.1", "fd65::1"}))
	svc := service(
		t, "prefers", ofGroup("prefer"),
		func(svc *corev1.Service) { svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack) },
	)
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal(
		"True Allocated: 172.16.65.2 from pool prefer; by PreferDualStack it gets an IPv6 address, too, as soon as " +
			"ServiceGroup prefer has one that is free"))
	remove(t, holder)
	g.Eventually(ingress(svc)).Should(Equal([]string{"172.16.65.2", "fd65::1"}))
	g.Eventually(condition(svc, v1.ConditionAllocated)).
		Should(Equal("True Allocated: 172.16.65.2, fd65::1 from pool prefer"))
}
