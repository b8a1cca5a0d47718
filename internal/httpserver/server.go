package httpserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// MaxConnections is how many connections a server has. An API server opens one for maxStreams
// requests to the webhooks, and closes it when it is idle; Prometheus and the kubelet need one
// each.
const MaxConnections = 64

const (
	// readTimeout is how long a client may take to send a request. For one of 1 MiB, the
	// longest that a webhook reads, 2 Mbit/s suffice.
	readTimeout = 5 * time.Second
	// writeTimeout is how long a handler and the client that reads its response may take
	// together. The API server waits 10 s for a webhook.
	writeTimeout = 15 * time.Second
	// idleTimeout is how long a connection without requests stays open.
	idleTimeout = 30 * time.Second
	// maxHeaderBytes bounds the headers of a request. The longest is a bearer token, of which
	// some issuers make several KiB.
	maxHeaderBytes = 16 << 10
	// maxStreams is how many requests an HTTP/2 connection carries at a time. The API server
	// opens a further connection for more.
	maxStreams = 16
	// receiveBuffer is how many bytes an HTTP/2 connection, and each of its requests, may send
	// before the handler reads them. HTTP/2 demands at least 65,535 (RFC 9113 section 6.9.2).
	receiveBuffer = 64 << 10
	// shutdownTimeout is how long requests may take to end when the program ends.
	shutdownTimeout = readTimeout
)

// New makes a server that listens on a TCP address, such as ":8081", and serves when it is
// started, which a manager does. name is for the log. Without a TLS configuration the server
// speaks plain HTTP. Errors are those of listening.
func New(
	ctx context.Context, name, address string, tlsConfig *tls.Config, handler http.Handler,
) (*manager.Server, error) {
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", name, err)
	}
	var l net.Listener = &listener{Listener: socket, max: MaxConnections}
	if tlsConfig != nil {
		l = tls.NewListener(l, tlsConfig)
	}
	return &manager.Server{
		Name: name, Listener: l, ShutdownTimeout: ptr.To(shutdownTimeout),
		Server: &http.Server{
			Handler:           noteRequests(handler),
			BaseContext:       func(net.Listener) context.Context { return ctx },
			ConnContext:       withConnection,
			ReadTimeout:       readTimeout,
			ReadHeaderTimeout: readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          newErrorLog(log.FromContext(ctx).WithName(name)),
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: receiveBuffer,
				MaxReceiveBufferPerStream: receiveBuffer,
			},
		},
	}, nil
}
