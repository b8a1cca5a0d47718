package gitops

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// folders are those that users apply.
func folders(t *testing.T) []string {
	t.Helper()
	overlays, err := filepath.Glob(filepath.Join(root, "config", "overlays", "*"))
	if err != nil || len(overlays) < 2 {
		t.Fatalf("overlays: %v, %v", overlays, err)
	}
	all := []string{"config/default", "config/samples"}
	for _, dir := range overlays {
		all = append(all, "config/overlays/"+filepath.Base(dir))
	}
	return all
}

// TestBuild builds each folder, decodes all objects into their types, without
// anything that the types do not know, and asks the API server whether it would
// take those of kinds that it knows.
func TestBuild(t *testing.T) {
	g := begin(t)
	ctx := context.Background()
	scheme, err := newScheme()
	g.Expect(err).NotTo(HaveOccurred())
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, dir := range folders(t) {
		t.Run(dir, func(t *testing.T) {
			g := NewWithT(t)
			objects, err := build(dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(objects).NotTo(BeEmpty())
			asked := 0
			for _, u := range objects {
				text, err := json.Marshal(u.Object)
				g.Expect(err).NotTo(HaveOccurred())
				_, _, err = strict.Decode(text, nil, nil)
				g.Expect(err).NotTo(HaveOccurred(), "%s %s", u.GetKind(), u.GetName())
				err = apply(ctx, u, client.DryRunAll)
				if meta.IsNoMatchError(err) && u.GroupVersionKind().Group == "monitoring.coreos.com" {
					continue // no module carries the CRDs
				}
				g.Expect(err).NotTo(HaveOccurred())
				asked++
			}
			t.Logf("%d objects, %d of them taken by the API server", len(objects), asked)
		})
	}
}

// find is the one object of a kind and name, in its type.
func find[T any](g *WithT, objects []*unstructured.Unstructured, kind, name string) *T {
	i := slices.IndexFunc(objects, func(u *unstructured.Unstructured) bool { return u.GetKind() == kind && u.GetName() == name })
	g.Expect(i).NotTo(Equal(-1), "%s %s", kind, name)
	typed := new(T)
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, typed)).To(Succeed())
	return typed
}

// TestCertManager follows the certificate from who makes it to who uses it.
func TestCertManager(t *testing.T) {
	g := NewWithT(t)
	objects, err := build("config/overlays/cert-manager")
	g.Expect(err).NotTo(HaveOccurred())
	cert := find[certmanagerv1.Certificate](g, objects, "Certificate", "purelb-webhook")
	service := find[corev1.Service](g, objects, "Service", "purelb-webhook")
	g.Expect(cert.Namespace).To(Equal(service.Namespace))
	g.Expect(cert.Spec.DNSNames).To(ContainElement(service.Name + "." + service.Namespace + ".svc"))
	signer := find[certmanagerv1.Issuer](g, objects, "Issuer", cert.Spec.IssuerRef.Name)
	authority := find[certmanagerv1.Certificate](g, objects, "Certificate", "purelb-authority")
	g.Expect(signer.Spec.CA.SecretName).To(Equal(authority.Spec.SecretName))
	g.Expect(find[certmanagerv1.Issuer](g, objects, "Issuer", authority.Spec.IssuerRef.Name).Spec.SelfSigned).NotTo(BeNil())
	hooks := find[unstructured.Unstructured](g, objects, "ValidatingWebhookConfiguration", "purelb-validating")
	g.Expect(hooks.GetAnnotations()).To(HaveKeyWithValue("cert-manager.io/inject-ca-from", cert.Namespace+"/"+cert.Name))

	pod := find[appsv1.Deployment](g, objects, "Deployment", "purelb-manager").Spec.Template.Spec
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == cert.Spec.SecretName })
	g.Expect(i).NotTo(Equal(-1))
	g.Expect(pod.Containers[0].VolumeMounts).To(ContainElement(corev1.VolumeMount{
		Name: pod.Volumes[i].Name, MountPath: "/tmp/k8s-webhook-server/serving-certs", ReadOnly: true,
	}))
	g.Expect(pod.Containers[0].Args).NotTo(ContainElement(HavePrefix("--webhook-cert-dir")))
}

// TestPodSecurity has the API server's own admission judge: the manager's pods
// meet the strictest level, and the agents' the one that their namespace has.
func TestPodSecurity(t *testing.T) {
	g, ctx := begin(t), context.Background()
	objects, err := build("config/default")
	g.Expect(err).NotTo(HaveOccurred())
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	g.Expect(api.Create(ctx, strict)).To(Succeed())
	admit := func(namespace string, spec corev1.PodSpec) error {
		return api.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "asked"}, Spec: spec}, client.DryRunAll)
	}
	manager := find[appsv1.Deployment](g, objects, "Deployment", "purelb-manager")
	g.Expect(manager.Spec.Replicas).To(HaveValue(BeEquivalentTo(2)))
	g.Expect(manager.Spec.Template.Spec.PriorityClassName).To(Equal("system-cluster-critical"))
	g.Expect(admit("restricted", manager.Spec.Template.Spec)).To(Succeed())
	worse := manager.Spec.Template.Spec.DeepCopy()
	worse.Containers[0].SecurityContext.Capabilities = nil
	g.Expect(admit("restricted", *worse)).To(MatchError(ContainSubstring("unrestricted capabilities")))

	agent := &v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "default"}}
	pod := agents.DaemonSet(agent, agents.Defaults{Image: "purelb.io/purelb:dev", ServiceAccount: "purelb-agent"}).Spec.Template.Spec
	g.Expect(admit(system, pod)).To(Succeed())
	err = admit("restricted", pod)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
}
