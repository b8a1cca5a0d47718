package nodeagent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

type proxy struct{ serves bool }

func (p *proxy) Serves(context.Context, []netip.Addr, int32) bool { return p.serves }

// An address whose traffic stays on the node is announced when the proxy serves
// it.
func TestWaitForProxy(t *testing.T) {
	followed := virtual("198.51.100.1")
	followed.HealthCheckNodePort = 30001
	for name, row := range map[string]struct {
		serves bool          // at last
		after  time.Duration // when it is announced
	}{
		"it serves":                {true, 0},
		"it knows of no such port": {false, plan.ProxyPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &proxy{}
				w := newWorld(t, settings(), announcementOf("node1", followed, virtual("198.51.100.2")))
				w.Proxy = p
				start := time.Now()
				again, err := w.reconcile()
				if err != nil || again > plan.ProxyRetry {
					t.Errorf("again in %s, %v", again, err)
				}
				w.expect("changes", []string{"EnsureVirtual kube-lb0", "Add 198.51.100.2/32 kube-lb0"}, w.kernel.Calls())
				w.expect("states", "198.51.100.1 Pending WaitingForProxy, 198.51.100.2 Announced", w.states("node1"))
				p.serves = row.serves
				for w.states("node1") != "198.51.100.1 Announced, 198.51.100.2 Announced" && time.Since(start) < time.Minute {
					time.Sleep(again)
					if again, err = w.reconcile(); err != nil {
						t.Fatal(err)
					}
					again = max(again, time.Millisecond)
				}
				if took := time.Since(start); took < row.after || took > row.after+2*plan.ProxyRetry {
					t.Errorf("announced after %s", took)
				}
				// It stays, whatever the proxy says.
				p.serves = false
				if _, err := w.reconcile(); err != nil {
					t.Error(err)
				}
				w.expect("states", "198.51.100.1 Announced, 198.51.100.2 Announced", w.states("node1"))
				w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses = nil })
				if _, err := w.reconcile(); err != nil || len(w.state.memory.ProxyWaitSince) > 0 {
					t.Errorf("%v, %v", w.state.memory.ProxyWaitSince, err)
				}
			})
		})
	}
}

func TestHTTPProxy(t *testing.T) {
	var status atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(int(status.Load()))
	}))
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	addrs := []netip.Addr{at.Addr(), netip.MustParseAddr("127.0.0.99"), netip.IPv6Loopback()}
	for code, want := range map[int]bool{http.StatusOK: true, http.StatusServiceUnavailable: false} {
		status.Store(int32(code))
		if got := (HTTPProxy{}).Serves(t.Context(), addrs, int32(at.Port())); got != want {
			t.Errorf("status %d: %t", code, got)
		}
	}
	server.Close()
	if (HTTPProxy{}).Serves(t.Context(), addrs, int32(at.Port())) {
		t.Error("nobody listens, but it serves")
	}
}
