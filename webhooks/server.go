package webhooks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/purelb/purelb-operator/internal/httpserver"
)

// ServerOptions are the options of the webhook server.
type ServerOptions struct {
	// Host is the address to listen on, all addresses if it is empty, and Port the TCP port.
	Host string
	Port int
	// CertDir is the folder with the certificate, in the files tls.crt and tls.key, which are
	// read again when they change. It is used if TLS sets no certificate.
	CertDir string
	// TLS, if not nil, is called when the server starts, and may change its TLS configuration.
	TLS func(*tls.Config)
}

// server is controller-runtime's webhook server, with a listener and bounds of its own: every
// pod can connect to it.
type server struct {
	webhook.Server // which has the handlers
	options        ServerOptions
	answers        answerLimit
	isListening    atomic.Bool
}

// NewServer makes a webhook server that bounds what its clients can make the manager keep: see
// package httpserver, MaxBody and maxAnswers. Where it refuses, the API server does what the
// failurePolicy says: it stores Services without warnings.
func NewServer(o ServerOptions) webhook.Server {
	return &server{
		Server:  webhook.NewServer(webhook.Options{Host: o.Host, Port: o.Port, WebhookMux: http.NewServeMux()}),
		options: o,
		answers: newAnswerLimit(),
	}
}

// Register serves hook at path.
func (s *server) Register(path string, hook http.Handler) {
	s.Server.Register(path, s.answers.limit(hook))
}

// Start serves until ctx ends.
func (s *server) Start(ctx context.Context) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if s.options.TLS != nil {
		s.options.TLS(config)
	}
	if config.GetCertificate == nil {
		watcher, err := certwatcher.New(
			filepath.Join(s.options.CertDir, "tls.crt"), filepath.Join(s.options.CertDir, "tls.key"),
		)
		if err != nil {
			return fmt.Errorf("read the certificate of the webhooks: %w", err)
		}
		config.GetCertificate = watcher.GetCertificate
		go func() {
			if err := watcher.Start(ctx); err != nil {
				log.FromContext(ctx).Error(err, "Cannot watch the certificate of the webhooks")
			}
		}()
	}
	address := net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
	bounded, err := httpserver.New(ctx, "webhooks", address, config, s.WebhookMux())
	if err != nil {
		return err
	}
	s.isListening.Store(true)
	return bounded.Start(ctx)
}

// StartedChecker returns a check that fails until the server listens.
func (s *server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.isListening.Load() {
			return errors.New("the webhooks are not served yet")
		}
		return nil
	}
}
