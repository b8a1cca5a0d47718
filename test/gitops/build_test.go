package gitops

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// TestSamplesHaveNoPool checks that who applies the samples as they are gets no addresses of a network that is not
// theirs: those of the sample of a ServiceGroup have to be replaced first.
func TestSamplesHaveNoPool(t *testing.T) {
	g := NewWithT(t)
	objects, err := buildFolder("config/samples")
	g.Expect(err).NotTo(HaveOccurred())
	for _, u := range objects {
		g.Expect(u.GetKind()).NotTo(Equal("ServiceGroup"))
	}
	pool, err := buildFolder("config/samples/pool")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(pool).To(HaveLen(1))
	g.Expect(pool[0].GetKind()).To(Equal("ServiceGroup"))
}

// TestBuild builds what users apply, each component by itself among it, decodes all objects strictly into their
// types, and lets the API server check those of kinds that it knows.
func TestBuild(t *testing.T) {
	g := startOnce(t)
	ctx := context.Background()
	scheme, err := newScheme()
	g.Expect(err).NotTo(HaveOccurred())
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	samples, err := buildFolder("config/samples")
	g.Expect(err).NotTo(HaveOccurred())
	built := map[string][]*unstructured.Unstructured{"samples": samples, "default": buildWith(t)}
	for _, component := range componentNames(t) {
		built[component] = buildWith(t, component)
	}
	for name, objects := range built {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(objects).NotTo(BeEmpty())
			asked := 0
			for _, u := range objects {
				text, err := json.Marshal(u.Object)
				g.Expect(err).NotTo(HaveOccurred())
				_, _, err = strict.Decode(text, nil, nil)
				g.Expect(err).NotTo(HaveOccurred(), "%s %s", u.GetKind(), u.GetName())
				err = applyStrictly(ctx, u, client.DryRunAll)
				if meta.IsNoMatchError(err) && u.GroupVersionKind().Group == "monitoring.coreos.com" {
					continue // no module carries the CRDs
				}
				g.Expect(err).NotTo(HaveOccurred())
				asked++
			}
			t.Logf("%d objects, %d of them accepted by the API server", len(objects), asked)
		})
	}
}

// findObject returns the object with a kind and name, in its type.
func findObject[T any](g *WithT, objects []*unstructured.Unstructured, kind, name string) *T {
	i := slices.IndexFunc(
		objects, func(u *unstructured.Unstructured) bool { return u.GetKind() == kind && u.GetName() == name },
	)
	g.Expect(i).NotTo(Equal(-1), "%s %s", kind, name)
	typed := new(T)
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, typed)).To(Succeed())
	return typed
}

// TestCertManager follows the certificate from its issuer to the manager's pods.
func TestCertManager(t *testing.T) {
	g := NewWithT(t)
	objects := buildWith(t, "cert-manager")
	cert := findObject[certmanagerv1.Certificate](g, objects, "Certificate", "purelb-webhook")
	service := findObject[corev1.Service](g, objects, "Service", "purelb-webhook")
	g.Expect(cert.Namespace).To(Equal(service.Namespace))
	g.Expect(cert.Spec.DNSNames).To(ContainElement(service.Name + "." + service.Namespace + ".svc"))
	signer := findObject[certmanagerv1.Issuer](g, objects, "Issuer", cert.Spec.IssuerRef.Name)
	authority := findObject[certmanagerv1.Certificate](g, objects, "Certificate", "purelb-authority")
	g.Expect(signer.Spec.CA.SecretName).To(Equal(authority.Spec.SecretName))
	g.Expect(findObject[certmanagerv1.Issuer](g, objects, "Issuer", authority.Spec.IssuerRef.Name).Spec.SelfSigned).
		NotTo(BeNil())
	hooks := findObject[unstructured.Unstructured](g, objects, "ValidatingWebhookConfiguration", "purelb-validating")
	g.Expect(hooks.GetAnnotations()).To(HaveKeyWithValue("cert-manager.io/inject-ca-from", cert.Namespace+"/"+cert.Name))

	pod := findObject[appsv1.Deployment](g, objects, "Deployment", "purelb-manager").Spec.Template.Spec
	i := slices.IndexFunc(
		pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == cert.Spec.SecretName },
	)
	g.Expect(i).NotTo(Equal(-1))
	g.Expect(pod.Containers[0].VolumeMounts).To(ContainElement(corev1.VolumeMount{
		Name: pod.Volumes[i].Name, MountPath: "/tmp/k8s-webhook-server/serving-certs", ReadOnly: true,
	}))
	g.Expect(pod.Containers[0].Args).NotTo(ContainElement(HavePrefix("--webhook-cert-dir")))
}

// TestNetworkPolicy holds the policy against the manager's pods: it selects them, and lets in the
// API server at the webhooks, readers of metrics from their namespaces, and nobody else.
func TestNetworkPolicy(t *testing.T) {
	g := NewWithT(t)
	objects := buildWith(t, "network-policy")
	policy := findObject[networkingv1.NetworkPolicy](g, objects, "NetworkPolicy", "purelb-manager")
	deployment := findObject[appsv1.Deployment](g, objects, "Deployment", "purelb-manager")
	g.Expect(policy.Namespace).To(Equal(deployment.Namespace))
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(selector.Matches(labels.Set(deployment.Spec.Template.Labels))).To(BeTrue())
	g.Expect(policy.Spec.PolicyTypes).To(ConsistOf(networkingv1.PolicyTypeIngress))

	sources := map[string][]networkingv1.NetworkPolicyPeer{}
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			sources[port.Port.StrVal] = rule.From
		}
	}
	readers := []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"metrics": "enabled"}}},
	}
	g.Expect(sources).To(Equal(map[string][]networkingv1.NetworkPolicyPeer{"webhook": nil, "metrics": readers}))
	var ports []string
	for _, p := range deployment.Spec.Template.Spec.Containers[0].Ports {
		ports = append(ports, p.Name)
	}
	g.Expect(ports).To(ContainElements("webhook", "metrics"))
	service := findObject[corev1.Service](g, objects, "Service", "purelb-webhook")
	g.Expect(service.Spec.Ports[0].TargetPort.StrVal).To(Equal("webhook"))
}

// TestPodSecurity lets the API server's pod security admission decide: the manager's pods
// meet the strictest level, and the agents' pods the level of their namespace.
func TestPodSecurity(t *testing.T) {
	g, ctx := startOnce(t), context.Background()
	objects, err := buildFolder("config/default")
	g.Expect(err).NotTo(HaveOccurred())
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	// Nothing deletes a namespace here: it may be there from a run before.
	g.Expect(client.IgnoreAlreadyExists(kubeClient.Create(ctx, strict))).To(Succeed())
	admit := func(namespace string, spec corev1.PodSpec) error {
		return kubeClient.Create(
			ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "asked"}, Spec: spec}, client.DryRunAll,
		)
	}
	manager := findObject[appsv1.Deployment](g, objects, "Deployment", "purelb-manager")
	g.Expect(manager.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
	g.Expect(manager.Spec.Template.Spec.PriorityClassName).To(Equal("system-cluster-critical"))
	g.Expect(admit("restricted", manager.Spec.Template.Spec)).To(Succeed())
	worse := manager.Spec.Template.Spec.DeepCopy()
	worse.Containers[0].SecurityContext.Capabilities = nil
	g.Expect(admit("restricted", *worse)).To(MatchError(ContainSubstring("unrestricted capabilities")))

	agent := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: purelbNamespace, Name: "default"}}
	pod := agents.DaemonSet(agent, agents.Defaults{Image: "purelb.io/purelb:dev", ServiceAccount: "purelb-agent"}, "").
		Spec.Template.Spec
	g.Expect(admit(purelbNamespace, pod)).To(Succeed())
	err = admit("restricted", pod)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
}
