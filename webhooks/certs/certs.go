// Package certs gives the webhook server its certificate. Where OLM or cert-manager provides
// files, the server reads those. Elsewhere the manager makes a certificate in a Secret,
// renews it, and writes its authority into the webhook configuration
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
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options say what the certificate is for, and where the manager keeps it.
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

// Provided reports whether a folder has a certificate: then OLM or cert-manager provides it.
func Provided(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, corev1.TLSCertKey))
	return err == nil
}

// Source is the certificate that the manager makes itself. One replica makes it, and every
// replica reads it from the Secret.
type Source struct {
	secret types.NamespacedName
	// certificate is the one in the Secret, nil until there is one.
	certificate atomic.Pointer[tls.Certificate]
	// trusted is closed when the API server trusts the authority of the certificate.
	trusted chan struct{}
	// dir is the folder with a copy of the certificate, by which the rotator knows that the
	// Secret has arrived.
	dir string
	// loaded has an element after a certificate has been read from the Secret.
	loaded chan struct{}
}

// +kubebuilder:rbac:groups="",resources=secrets,namespace=purelb-system,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,verbs=get;list;watch
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=purelb-validating,verbs=update

// New makes a Source. It makes the certificate, and renews it, while mgr runs.
func New(ctx context.Context, mgr manager.Manager, c client.Client, o Options) (*Source, error) {
	s := &Source{
		secret:  types.NamespacedName{Namespace: o.Namespace, Name: o.Secret},
		trusted: make(chan struct{}), loaded: make(chan struct{}, 1),
	}
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
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err != nil || name.AsNamespacedName() != s.secret {
				return
			}
			// An administrator wants a new certificate.
			if err := makeSecret(ctx, c, s.secret); err != nil {
				mgr.GetLogger().Error(err, "Cannot renew the webhooks' certificate")
			}
		},
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", o.Secret, err)
	}
	// The certificate lasts for a year, and the rotator renews it 90 days before its end.
	err = rotator.AddRotator(mgr, &rotator.CertRotator{
		ControllerName: o.Secret, // unique in a process, as names of controllers must be
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
	// One replica judges by its clock: two clocks that differ would never agree.
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		s.discardFromFuture(ctx, mgr, c)
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("set up the check of the webhooks' certificate: %w", err)
	}
	return s, nil
}

// discardFromFuture empties the Secret, which the rotator then fills anew, if its certificate is not
// valid yet: the manager's clock was ahead when it made the certificate. The rotator itself
// looks only at the certificate's end.
func (s *Source) discardFromFuture(ctx context.Context, mgr manager.Manager, c client.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.loaded:
		case <-time.After(time.Minute): // the clock may have been set back
		}
		cert := s.certificate.Load()
		if cert == nil || !time.Now().Before(cert.Leaf.NotBefore) {
			continue
		}
		log := mgr.GetLogger().WithValues("secret", s.secret, "notBefore", cert.Leaf.NotBefore)
		if err := s.emptySecret(ctx, c, cert); err != nil {
			log.Error(err, "Cannot replace the webhooks' certificate, which is not valid yet")
			continue
		}
		log.Info("Replaced the webhooks' certificate, which was not valid yet: this node's clock was set back")
	}
}

// emptySecret takes the certificate out of the Secret, unless the Secret has another one already.
func (s *Source) emptySecret(ctx context.Context, c client.Client, cert *tls.Certificate) error {
	var secret corev1.Secret
	if err := c.Get(ctx, s.secret, &secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	now, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || !now.Leaf.Equal(cert.Leaf) {
		return nil //nolint:nilerr // the rotator replaces what cannot be parsed
	}
	secret.Data = nil
	return c.Update(ctx, &secret)
}

// makeSecret makes an empty Secret, which the rotator fills.
func makeSecret(ctx context.Context, c client.Client, name types.NamespacedName) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := c.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Secret %s for the webhooks' certificate: %w", name.Name, err)
	}
	return nil
}

// load reads the certificate from the Secret.
func (s *Source) load(mgr manager.Manager, obj any) {
	secret, ok := obj.(*corev1.Secret)
	if !ok || client.ObjectKeyFromObject(secret) != s.secret || len(secret.Data[corev1.TLSCertKey]) == 0 {
		return
	}
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		mgr.GetLogger().Error(err, "Cannot use the webhooks' certificate", "secret", s.secret)
		return
	}
	s.certificate.Store(&cert)
	select {
	case s.loaded <- struct{}{}:
	default: // it is to be looked at already
	}
	if err := os.WriteFile(filepath.Join(s.dir, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600); err != nil {
		mgr.GetLogger().Error(err, "Cannot write the webhooks' certificate to its folder")
	}
}

// Configure makes a TLS server use, at each handshake, the certificate that there is then.
func (s *Source) Configure(c *tls.Config) {
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := s.certificate.Load(); cert != nil {
			return cert, nil
		}
		return nil, errors.New("the webhooks have no certificate yet")
	}
}

// Ready fails until there is a certificate that the API server trusts.
func (s *Source) Ready(*http.Request) error {
	select {
	case <-s.trusted:
		return nil
	default:
		return errors.New("the API server does not trust the webhooks' certificate yet")
	}
}

// Close removes the folder with the copy of the certificate.
func (s *Source) Close() error { return os.RemoveAll(s.dir) }
