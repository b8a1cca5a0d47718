// Package certs gives the webhook server its certificate: from files, where
// somebody else provides them (OLM, cert-manager), or else from a Secret that
// the manager itself makes, renews and writes into the webhook configurations
// (open-policy-agent/cert-controller).
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options say whose certificate is made and where it is kept.
type Options struct {
	// Namespace of the Secret and of the webhooks' Service.
	Namespace string
	// Secret that holds the certificate and the authority that signed it.
	Secret string
	// Service that the API server calls.
	Service string
	// Configuration is the name of the ValidatingWebhookConfiguration that is to
	// trust the authority.
	Configuration string
}

// Provided reports whether a folder has a certificate that somebody else
// provides.
func Provided(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, corev1.TLSCertKey))
	return err == nil
}

// Source is a certificate that the manager makes itself. Every replica has it
// from the Secret as soon as one has made it.
type Source struct {
	secret  types.NamespacedName
	current atomic.Pointer[tls.Certificate]
	trusted chan struct{}
	dir     string
}

// +kubebuilder:rbac:groups="",resources=secrets,namespace=purelb-system,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,verbs=get;list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=purelb-validating,verbs=update

// New makes a Source whose certificate is made, and renewed, once mgr runs.
func New(ctx context.Context, mgr manager.Manager, c client.Client, o Options) (*Source, error) {
	s := &Source{secret: types.NamespacedName{Namespace: o.Namespace, Name: o.Secret}, trusted: make(chan struct{})}
	err := makeSecret(ctx, c, s.secret)
	if err != nil {
		return nil, err
	}
	// The rotator looks for a file to know that the certificate has arrived.
	if s.dir, err = os.MkdirTemp("", "purelb-webhook-"); err != nil {
		return nil, fmt.Errorf("make a folder for the webhooks' certificate: %w", err)
	}
	informer, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", o.Secret, err)
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.load(mgr, obj) },
		UpdateFunc: func(_, obj any) { s.load(mgr, obj) },
		DeleteFunc: func(any) { // somebody wants a new certificate
			if err := makeSecret(ctx, c, s.secret); err != nil {
				mgr.GetLogger().Error(err, "The webhooks' certificate cannot be renewed")
			}
		},
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", o.Secret, err)
	}
	err = rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:      s.secret,
		CertDir:        s.dir,
		CAName:         "purelb-ca",
		CAOrganization: "purelb",
		DNSName:        fmt.Sprintf("%s.%s.svc", o.Service, o.Namespace),
		IsReady:        s.trusted,
		FieldOwner:     "purelb-certificates",
		Webhooks:       []rotator.WebhookInfo{{Name: o.Configuration, Type: rotator.Validating}},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the webhooks' certificate: %w", err)
	}
	return s, nil
}

// makeSecret makes an empty Secret, for the rotator to fill.
func makeSecret(ctx context.Context, c client.Client, name types.NamespacedName) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := c.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Secret %s for the webhooks' certificate: %w", name.Name, err)
	}
	return nil
}

// load takes the certificate over from the Secret.
func (s *Source) load(mgr manager.Manager, obj any) {
	secret, ok := obj.(*corev1.Secret)
	if !ok || client.ObjectKeyFromObject(secret) != s.secret || len(secret.Data[corev1.TLSCertKey]) == 0 {
		return
	}
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		mgr.GetLogger().Error(err, "The webhooks' certificate cannot be used", "secret", s.secret)
		return
	}
	s.current.Store(&cert)
	if err := os.WriteFile(filepath.Join(s.dir, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600); err != nil {
		mgr.GetLogger().Error(err, "The webhooks' certificate cannot be noted")
	}
}

// Configure makes a TLS server use the certificate as it is at each handshake.
func (s *Source) Configure(c *tls.Config) {
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := s.current.Load(); cert != nil {
			return cert, nil
		}
		return nil, errors.New("the webhooks' certificate is not made yet")
	}
}

// Ready fails until there is a certificate that the API server trusts.
func (s *Source) Ready(*http.Request) error {
	select {
	case <-s.trusted:
		return nil
	default:
		return errors.New("the webhooks' certificate is not ready")
	}
}

// Close removes the folder.
func (s *Source) Close() error { return os.RemoveAll(s.dir) }
