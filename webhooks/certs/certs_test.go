package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/purelb/purelb-operator/test/apiserver"
	"github.com/purelb/purelb-operator/webhooks/certs"
)

// TestSource makes a certificate against a real API server, checks it as the API
// server would, and takes its Secret away.
func TestSource(t *testing.T) {
	g := NewWithT(t)
	apiserver.Mark(t)
	config, stop, err := apiserver.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	unwatched, err := client.NewWithWatch(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	var created atomic.Int32 // Secrets, or tries to
	c := interceptor.NewClient(unwatched, interceptor.Funcs{Create: func(
		ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption,
	) error {
		if _, isSecret := obj.(*corev1.Secret); isSecret {
			created.Add(1)
		}
		return c.Create(ctx, obj, opts...)
	}})
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "purelb-validating"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "a.purelb.io",
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Namespace: "default", Name: "hook"},
			},
			SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	g.Expect(c.Create(ctx, configuration)).To(Succeed())

	// Another one each time: a controller is named after it.
	secret := fmt.Sprintf("certificate-%d", time.Now().UnixNano())
	mgr, err := ctrl.NewManager(
		config, ctrl.Options{Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}},
	)
	g.Expect(err).NotTo(HaveOccurred())
	source, err := certs.New(ctx, mgr, c, certs.Options{
		Namespace: "default", Secret: secret, Service: "hook", Configuration: configuration.Name,
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(source.Ready(nil)).NotTo(Succeed())
	server := &tls.Config{}
	source.Configure(server)
	_, err = server.GetCertificate(nil)
	g.Expect(err).To(MatchError(ContainSubstring("have no certificate yet")))

	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	// trusted fails unless the served certificate is one that the API server,
	// which knows it by the webhook configuration, accepts for the Service.
	trusted := func(g Gomega) []byte {
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(configuration), configuration)).To(Succeed())
		roots := x509.NewCertPool()
		g.Expect(roots.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle)).To(BeTrue())
		cert, err := server.GetCertificate(nil)
		g.Expect(err).NotTo(HaveOccurred())
		leaf, err := x509.ParseCertificate(cert.Certificate[0])
		g.Expect(err).NotTo(HaveOccurred())
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "hook.default.svc"})
		g.Expect(err).NotTo(HaveOccurred())
		return leaf.Raw
	}
	var first []byte
	g.Eventually(func(g Gomega) {
		g.Expect(source.Ready(nil)).To(Succeed())
		first = trusted(g)
	}).WithTimeout(time.Minute).Should(Succeed())

	// Deleting the Secret renews the certificate, and deleting another one does nothing.
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: secret + "-other"}}
	g.Expect(unwatched.Create(ctx, other)).To(Succeed())
	g.Expect(unwatched.Delete(ctx, other)).To(Succeed())
	g.Expect(c.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: secret}})).
		To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(trusted(g)).NotTo(Equal(first))
	}).WithTimeout(time.Minute).Should(Succeed())
	g.Expect(created.Load()).To(Equal(int32(2)), "at the start, and when it was deleted")

	// A certificate that a manager made whose clock was a day ahead is replaced.
	g.Expect(c.Update(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: secret},
		Data:       certificateFrom(t, time.Now().Add(24*time.Hour)),
	})).To(Succeed())
	g.Eventually(func(g Gomega) {
		var now corev1.Secret
		g.Expect(c.Get(ctx, client.ObjectKey{Namespace: "default", Name: secret}, &now)).To(Succeed())
		block, _ := pem.Decode(now.Data[corev1.TLSCertKey])
		g.Expect(block).NotTo(BeNil())
		g.Expect(trusted(g)).To(Equal(block.Bytes))
	}).WithTimeout(time.Minute).Should(Succeed())

	// A configuration that is applied anew is trusted again.
	g.Expect(c.Delete(ctx, configuration)).To(Succeed())
	configuration.ResourceVersion, configuration.UID = "", ""
	configuration.Webhooks[0].ClientConfig.CABundle = nil
	g.Expect(c.Create(ctx, configuration)).To(Succeed())
	g.Eventually(func(g Gomega) { trusted(g) }).WithTimeout(time.Minute).Should(Succeed())
}

// certificateFrom makes the content of the Secret, valid from a time on for a year, as the rotator would
// have made it then.
func certificateFrom(t *testing.T, begin time.Time) map[string][]byte {
	t.Helper()
	g := NewWithT(t)
	r := &rotator.CertRotator{
		CAName: "purelb-ca", CAOrganization: "purelb", DNSName: "hook.default.svc",
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	end := begin.AddDate(1, 0, 0)
	authority, err := r.CreateCACert(begin, end)
	g.Expect(err).NotTo(HaveOccurred())
	cert, key, err := r.CreateCertPEM(authority, begin, end)
	g.Expect(err).NotTo(HaveOccurred())
	authorityKey := pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(authority.Key),
	})
	return map[string][]byte{
		"ca.crt": authority.CertPEM, "ca.key": authorityKey,
		corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key,
	}
}
