package httpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/purelb/purelb-operator/internal/metricsauth"
)

// maxScrapes is how many clients read metrics at a time; a response is in memory until the
// client has read it.
const maxScrapes = 4

// addMetrics makes a manager serve the metrics of controller-runtime's registry at /metrics on
// an address, from its start on; on "" and "0" there is nothing to serve. If isSecure, it serves
// HTTPS, by a certificate that no authority has signed, and only to clients that the API server
// authenticates and authorizes.
func addMetrics(ctx context.Context, mgr manager.Manager, address string, isSecure bool) error {
	if address == "" || address == "0" {
		return nil
	}
	handler := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes,
	})
	var tlsConfig *tls.Config
	if isSecure {
		var err error
		if handler, err = metricsauth.Handler(
			mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetLogger().WithName("metrics"), handler,
		); err != nil {
			return err
		}
		if tlsConfig, err = selfSigned(); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	server, err := New(ctx, "metrics", address, tlsConfig, mux)
	if err != nil {
		return err
	}
	return mgr.Add(server)
}

// selfSigned makes a TLS configuration with a new certificate.
func selfSigned() (*tls.Config, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithFixtures("localhost", []net.IP{{127, 0, 0, 1}}, nil, "")
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the metrics: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the metrics: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{pair},
	}, nil
}
