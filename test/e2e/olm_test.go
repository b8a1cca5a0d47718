package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// olmInstallation installs a bundle as the Operator Lifecycle Manager does for an operator
// that serves all namespaces.
type olmInstallation struct {
	csv         serviceVersion
	manifests   []*unstructured.Unstructured // the other manifests of the bundle
	certificate []byte                       // for the webhooks, in DER
	created     []client.Object
}

// serviceVersion has the parts of a ClusterServiceVersion that OLM acts on.
type serviceVersion struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Install struct {
			Spec struct {
				Permissions        []permissions `json:"permissions"`
				ClusterPermissions []permissions `json:"clusterPermissions"`
				Deployments        []struct {
					Name  string                `json:"name"`
					Label map[string]string     `json:"label"`
					Spec  appsv1.DeploymentSpec `json:"spec"`
				} `json:"deployments"`
			} `json:"spec"`
		} `json:"install"`
		WebhookDefinitions []webhookDefinition `json:"webhookdefinitions"`
	} `json:"spec"`
}

type permissions struct {
	ServiceAccountName string              `json:"serviceAccountName"`
	Rules              []rbacv1.PolicyRule `json:"rules"`
}

type webhookDefinition struct {
	GenerateName            string                           `json:"generateName"`
	Type                    string                           `json:"type"`
	DeploymentName          string                           `json:"deploymentName"`
	ContainerPort           int32                            `json:"containerPort"`
	TargetPort              intstr.IntOrString               `json:"targetPort"`
	WebhookPath             *string                          `json:"webhookPath"`
	Rules                   []admissionv1.RuleWithOperations `json:"rules"`
	FailurePolicy           *admissionv1.FailurePolicyType   `json:"failurePolicy"`
	SideEffects             *admissionv1.SideEffectClass     `json:"sideEffects"`
	TimeoutSeconds          *int32                           `json:"timeoutSeconds"`
	AdmissionReviewVersions []string                         `json:"admissionReviewVersions"`
}

// read reads a manifest of the bundle.
func (o *olmInstallation) read(data []byte) {
	GinkgoHelper()
	u := &unstructured.Unstructured{}
	Expect(yaml.Unmarshal(data, &u.Object)).To(Succeed())
	if u.GetKind() == "ClusterServiceVersion" {
		Expect(yaml.Unmarshal(data, &o.csv)).To(Succeed())
		return
	}
	o.manifests = append(o.manifests, u)
}

// install creates everything in OLM's order, and waits for the Deployment.
func (o *olmInstallation) install(ctx context.Context) {
	GinkgoHelper()
	namespace := &corev1.Namespace{}
	Expect(json.Unmarshal(
		[]byte(o.csv.Metadata.Annotations["operatorframework.io/suggested-namespace-template"]), namespace,
	)).To(Succeed())
	Expect(namespace.Name).To(Equal(purelbNamespace))
	o.create(ctx, namespace)
	for _, u := range o.manifests {
		namespaced, err := kubeClient.IsObjectNamespaced(u)
		Expect(err).NotTo(HaveOccurred())
		if namespaced {
			u.SetNamespace(purelbNamespace)
		}
		for _, owner := range u.GetOwnerReferences() {
			Expect(owner).To(Equal(metav1.OwnerReference{
				APIVersion: "operators.coreos.com/v1alpha1", Kind: "ClusterServiceVersion", Name: o.csv.Metadata.Name,
			}))
		}
		u.SetOwnerReferences(nil) // OLM fills in the UID of the ClusterServiceVersion, and there is none here
		o.create(ctx, u)
	}
	o.createRights(ctx)
	spec := o.csv.Spec.Install.Spec
	Expect(spec.Deployments).To(HaveLen(1))
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Deployments[0].Name, Namespace: purelbNamespace, Labels: spec.Deployments[0].Label,
		},
		Spec: spec.Deployments[0].Spec,
	}
	ca := o.mountCertificate(ctx, d)
	pods := &d.Spec.Template
	annotations := maps.Clone(o.csv.Metadata.Annotations)
	maps.Copy(annotations, pods.Annotations)
	pods.Annotations = annotations
	pods.Spec.Containers[0].Env = append(
		pods.Spec.Containers[0].Env, corev1.EnvVar{Name: "OPERATOR_CONDITION_NAME", Value: o.csv.Metadata.Name},
	)
	d.Spec.RevisionHistoryLimit = ptr.To[int32](1)
	o.create(ctx, d)
	o.createWebhooks(ctx, d, ca)
	kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/"+d.Name, "--timeout=120s")
}

// createRights creates service accounts and their rights. For an operator that serves all
// namespaces, OLM turns permissions into cluster permissions.
func (o *olmInstallation) createRights(ctx context.Context) {
	GinkgoHelper()
	spec := o.csv.Spec.Install.Spec
	accounts := map[string]bool{}
	for i, p := range append(spec.ClusterPermissions, spec.Permissions...) {
		if !accounts[p.ServiceAccountName] {
			o.create(
				ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: p.ServiceAccountName, Namespace: purelbNamespace}},
			)
			accounts[p.ServiceAccountName] = true
		}
		name := metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", o.csv.Metadata.Name, p.ServiceAccountName, i)}
		o.create(ctx,
			&rbacv1.ClusterRole{ObjectMeta: name, Rules: p.Rules},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: name,
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
				Subjects: []rbacv1.Subject{
					{Kind: rbacv1.ServiceAccountKind, Name: p.ServiceAccountName, Namespace: purelbNamespace},
				},
			})
	}
}

// olmServiceName returns the name that OLM gives to a Deployment's Service.
func olmServiceName(deployment string) string { return deployment + "-service" }

// mountCertificate makes a certificate for the Service of d, lets d mount it in all
// containers, and returns the certificate of its authority, in PEM.
func (o *olmInstallation) mountCertificate(ctx context.Context, d *appsv1.Deployment) (ca []byte) {
	GinkgoHelper()
	ca, cert, key := issueCertificate(olmServiceName(d.Name) + "." + purelbNamespace + ".svc")
	block, _ := pem.Decode(cert)
	o.certificate = block.Bytes
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: olmServiceName(d.Name) + "-cert", Namespace: purelbNamespace},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, "olmCAKey": ca},
	}
	o.create(ctx, secret)
	for _, m := range []struct{ name, path, cert, key string }{
		{"webhook-cert", "/tmp/k8s-webhook-server/serving-certs", "tls.crt", "tls.key"},
		{"apiservice-cert", "/apiserver.local.config/certificates", "apiserver.crt", "apiserver.key"},
	} {
		pod := &d.Spec.Template.Spec
		pod.Volumes = append(pod.Volumes,
			corev1.Volume{Name: m.name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: secret.Name,
				Items:      []corev1.KeyToPath{{Key: corev1.TLSCertKey, Path: m.cert}, {Key: corev1.TLSPrivateKeyKey, Path: m.key}},
			}}})
		for i := range pod.Containers {
			pod.Containers[i].VolumeMounts = append(
				pod.Containers[i].VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path},
			)
		}
	}
	return ca
}

// createWebhooks creates the Service of d and a configuration for each webhook.
func (o *olmInstallation) createWebhooks(ctx context.Context, d *appsv1.Deployment, ca []byte) {
	GinkgoHelper()
	definitions := o.csv.Spec.WebhookDefinitions
	Expect(definitions).NotTo(BeEmpty())
	o.create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: olmServiceName(d.Name), Namespace: purelbNamespace},
		Spec: corev1.ServiceSpec{
			Selector: d.Spec.Selector.MatchLabels,
			Ports:    []corev1.ServicePort{{Port: definitions[0].ContainerPort, TargetPort: definitions[0].TargetPort}},
		},
	})
	for _, w := range definitions {
		Expect(w.Type).To(Equal("ValidatingAdmissionWebhook"))
		Expect(w.DeploymentName).To(Equal(d.Name))
		o.create(ctx, &admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{GenerateName: w.GenerateName + "-"},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: w.GenerateName, Rules: w.Rules, FailurePolicy: w.FailurePolicy, SideEffects: w.SideEffects,
				TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions,
				ClientConfig: admissionv1.WebhookClientConfig{CABundle: ca, Service: &admissionv1.ServiceReference{
					Namespace: purelbNamespace, Name: olmServiceName(d.Name), Path: w.WebhookPath, Port: ptr.To(w.ContainerPort),
				}},
			}},
		})
	}
}

// issueCertificate makes an authority, and a certificate of that authority for a name with
// its key, all in PEM.
func issueCertificate(name string) (ca, cert, key []byte) {
	GinkgoHelper()
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	validity := func(serial int64, cn string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: cn},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
	}
	issuer := validity(1, "olm")
	issuer.IsCA, issuer.BasicConstraintsValid, issuer.KeyUsage = true, true, x509.KeyUsageCertSign
	leaf := validity(2, name)
	leaf.DNSNames, leaf.ExtKeyUsage = []string{name}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	caDER, err := x509.CreateCertificate(rand.Reader, issuer, issuer, authority.Public(), authority)
	Expect(err).NotTo(HaveOccurred())
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, issuer, private.Public(), authority)
	Expect(err).NotTo(HaveOccurred())
	keyDER, err := x509.MarshalECPrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return block("CERTIFICATE", caDER), block("CERTIFICATE", leafDER), block("EC PRIVATE KEY", keyDER)
}
