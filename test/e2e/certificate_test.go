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

var _ = Describe("The webhooks' certificate", reinstallPriority, func() {
	It("is the one in a mounted Secret, where there is one", func(ctx SpecContext) {
		cert, key := makeSelfSigned("purelb-webhook.purelb-system.svc")
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "provided-certificate", Namespace: purelbNamespace},
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key},
		}
		Expect(kubeClient.Create(ctx, secret)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "-n", purelbNamespace, "rollout", "undo", "deployment/purelb-manager")
			kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")
			Expect(kubeClient.Delete(ctx, secret)).To(Succeed())
			// with the manager's own certificate, which the manager writes to the configuration again
			waitUntilWebhooksAnswer(ctx)
		}, NodeTimeout(functionalLimit))
		kubectl(ctx, "-n", purelbNamespace, "patch", "deployment", "purelb-manager", "--patch", `
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
		kubectl(ctx, "-n", purelbNamespace, "rollout", "status", "deployment/purelb-manager", "--timeout=120s")

		By("waiting until the last manager with a certificate of its own has ended")
		Eventually(func(g Gomega) { expectReadyPods(ctx, g, managerName, 2) }).
			WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).Should(Succeed())
		By("writing the certificate to the webhooks' configuration, as its provider does")
		bundle := base64.StdEncoding.EncodeToString(cert)
		var patch string
		for i := range 3 {
			patch += fmt.Sprintf(`,{"op":"replace","path":"/webhooks/%d/clientConfig/caBundle","value":"%s"}`, i, bundle)
		}
		kubectl(ctx, "patch", "validatingwebhookconfiguration", "purelb-validating", "--type=json", "-p", "["+patch[1:]+"]")
		waitUntilWebhooksAnswer(ctx)
		for _, served := range readServedCertificates(ctx) {
			Expect(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served})).To(Equal(cert))
		}
	}, SpecTimeout(functionalLimit))
})

// waitUntilWebhooksAnswer waits until the API server gets the webhooks' answers from every
// manager that it may ask.
func waitUntilWebhooksAnswer(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		return kubeClient.Create(ctx, newServiceGroup("asked", "198.51.100.1"), client.DryRunAll)
	}).WithContext(ctx).WithTimeout(2 * waitLimit).WithPolling(pollInterval).MustPassRepeatedly(60).Should(Succeed())
}

// readServedCertificates returns the certificate that each manager serves, in DER.
func readServedCertificates(ctx context.Context) [][]byte {
	GinkgoHelper()
	var served [][]byte
	for _, p := range listPods(ctx, Default, managerName) {
		conn, err := testLab.Dial(ctx, "cp", "tcp", net.JoinHostPort(p.Status.PodIP, "9443"))
		Expect(err).NotTo(HaveOccurred())
		server := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // the certificate is only read
		Expect(server.HandshakeContext(ctx)).To(Succeed())
		served = append(served, server.ConnectionState().PeerCertificates[0].Raw)
		Expect(server.Close()).To(Succeed())
	}
	Expect(served).To(HaveLen(2))
	return served
}

// makeSelfSigned makes a self-signed certificate for a name, and its key, in PEM.
func makeSelfSigned(name string) (cert, key []byte) {
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
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
