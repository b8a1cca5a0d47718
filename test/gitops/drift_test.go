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

// dryRunDiff returns the difference that applying an object once more would make. GitOps
// tools find drift in this way.
func dryRunDiff(g Gomega, u *unstructured.Unstructured) string {
	ctx := context.Background()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(u.GroupVersionKind())
	g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(u), now)).To(Succeed())
	applied := u.DeepCopy()
	g.Expect(applyStrictly(ctx, applied, client.DryRunAll)).To(Succeed())
	for _, o := range []*unstructured.Unstructured{now, applied} {
		o.SetManagedFields(nil)
		unstructured.RemoveNestedField(o.Object, "status")
	}
	return cmp.Diff(now.Object, applied.Object)
}

const testServices = `
- apiVersion: v1
  kind: Service
  metadata: {name: plain, namespace: test, labels: {app: a}, annotations: {example.com/mine: kept}}
  spec: {type: LoadBalancer, selector: {app: a}, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: asked, namespace: test, annotations: {purelb.io/addresses: 192.0.2.111}}
  spec: {type: LoadBalancer, externalTrafficPolicy: Cluster, allocateLoadBalancerNodePorts: false, selector: {app: a},
    ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata: {name: local, namespace: test}
  spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: a}, ports: [{port: 80}]}
`

// TestDrift applies what users apply, waits until the controllers have written to all
// objects, and checks that none differs from what was applied.
func TestDrift(t *testing.T) {
	g, ctx := startOnce(t), t.Context()
	objects, err := buildFolder("config/samples")
	g.Expect(err).NotTo(HaveOccurred())
	pool, err := buildFolder("config/samples/pool")
	g.Expect(err).NotTo(HaveOccurred())
	objects = append(objects, pool...)
	var parsed []map[string]any
	g.Expect(yaml.Unmarshal([]byte(testServices), &parsed)).To(Succeed())
	for _, content := range parsed {
		objects = append(objects, &unstructured.Unstructured{Object: content})
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "drifting"}}
	g.Expect(kubeClient.Create(ctx, node)).To(Succeed())
	runAgent(t, node.Name, "default")
	t.Cleanup(func() { // also after a failure: the next tests must not find these objects
		for _, u := range slices.Backward(objects) {
			g.Expect(client.IgnoreNotFound(kubeClient.Delete(context.Background(), u))).To(Succeed())
			g.Eventually(func() bool {
				return apierrors.IsNotFound(kubeClient.Get(context.Background(), client.ObjectKeyFromObject(u), u))
			}).Should(BeTrue(), u.GetName())
		}
		g.Expect(kubeClient.Delete(context.Background(), node)).To(Succeed())
	})
	for _, u := range objects {
		g.Expect(applyStrictly(ctx, u.DeepCopy())).To(Succeed())
	}
	written := map[string]string{ // by kind, the field manager of the controller that writes to it
		"LBNodeAgent": "purelb-lbnodeagent", "ServiceGroup": "purelb-servicegroup", "Service": "purelb-allocator",
	}
	for _, u := range objects {
		now := u.DeepCopy()
		g.Eventually(func(g Gomega) []string {
			g.Expect(kubeClient.Get(ctx, client.ObjectKeyFromObject(u), now)).To(Succeed())
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
		g.Expect(kubeClient.Get(ctx, key, override)).To(Succeed())
		g.Expect(override.Status.LoadBalancer.Ingress).To(HaveLen(1))
		g.Expect(override.Annotations).To(HaveKey(v1.AnnotationLocalOverride))
		g.Expect(override.Spec.ExternalTrafficPolicy).To(Equal(corev1.ServiceExternalTrafficPolicyCluster))
	}).Should(Succeed())

	i := slices.IndexFunc(objects, func(u *unstructured.Unstructured) bool { return u.GetName() == "local" })
	for j, u := range objects {
		if j != i {
			// A controller may write between the two reads: try again.
			g.Eventually(func(g Gomega) string { return dryRunDiff(g, u) }).Should(BeEmpty(), "%s %s", u.GetKind(), u.GetName())
		}
	}
	g.Eventually(func(g Gomega) string { return dryRunDiff(g, objects[i]) }).
		Should(And(ContainSubstring(`"externalTrafficPolicy"`), ContainSubstring(`"Local"`)))
	// What the documentation recommends instead does not drift.
	g.Expect(unstructured.SetNestedField(objects[i].Object, "Cluster", "spec", "externalTrafficPolicy")).To(Succeed())
	g.Expect(applyStrictly(ctx, objects[i].DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega) string { return dryRunDiff(g, objects[i]) }).Should(BeEmpty())
}
