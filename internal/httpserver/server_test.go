package httpserver_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/internal/httpserver"
)

// patience is how long a test waits for what has to happen.
const patience = time.Minute

// serve starts a server on a free port, and returns its address.
func serve(t *testing.T, tlsConfig *tls.Config, handler http.Handler) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server, err := httpserver.New(ctx, "test", "127.0.0.1:0", tlsConfig, handler)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server.Listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: patience}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// get asks by a connection of its own.
func get(t *testing.T, address string) (status int) {
	t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// isClosed waits until the other side has closed a connection.
func isClosed(conn net.Conn) bool {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return false
	}
	_, err := io.Copy(io.Discard, conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestAttackStalledConnections opens four times as many connections as there may be, and ends
// no request: the kubelet's health checks are served nevertheless, and no connection remains.
func TestAttackStalledConnections(t *testing.T) {
	for name, begin := range map[string]string{
		"no word": "", "half the headers": "GET / HTTP/1.1\r\nHost: a\r\nX-A: ",
		"half a body": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A server for each, since none serves everybody while others go on to connect.
			address := serve(t, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			var stalled []net.Conn
			for range 4 * httpserver.MaxConnections {
				conn := dial(t, address)
				stalled = append(stalled, conn)
				if _, err := io.WriteString(conn, begin); err != nil {
					continue // the server has replaced the connection
				}
			}
			if status := get(t, address); status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			for i, conn := range stalled {
				if !isClosed(conn) {
					t.Fatalf("connection %d is still open", i)
				}
			}
		})
	}
}

// TestAttackLongHeaders sends headers without end.
func TestAttackLongHeaders(t *testing.T) {
	address := serve(
		t, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the request is served") }),
	)
	conn := dial(t, address)
	const sent = 1 << 20
	go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nX-A: "+strings.Repeat("a", sent)) }()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len("HTTP/1.1 431"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 431" {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestAttackStalledStreams sends requests by one HTTP/2 connection and ends none of them: each
// is refused, and OneByOne has let one at a time read its body.
func TestAttackStalledStreams(t *testing.T) {
	var running, most atomic.Int32
	handler := httpserver.OneByOne(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Error("a body ends")
		}
	}))
	testServer := httptest.NewUnstartedServer(nil) // for its certificate
	testServer.StartTLS()
	defer testServer.Close()
	address := serve(t, &tls.Config{NextProtos: []string{"h2"}, Certificates: testServer.TLS.Certificates}, handler)
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		ForceAttemptHTTP2: true, MaxConnsPerHost: 1, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	const requests = 8
	outcomes := make(chan error, requests)
	for range requests {
		body, writer := io.Pipe()
		t.Cleanup(func() { writer.Close() })
		go func() {
			response, err := client.Post("https://"+address, "text/plain", body)
			if err == nil {
				response.Body.Close()
				if response.ProtoMajor != 2 {
					err = fmt.Errorf("HTTP/%d", response.ProtoMajor)
				}
			} else if os.IsTimeout(err) {
				err = fmt.Errorf("not refused: %w", err)
			} else {
				err = nil
			}
			outcomes <- err
		}()
	}
	for range requests {
		if err := <-outcomes; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d requests of one connection are served at a time", most.Load())
	}
}
