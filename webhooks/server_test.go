package webhooks_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/webhooks"
)

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // far below 2^63
}

// TestAttackStalledBodies sends 500 requests to the webhooks, of the longest kind, and of each
// all but the last byte. The manager holds a fraction of them in memory, Services are stored
// with their warnings meanwhile, and no connection remains. This test shows the row "make the manager
// work or remember without bound" of docs/trust.md.
func TestAttackStalledBodies(t *testing.T) {
	begin(t)
	const (
		clients = 500
		// atMost is what may be in memory: a body of each of 64 connections, in buffers that
		// are up to half empty, and what the test itself needs for its connections.
		atMost = 192 << 20
	)
	address := net.JoinHostPort(hooks.LocalServingHost, strconv.Itoa(hooks.LocalServingPort))
	body := make([]byte, webhooks.MaxBody-1)
	before := heap()
	var stalled []net.Conn
	for range clients {
		conn, err := tls.DialWithDialer(
			&net.Dialer{Timeout: soon}, "tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}},
		)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stalled = append(stalled, conn)
	}
	var writing sync.WaitGroup
	for _, conn := range stalled {
		writing.Go(func() { // as far as the server lets it
			_, err := fmt.Fprintf(
				conn,
				"POST /validate--v1-service HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
				webhooks.MaxBody,
			)
			if err == nil {
				_, _ = conn.Write(body)
			}
		})
	}
	writing.Wait()
	if used := heap() - before; used > atMost {
		t.Errorf("%d MiB more are in use", used>>20)
	} else {
		t.Logf("%d MiB more are in use", used>>20)
	}
	checkCreate(
		t, service("x", "tkaen", 80),
		answer{
			warnings: []string{"there is no ServiceGroup tkaen in namespace purelb-system: the Service waits until there is"},
		},
	)
	for i, conn := range stalled {
		if err := conn.SetReadDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d is still open", i)
		}
	}
}
