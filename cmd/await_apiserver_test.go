package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

const testInterval = 10 * time.Millisecond

// freeAddress returns an address on which no program listens. Other programs of the machine connect from
// 127.0.0.1, and the kernel may give one of their connections the port before the test listens there. They
// do not connect from 127.0.0.3.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func getStatus(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// TestAwaitAPIServer checks that the manager is alive and not ready while it waits, and then
// frees the address for its own health checks.
func TestAwaitAPIServer(t *testing.T) {
	address, requests := freeAddress(t), 0
	err := awaitAPIServer(t.Context(), address, testInterval, func(context.Context) error {
		requests++
		if requests > 1 {
			if alive, ready := getStatus(t, "http://"+address+"/healthz"),
				getStatus(t, "http://"+address+"/readyz"); alive != 200 || ready != 503 {
				t.Errorf("/healthz %d, /readyz %d", alive, ready)
			}
		}
		if requests < 4 {
			return errors.New("away")
		}
		return nil
	})
	if err != nil || requests != 4 {
		t.Errorf("%v, %d requests", err, requests)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the address is not free: %v", err)
	}
	listener.Close()
}

// TestAwaitAPIServerAtOnce checks that the manager neither waits nor serves while the API
// server answers.
func TestAwaitAPIServerAtOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := awaitAPIServer(t.Context(), listener.Addr().String(), time.Hour,
		func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestAwaitAPIServerEndsWithContext(t *testing.T) {
	for _, address := range []string{"0", "", freeAddress(t)} {
		ctx, cancel := context.WithCancel(t.Context())
		err := awaitAPIServer(ctx, address, testInterval, func(context.Context) error { cancel(); return errors.New("away") })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestAwaitAPIServerTimeout checks that a request without an answer is given up and repeated.
func TestAwaitAPIServerTimeout(t *testing.T) {
	requests := 0
	err := awaitAPIServer(t.Context(), "0", testInterval, func(ctx context.Context) error {
		requests++
		if requests == 3 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil || requests != 3 {
		t.Errorf("%v, %d requests", err, requests)
	}
}

func TestLeaderLeaseRequest(t *testing.T) {
	var answer atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/purelb-system/leases/manager.purelb.io" {
			t.Errorf("a request for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(answer.Load()))
		if answer.Load() == http.StatusOK {
			_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`))
		}
	}))
	defer server.Close()
	request, err := leaderLeaseRequest(&rest.Config{Host: server.URL}, "purelb-system")
	if err != nil {
		t.Fatal(err)
	}
	for code, answers := range map[int32]bool{200: true, 404: true, 403: false, 500: false} {
		answer.Store(code)
		if err := request(t.Context()); (err == nil) != answers {
			t.Errorf("%d: %v", code, err)
		}
	}
}
