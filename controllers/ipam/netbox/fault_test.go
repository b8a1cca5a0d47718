package netbox_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/controllers/ipam/ipamtest"
	"github.com/purelb/purelb-operator/controllers/ipam/netbox"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// TestFaultNetBox answers in every way that NetBox, a proxy before it or something else at
// its URL may answer: each gives a short text that does not change and does not have the
// token. This test shows the row "something else answers: a page, a redirect, endless or broken data"
// of docs/trust.md.
func TestFaultNetBox(t *testing.T) {
	page := func(status int, contentType, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Location", "https://login.example/")
			w.WriteHeader(status)
			fmt.Fprint(w, strings.ReplaceAll(body, "TOKEN", r.Header.Get("Authorization")))
			return true
		}
	}
	const cannot = "NetBox URL cannot be asked: "
	for _, row := range []struct {
		name   string
		before func(http.ResponseWriter, *http.Request) bool
		reason string
		want   string
	}{
		{
			"a redirect", page(302, "text/html", "moved"), v1.ReasonIPAMUnavailable,
			cannot + "it redirects (302): is there a page for logging in before it, or does its URL begin otherwise?",
		},
		{
			"a page", page(200, "text/html", "<html>welcome TOKEN</html>"), v1.ReasonIPAMUnavailable,
			cannot + "it answers 200, but not in JSON: is there something else at this URL?",
		},
		{
			"other JSON", page(200, "application/json", `["hello"]`), v1.ReasonIPAMUnavailable,
			cannot + "the answer is not what NetBox sends: is there something else at this URL?",
		},
		{
			"broken JSON", page(200, "application/json", `{"results": [`), v1.ReasonIPAMUnavailable,
			cannot + "the answer is not what NetBox sends: is there something else at this URL?",
		},
		{"an error of the server", page(500, "text/html", "oops TOKEN"), v1.ReasonIPAMUnavailable, cannot + "it answers 500"},
		{"maintenance", page(503, "text/html", "back soon"), v1.ReasonIPAMUnavailable, cannot + "it answers 503"},
		{"too many requests", page(429, "application/json", "{}"), v1.ReasonIPAMUnavailable, cannot + "it answers 429"},
		{
			"a token that is refused", page(403, "application/json", `{"detail":"Invalid TOKEN"}`), v1.ReasonIPAMRefused,
			"NetBox URL refuses the token (403): Invalid Token ***",
		},
		{
			"401", page(401, "application/json", `{"detail":"no"}`), v1.ReasonIPAMRefused,
			"NetBox URL refuses the token (401): no",
		},
		{
			"the connection ends", func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
			v1.ReasonIPAMUnavailable, cannot + "the connection ended early",
		},
		{"without end", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			for range 10 << 10 {
				if _, err := w.Write([]byte(strings.Repeat(" ", 1024))); err != nil {
					return true
				}
			}
			return true
		}, v1.ReasonIPAMUnavailable, cannot + "an answer has more than 8388608 bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFake(t, fake.V44, fake.TokenV1)
			w.prefix(w.v4, nil)
			w.fake.SetFaults(row.before, nil)
			for range 2 {
				_, err := w.connect(w.config(), ipamtest.Installation).Allocate(t.Context(), request("web"))
				var failed *ipam.Error
				scope := ipam.ScopeRequest
				if row.reason == v1.ReasonIPAMRefused {
					scope = ipam.ScopeGroup
				}
				if !errors.As(err, &failed) || failed.Reason != row.reason || failed.Scope != scope {
					t.Fatalf("got %#v, want one of reason %s and scope %d", err, row.reason, scope)
				}
				if got := strings.ReplaceAll(failed.Message, w.base, "URL"); got != row.want {
					t.Errorf("got  %s\nwant %s", got, row.want)
				}
				if strings.Contains(failed.Message, fake.TokenV1) {
					t.Errorf("has the token: %s", failed.Message)
				}
			}
			// NetBox does no better when it is asked for its status: it is away.
			if err := w.connect(w.config(), ipamtest.Installation).Check(t.Context()); err == nil ||
				strings.ReplaceAll(err.Error(), w.base, "URL") != row.want {
				t.Errorf("its status: got %v", err)
			}
			w.fake.SetFaults(nil, nil)
		})
	}
}

// An error that says the time, or a port of this host, would be another one with each
// attempt.
func TestFaultSameWords(t *testing.T) {
	for _, row := range []struct {
		err  error
		want string
	}{
		{
			x509.CertificateInvalidError{
				Cert: &x509.Certificate{}, Reason: x509.Expired,
				Detail: "current time 2026-11-22T16:00:01Z is after 2026-11-01T00:00:00Z",
			},
			"its certificate has expired, or is not valid yet",
		},
		{
			&net.DNSError{
				Err: "read udp 10.0.0.1:41234->10.96.0.10:53: read: connection refused", Name: "netbox.example",
				Server: "10.96.0.10:53",
			},
			"its name cannot be looked up",
		},
		{&net.DNSError{Err: "i/o timeout", Name: "netbox.example", IsTimeout: true}, "its name cannot be looked up"},
		{errors.New(strings.Repeat("long ", 1000)), ""},
	} {
		w := newFake(t, fake.V46, fake.TokenV2)
		s, err := netbox.NewSystem(w.config(), w.token, ipamtest.Installation,
			netbox.Options{Now: time.Now, Proxy: func(*http.Request) (*url.URL, error) {
				return nil, &net.OpError{Op: "dial", Err: row.err}
			}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ipamtest.Inspect(t.Context(), s)
		got := strings.TrimPrefix(err.Error(), "NetBox "+w.base+" cannot be asked: ")
		if row.want != "" && got != row.want || len(got) > 400 {
			t.Errorf("%v: got %s", row.err, got)
		}
	}
}

func TestFaultNoConnection(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	refused := server.URL
	server.Close()
	for base, want := range map[string]string{
		refused:                            "NetBox " + refused + " cannot be asked: dial: connect: connection refused",
		"http://no-such-host.invalid:8000": "NetBox http://no-such-host.invalid:8000 cannot be asked: no such host",
		"https://" + refused[len("http://"):]: "NetBox https://" + refused[len("http://"):] +
			" cannot be asked: dial: connect: connection refused",
	} {
		w := emptyWorld(t, base, fake.TokenV1, nil)
		_, err := w.connect(w.config(), ipamtest.Installation).Allocate(t.Context(), request("web"))
		if err == nil || err.Error() != want && !strings.Contains(err.Error(), "lookup") {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		var failed *ipam.Error
		if !errors.As(err, &failed) || failed.Scope != ipam.ScopeEndpoint {
			t.Errorf("%v: got %#v, want one that concerns all", base, err)
		}
	}
}

// A permission that is missing concerns the group, or the request, and not all: NetBox is
// well. This test shows the row "a permission is missing" of docs/trust.md.
func TestFaultPermissions(t *testing.T) {
	for _, row := range []struct {
		denied string
		scope  ipam.Scope
		want   string
	}{
		{
			"GET ip-addresses", ipam.ScopeGroup,
			"NetBox URL refuses the token (403): You do not have permission to perform this action.",
		},
		{
			"GET prefixes", ipam.ScopeGroup,
			"NetBox URL refuses the token (403): You do not have permission to perform this action.",
		},
		{
			"POST ip-addresses", ipam.ScopeRequest,
			"NetBox URL refuses the request: 403: You do not have permission to perform this action.; the token's user needs " +
				"the permissions to view prefixes, IP ranges, VRFs, tenants and tags, and to view, add, change and delete IP " +
				"addresses",
		},
	} {
		w := newFake(t, fake.V46, fake.TokenV2)
		w.prefix(w.v4, nil)
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {Denied: []string{row.denied}}})
		_, err := w.connect(w.config(), ipamtest.Installation).Allocate(t.Context(), request("web"))
		var failed *ipam.Error
		if !errors.As(err, &failed) || failed.Reason != v1.ReasonIPAMRefused || failed.Scope != row.scope ||
			strings.ReplaceAll(failed.Message, w.base, "URL") != row.want {
			t.Errorf("without %s: got %v", row.denied, err)
		}
		if err := w.connect(w.config(), ipamtest.Installation).Check(t.Context()); err != nil {
			t.Errorf("without %s: its status: %v", row.denied, err)
		}
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {}})
	}
}

// A permission with a constraint is for some addresses only: NetBox then says of others that
// they are not there, although they can be seen. This test shows the row "its permission for the token
// has a constraint that an address does not meet" of docs/trust.md.
func TestFaultConstrainedPermission(t *testing.T) {
	const want = "NetBox URL refuses the request: the token may view the address, and neither change nor delete it: a " +
		"permission of its user may have a constraint, as for a tag that the address does not have"
	for _, row := range []struct {
		name string
		test func(*world, *netbox.System) error
	}{
		{"release", func(w *world, s *netbox.System) error {
			return s.Release(w.Context(), w.addr(1))
		}},
		{"change of the owner", func(w *world, s *netbox.System) error {
			_, err := s.Allocate(w.Context(), requestOf("other", w.addr(1)))
			return err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newFake(t, fake.V46, fake.TokenV2)
			w.prefix(w.v4, nil)
			s := w.connect(w.config(), ipamtest.Installation)
			w.allocate(s, request("web"))
			w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {OnlyTagged: "purelb"}})
			err := row.test(w, s)
			w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {}})
			w.checkRefused(err, want)
			w.recordAt(w.addr(1))
		})
	}
	t.Run("tenant", func(t *testing.T) {
		w := newFake(t, fake.V46, fake.TokenV2)
		config, _ := tenantFixture(w)
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {OnlyTagged: "purelb"}})
		_, err := w.connect(config, ipamtest.Installation).Allocate(t.Context(), request("web"))
		w.fake.SetTokens(map[string]fake.Token{fake.TokenV2: {}})
		w.checkRefused(err, want)
	})
}

func (w *world) checkRefused(err error, want string) {
	w.Helper()
	var failed *ipam.Error
	if !errors.As(err, &failed) || failed.Reason != v1.ReasonIPAMRefused || failed.Scope != ipam.ScopeRequest {
		w.Fatalf("got %v, want a refusal", err)
	}
	if got, _, _ := strings.Cut(strings.ReplaceAll(failed.Message, w.base, "URL"), ";"); got != want {
		w.Errorf("got  %s\nwant %s", got, want)
	}
}

// A request whose answer is lost has been served: the next one finds what it has made.
func TestFaultLostAnswer(t *testing.T) {
	for _, tenant := range []bool{false, true} {
		w := newFake(t, fake.V46, fake.TokenV2)
		config := w.config()
		if tenant {
			config, _ = tenantFixture(w)
		} else {
			w.prefix(w.v4, nil)
		}
		var lost atomic.Int32
		w.fake.SetFaults(nil, func(r *http.Request, _ int) bool {
			return r.Method == http.MethodGet || lost.Add(1) > 1
		})
		s := w.connect(config, ipamtest.Installation)
		if a, err := s.Allocate(t.Context(), request("web")); err == nil {
			t.Fatalf("got %s although the answer was lost", a)
		}
		w.allocate(s, request("web"))
		report, err := ipamtest.Inspect(t.Context(), s)
		if err != nil || len(report.MarkedRecords) != 1 {
			t.Errorf("tenant %v: %d records, %v", tenant, len(report.MarkedRecords), err)
		}
		w.fake.SetFaults(nil, nil)
	}
}

// An address that somebody has recorded with another mask than the range's is not free,
// though NetBox 4.4 takes it for that.
func TestOtherMaskInRange(t *testing.T) {
	forEachNetBox(t, func(w *world) {
		config, _ := rangeFixture(w)
		w.send(http.MethodPost, addresses, object{"address": w.addr(10).String() + "/32", "description": "the printer"}).want(
			w, http.StatusCreated,
		)
		if a := w.allocate(w.connect(config, ipamtest.Installation), request("web")); a != w.addr(11) {
			w.Errorf("got %s", a)
		}
		w.recordAt(w.addr(10))
	})
}

// Two clusters see the same address free at the same moment. Since 4.6, NetBox refuses the
// second change. Before, the last one counts; the next comparison of the other cluster
// finds that its address is recorded as somebody else's. This test shows the row "two clusters take
// one reserved address at the same moment" of docs/trust.md.
func TestFaultTwoClustersTakeOne(t *testing.T) {
	for _, version := range []fake.Version{fake.V44, fake.V46} {
		w := newFake(t, version, fake.TokenV1)
		config, _ := tenantFixture(w)
		other := w.connect(config, ipamtest.OtherInstallation)
		var once atomic.Bool
		var theirs netip.Addr
		w.fake.SetFaults(func(_ http.ResponseWriter, r *http.Request) bool {
			// The other one takes it just before the change of the first.
			if r.Method == http.MethodPatch && once.CompareAndSwap(false, true) {
				theirs = w.allocate(other, request("web"))
			}
			return false
		}, nil)
		ours := w.allocate(w.connect(config, ipamtest.Installation), request("web"))
		w.fake.SetFaults(nil, nil)
		mark := ipamtest.NewOwner("web", 0).Mark(ipamtest.Installation) + "/" + ours.String()
		switch {
		case version == fake.V46 && ours == theirs:
			t.Errorf("both have %s", ours)
		case version == fake.V44 && w.recordAt(ours)["description"] != mark:
			t.Errorf("%s is not recorded as ours", ours)
		}
	}
}

// The token goes to NetBox and nowhere else. This test shows the row "it sends the manager elsewhere"
// of docs/trust.md.
func TestAttackRedirectForToken(t *testing.T) {
	var got atomic.Value
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	w := newFake(t, fake.V46, fake.TokenV2)
	w.fake.SetFaults(func(rw http.ResponseWriter, r *http.Request) bool {
		http.Redirect(rw, r, thief.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}, nil)
	if _, err := ipamtest.Inspect(t.Context(), w.connect(w.config(), ipamtest.Installation)); err == nil {
		t.Error("no error")
	}
	if got.Load() != nil {
		t.Errorf("the redirect's target got %q", got.Load())
	}
	w.fake.SetFaults(nil, nil)
}

func TestTLSAndProxy(t *testing.T) {
	server := fake.NewServer(fake.V46)
	secure := httptest.NewUnstartedServer(server)
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	secure.EnableHTTP2 = true
	server.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.ProtoMajor != 1 {
			t.Errorf("%s: a connection that has gone dead would be used again", r.Proto)
		}
		return false
	}
	secure.StartTLS()
	defer secure.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	config := &allocation.Netbox{URL: secure.URL, Status: "active", Tenant: "lab"}
	server.Create("tenants", map[string]any{"name": "lab", "slug": "lab"})

	inspect := func(config *allocation.Netbox, o netbox.Options) error {
		o.Now = time.Now
		s, err := netbox.NewSystem(config, fake.TokenV2, ipamtest.Installation, o)
		if err != nil {
			return err
		}
		_, err = ipamtest.Inspect(t.Context(), s)
		return err
	}
	if err := inspect(config, netbox.Options{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	trusted := *config
	trusted.CABundle = ca
	if err := inspect(&trusted, netbox.Options{}); err != nil {
		t.Errorf("with caBundle: %v", err)
	}
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Error(w, "no", http.StatusBadGateway)
	}))
	defer proxy.Close()
	to, _ := url.Parse(proxy.URL)
	if err := inspect(&trusted, netbox.Options{Proxy: http.ProxyURL(to)}); err == nil || asked.Load() == 0 {
		t.Errorf("by a proxy: %v, asked %d times", err, asked.Load())
	}
}
