package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("The webhooks' certificate", func() {
	It("is one that is provided, where there is one", func(ctx SpecContext) {
		cert, key := selfSigned("purelb-webhook.purelb-system.svc")
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "provided-certificate", Namespace: system},
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
		}
		Expect(c.Create(ctx, secret)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "-n", system, "rollout", "undo", "deployment/purelb-manager")
			kubectl(ctx, "-n", system, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
			Expect(c.Delete(ctx, secret)).To(Succeed())
			admits(ctx) // by the manager's own certificate, which it makes trusted again
		}, NodeTimeout(3*time.Minute))
		kubectl(ctx, "-n", system, "patch", "deployment", "purelb-manager", "--patch", `
spec:
  template:
    spec:
      volumes:
      - name: provided
        secret: {secretName: provided-certificate}
      containers:
      - name: manager
        volumeMounts:
        - {name: provided, mountPath: /tmp/k8s-webhook-server/serving-certs, readOnly: true}
`)
		kubectl(ctx, "-n", system, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")

		By("waiting for the last manager with a certificate of its own to go")
		Eventually(func(g Gomega) { g.Expect(managers(ctx)).To(HaveLen(2)) }).
			WithContext(ctx).WithTimeout(2 * soon).WithPolling(poll).Should(Succeed())
		By("trusting it, as who provides it does")
		bundle := base64.StdEncoding.EncodeToString(cert)
		var patch string
		for i := range 3 {
			patch += fmt.Sprintf(`,{"op":"replace","path":"/webhooks/%d/clientConfig/caBundle","value":"%s"}`, i, bundle)
		}
		kubectl(ctx, "patch", "validatingwebhookconfiguration", "purelb-validating", "--type=json", "-p", "["+patch[1:]+"]")
		admits(ctx)
		for _, served := range servedCertificates(ctx) {
			Expect(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served})).To(Equal(cert))
		}
	}, SpecTimeout(4*time.Minute))
})

// admits waits until the API server gets the webhooks' answers, from whichever
// manager it asks.
func admits(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		return c.Create(ctx, pool("asked", "198.51.100.1"), client.DryRunAll)
	}).WithContext(ctx).WithTimeout(2 * soon).WithPolling(poll).MustPassRepeatedly(60).Should(Succeed())
}

// servedCertificates is what each manager serves, in DER.
func servedCertificates(ctx context.Context) [][]byte {
	GinkgoHelper()
	var served [][]byte
	for _, p := range managers(ctx) {
		conn, err := bed.Dial(ctx, "cp", "tcp", net.JoinHostPort(p.Status.PodIP, "9443"))
		Expect(err).NotTo(HaveOccurred())
		server := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // it is only looked at
		Expect(server.HandshakeContext(ctx)).To(Succeed())
		served = append(served, server.ConnectionState().PeerCertificates[0].Raw)
		Expect(server.Close()).To(Succeed())
	}
	Expect(served).To(HaveLen(2))
	return served
}

// managers is the manager's pods, those that are going included.
func managers(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(c.List(ctx, pods, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": "purelb-manager"})).To(Succeed())
	return pods.Items
}

// selfSigned makes a certificate for a name, and its key, in PEM.
func selfSigned(name string) (cert, key []byte) {
	GinkgoHelper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	Expect(err).NotTo(HaveOccurred())
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
