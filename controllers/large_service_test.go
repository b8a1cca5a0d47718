package controllers_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestAttackForeignAnnotations fills a Service with annotations of somebody else. The manager
// caches none of them, and whatever it writes on the Service leaves them there, with all else
// that it does not cache.
func TestAttackForeignAnnotations(t *testing.T) {
	g := begin(t)
	startNodes(t, g, "10.68.0", "node1")
	serviceGroup(t, "large", "local: {pool: 10.68.0.1-10.68.0.9, subnet: 10.68.0.0/24}")
	const foreign = "example.com/config"
	config := strings.Repeat("x", 255<<10)
	svc := service(t, "large", ofGroup("large"), annotated(foreign, config), policyLocal, func(svc *corev1.Service) {
		svc.Labels, svc.Finalizers = map[string]string{"app": "large"}, []string{"example.com/keep"}
		svc.Spec.Selector, svc.Spec.LoadBalancerSourceRanges = map[string]string{"app": "large"}, []string{"192.0.2.0/24"}
		svc.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 80}, {Name: "more", Port: 81}}
	})
	t.Cleanup(func() { patch(t, svc, `{"metadata":{"finalizers":null}}`) })
	g.Eventually(func() error {
		fetch(g, svc)
		meta.SetStatusCondition(
			&svc.Status.Conditions, metav1.Condition{Type: "example.com/Seen", Status: metav1.ConditionTrue, Reason: "Seen"},
		)
		return api.Status().Update(context.Background(), svc, client.FieldOwner("another"))
	}).Should(Succeed())
	isUntouched := func() {
		t.Helper()
		fetch(g, svc)
		isKept := svc.Annotations[foreign] == config // a failure is not to print all of it
		g.Expect(isKept).To(BeTrue(), "the annotation has %d bytes", len(svc.Annotations[foreign]))
		g.Expect(svc.Labels).To(Equal(map[string]string{"app": "large"}))
		g.Expect(svc.Finalizers).To(Equal([]string{"example.com/keep"}))
		g.Expect(svc.Spec.Selector).To(Equal(map[string]string{"app": "large"}))
		g.Expect(svc.Spec.LoadBalancerSourceRanges).To(Equal([]string{"192.0.2.0/24"}))
		g.Expect(svc.Spec.Ports).To(HaveLen(2))
		g.Expect(svc.Spec.Ports[0].Name).To(Equal("web"))
		g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, "example.com/Seen")).To(BeTrue())
	}

	g.Eventually(ingress(svc)).Should(Equal([]string{"10.68.0.1"}))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Expect(svc.Annotations).To(HaveKeyWithValue(v1.AnnotationAllocatedFrom, "large"))
	g.Expect(svc.Annotations).To(HaveKey(v1.AnnotationAnnouncingIPv4))
	g.Eventually(func(g Gomega) corev1.ServiceExternalTrafficPolicy { return fetch(g, svc).Spec.ExternalTrafficPolicy }).
		Should(Equal(corev1.ServiceExternalTrafficPolicyCluster))
	isUntouched()
	seen := &corev1.Service{}
	g.Expect(cached.Get(context.Background(), client.ObjectKeyFromObject(svc), seen)).To(Succeed())
	g.Expect(seen.Annotations).NotTo(HaveKey(foreign), "the cache keeps it")
	g.Expect(seen.Annotations).To(HaveKeyWithValue(v1.AnnotationServiceGroup, "large"))

	patch(t, svc, `{"metadata":{"annotations":{"purelb.io/addresses":"10.68.0.7"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.68.0.7"}))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	isUntouched()

	patch(t, svc, `{"spec":{"type":"ClusterIP","loadBalancerSourceRanges":null}}`)
	g.Eventually(condition(svc, v1.ConditionAllocationRecord)).Should(BeEmpty())
	g.Eventually(func(g Gomega) map[string]string {
		ours := map[string]string{}
		for name, value := range fetch(g, svc).Annotations {
			if name != foreign {
				ours[name] = value
			}
		}
		return ours
	}).Should(HaveLen(2), "what the user has written")
	fetch(g, svc)
	isKept := svc.Annotations[foreign] == config
	g.Expect(isKept).To(BeTrue())
	g.Expect(svc.Labels).To(Equal(map[string]string{"app": "large"}))
	g.Expect(svc.Spec.Ports).To(HaveLen(2))
	g.Expect(meta.IsStatusConditionTrue(svc.Status.Conditions, "example.com/Seen")).To(BeTrue())
}

// TestAttackFullAnnotations leaves no room on a Service for the annotations of the manager: it
// gets its address, and says so. This test shows the row "keep a Service from saying what becomes of
// it, by annotations that leave no room for others" of docs/trust.md.
func TestAttackFullAnnotations(t *testing.T) {
	g := begin(t)
	startNodes(t, g, "10.70.0", "node1")
	serviceGroup(t, "full", "local: {pool: 10.70.0.1-10.70.0.9, subnet: 10.70.0.0/24}")
	const most = 256 << 10
	svc := service(t, "full", ofGroup("full"), annotated("example.com/config", strings.Repeat("x", most-100)))
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.70.0.1"}))
	g.Eventually(condition(svc, v1.ConditionAllocated)).Should(Equal("True Allocated: 10.70.0.1 from pool full"))
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Expect(svc.Annotations).NotTo(HaveKey(v1.AnnotationAllocatedFrom))

	// When there is room, they come.
	patch(t, svc, `{"metadata":{"annotations":{"example.com/config":"short","purelb.io/addresses":"10.70.0.3"}}}`)
	g.Eventually(ingress(svc)).Should(Equal([]string{"10.70.0.3"}))
	g.Eventually(func(g Gomega) map[string]string { return fetch(g, svc).Annotations }).Should(And(
		HaveKeyWithValue(v1.AnnotationAllocatedFrom, "full"), HaveKey(v1.AnnotationAnnouncingIPv4)))
}
