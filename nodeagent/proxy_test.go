package nodeagent

import (
	"context"
	"net"
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

func (p *proxy) Serves(context.Context, []netip.Addr, netip.Addr, int32) bool { return p.serves }

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
				w.expect("changes", []string{"EnsureVirtual kube-lb0", "Add 198.51.100.2/32 kube-lb0"}, w.kernel.TakeCalls())
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

// proxyOn answers questions to the proxy at an address and port with a status that the test sets.
func proxyOn(t *testing.T, at string) (status *atomic.Int32, server *httptest.Server) {
	t.Helper()
	status = &atomic.Int32{}
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(int(status.Load()))
	}))
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return status, server
}

func TestHTTPProxy(t *testing.T) {
	const ok, notYet = http.StatusOK, http.StatusServiceUnavailable
	status4, server := proxyOn(t, "127.0.0.1:0")
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.99"), netip.IPv6Loopback()}
	serves := func(virtual string) bool {
		return ProxyHealthCheck{}.Serves(t.Context(), addrs, netip.MustParseAddr(virtual), int32(port))
	}
	expect := func(what string, want4, want6 bool) {
		t.Helper()
		// On a busy machine an answer comes after the time limit of the question.
		for deadline := time.Now().Add(time.Minute); ; {
			got4, got6 := serves("198.51.100.1"), serves("2001:db8::1")
			if got4 == want4 && got6 == want6 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: IPv4 %t, IPv6 %t", what, got4, got6)
			}
		}
	}
	status4.Store(ok)
	expect("one part for both families", true, true)
	status4.Store(notYet)
	expect("one part for both families, without an endpoint", false, false)
	status6, server6 := proxyOn(t, netip.AddrPortFrom(netip.IPv6Loopback(), port).String())
	status6.Store(ok)
	expect("only the part for IPv6 knows of the endpoint", false, true)
	status4.Store(ok)
	status6.Store(notYet)
	expect("only the part for IPv4 knows of the endpoint", true, false)
	server.Close()
	server6.Close()
	expect("nobody listens", false, false)
}
