package gitops

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// drift is the difference that applying an object again would make. What a tool
// applies, it compares in this way.
func drift(g Gomega, u *unstructured.Unstructured) string {
	ctx := context.Background()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(u.GroupVersionKind())
	g.Expect(api.Get(ctx, client.ObjectKeyFromObject(u), now)).To(Succeed())
	again := u.DeepCopy()
	g.Expect(apply(ctx, again, client.DryRunAll)).To(Succeed())
	for _, o := range []*unstructured.Unstructured{now, again} {
		o.SetManagedFields(nil)
		unstructured.RemoveNestedField(o.Object, "status")
	}
	return cmp.Diff(now.Object, again.Object)
}

const services = `
- apiVersion: v1
  kind: Service
  metadata: {name: plain, namespace: test, labels: {app: a}, annotations: {example.com/mine: kept}}
  spec: {type: LoadBalancer, selector: {app: a}, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: asked, namespace: test, annotations: {purelb.io/addresses: 192.0.2.111}}
  spec: {type: LoadBalancer, externalTrafficPolicy: Cluster, allocateLoadBalancerNodePorts: false, selector: {app: a}, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: local, namespace: test}
  spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: a}, ports: [{port: 80}]}
`

// TestDrift applies what users do, waits until the controllers have written what
// they write, and finds all that was applied as it was.
func TestDrift(t *testing.T) {
	g, ctx := begin(t), t.Context()
	objects, err := build("config/samples")
	g.Expect(err).NotTo(HaveOccurred())
	var parsed []map[string]any
	g.Expect(yaml.Unmarshal([]byte(services), &parsed)).To(Succeed())
	for _, content := range parsed {
		objects = append(objects, &unstructured.Unstructured{Object: content})
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "drifting"}}
	g.Expect(api.Create(ctx, node)).To(Succeed())
	runAgent(t, node.Name, "default")
	t.Cleanup(func() { // also after a failure, or the tests that follow meet what is left
		for _, u := range slices.Backward(objects) {
			g.Expect(client.IgnoreNotFound(api.Delete(context.Background(), u))).To(Succeed())
			g.Eventually(func() bool {
				return apierrors.IsNotFound(api.Get(context.Background(), client.ObjectKeyFromObject(u), u))
			}).Should(BeTrue(), u.GetName())
		}
		g.Expect(api.Delete(context.Background(), node)).To(Succeed())
	})
	for _, u := range objects {
		g.Expect(apply(ctx, u.DeepCopy())).To(Succeed())
	}
	written := map[string]string{ // by kind, what tells that the controllers have been there
		"LBNodeAgent": "purelb-lbnodeagent", "ServiceGroup": "purelb-servicegroup", "Service": "purelb-allocator",
	}
	for _, u := range objects {
		now := u.DeepCopy()
		g.Eventually(func(g Gomega) []string {
			g.Expect(api.Get(ctx, client.ObjectKeyFromObject(u), now)).To(Succeed())
			var owners []string
			for _, f := range now.GetManagedFields() {
				owners = append(owners, f.Manager)
			}
			return owners
		}).Should(ContainElement(written[u.GetKind()]), "%s %s", u.GetKind(), u.GetName())
	}
	override := &corev1.Service{}
	key := client.ObjectKey{Namespace: "test", Name: "local"}
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(ctx, key, override)).To(Succeed())
		g.Expect(override.Status.LoadBalancer.Ingress).To(HaveLen(1))
		g.Expect(override.Annotations).To(HaveKey(v1.AnnotationLocalOverride))
		g.Expect(override.Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyCluster))
	}).Should(Succeed())

	i := slices.IndexFunc(objects, func(u *unstructured.Unstructured) bool { return u.GetName() == "local" })
	for j, u := range objects {
		if j != i {
			// Not at once: a controller may write between the two looks.
			g.Eventually(func(g Gomega) string { return drift(g, u) }).Should(BeEmpty(), "%s %s", u.GetKind(), u.GetName())
		}
	}
	g.Expect(drift(g, objects[i])).To(And(ContainSubstring(`"externalTrafficPolicy"`), ContainSubstring(`"Local"`)))
	// With what the documentation says to write instead there is none.
	g.Expect(unstructured.SetNestedField(objects[i].Object, "Cluster", "spec", "externalTrafficPolicy")).To(Succeed())
	g.Expect(apply(ctx, objects[i].DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega) string { return drift(g, objects[i]) }).Should(BeEmpty())
}
