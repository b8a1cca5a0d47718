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

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func status(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// While it waits the manager is alive and not ready, and then leaves the address
// to the manager's own health checks.
func TestAwait(t *testing.T) {
	address, asked := freeAddress(t), 0
	err := await(t.Context(), address, testInterval, func(context.Context) error {
		asked++
		if asked > 1 {
			if alive, ready := status(t, "http://"+address+"/healthz"), status(t, "http://"+address+"/readyz"); alive != 200 || ready != 503 {
				t.Errorf("/healthz %d, /readyz %d", alive, ready)
			}
		}
		if asked < 4 {
			return errors.New("away")
		}
		return nil
	})
	if err != nil || asked != 4 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the address is not free: %v", err)
	}
	listener.Close()
}

// Where the API server is there nothing is served, and nothing waited for.
func TestAwaitNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := await(t.Context(), listener.Addr().String(), time.Hour, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestAwaitEnds(t *testing.T) {
	for _, address := range []string{"0", "", freeAddress(t)} {
		ctx, cancel := context.WithCancel(t.Context())
		err := await(ctx, address, testInterval, func(context.Context) error { cancel(); return errors.New("away") })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// A question that is not answered does not keep the others from being asked.
func TestAwaitSilence(t *testing.T) {
	asked := 0
	err := await(t.Context(), "0", testInterval, func(ctx context.Context) error {
		asked++
		if asked == 3 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil || asked != 3 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}

func TestAskForLease(t *testing.T) {
	var answer atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/purelb-system/leases/manager.purelb.io" {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(answer.Load()))
		if answer.Load() == http.StatusOK {
			_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`))
		}
	}))
	defer server.Close()
	ask, err := askForLease(&rest.Config{Host: server.URL}, "purelb-system")
	if err != nil {
		t.Fatal(err)
	}
	for code, there := range map[int32]bool{200: true, 404: true, 403: false, 500: false} {
		answer.Store(code)
		if err := ask(t.Context()); (err == nil) != there {
			t.Errorf("%d: %v", code, err)
		}
	}
}
