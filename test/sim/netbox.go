package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"os"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/test/netbox"
	"github.com/purelb/purelb-operator/test/twin"
)

// The ServiceGroups whose addresses NetBox has: one of prefixes, and one of what is reserved for a tenant.
const (
	GroupNetBox = "netbox"
	GroupTenant = "tenant"
)

// The prefixes of GroupNetBox, and those of the tenant's addresses.
var (
	netboxPrefixes = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("2001:db8:3::/124")}
	tenantPrefixes = []netip.Prefix{netip.MustParsePrefix("203.0.114.0/28"), netip.MustParsePrefix("2001:db8:4::/124")}
)

const (
	netboxURL    = twin.URLOfNetBox
	netboxSecret = "netbox"
	netboxTag    = "purelb"
	netboxTenant = "purelb"
	// tenantAddresses is how many addresses of each family the tenant has.
	tenantAddresses = 8
)

// NetBox is the NetBox of a cluster, and the way to it. What it answers is the fake's of test/netbox.
type NetBox struct {
	Server *netbox.Server
	// Installation is what begins the marks of the cluster's records.
	Installation types.UID
	// OnWrite, if set, is called after each request by which somebody may have changed something.
	OnWrite func(who string)
	// IsDown means that nothing listens, and IsCut that nobody hears who dials.
	IsDown, IsCut bool
	// Hangs means that it takes requests, and does nothing of what they ask.
	Hangs bool
	// IsBroken means that what stands before it answers 502, and IsSlow that requests take up to maxSlow.
	IsBroken, IsSlow bool
	// LosesAnswers means that half of the answers get lost.
	LosesAnswers bool

	world *World
}

// How long a request to NetBox takes, and how long it takes while that is slow: longer than who asks waits.
const (
	minNetBox, maxNetBox = 5 * time.Millisecond, 60 * time.Millisecond
	minSlow, maxSlow     = 500 * time.Millisecond, 25 * time.Second
	// dialTimeout is how long a connection may take.
	dialTimeout = 1500 * time.Millisecond
)

// way is the way from a manager to a NetBox.
type way struct {
	netbox  *NetBox
	manager *Manager
}

// RoundTrip makes a request. It arrives whatever becomes of the manager meanwhile.
func (w way) RoundTrip(r *http.Request) (*http.Response, error) {
	n, m, ctx := w.netbox, w.manager, r.Context()
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // it is in memory
	}
	if m.pausesAtNetBox != nil && m.pausesAtNetBox(r) {
		m.pausesAtNetBox = nil
		m.Pause()
	}
	if m.Wait(ctx, minSlice) == tasks.Ended {
		return nil, errors.Join(errNoAnswer, ctx.Err())
	}
	if n.IsDown {
		m.Wait(ctx, n.half())
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	if n.IsCut {
		m.Wait(ctx, dialTimeout)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	var answer *httptest.ResponseRecorder
	ended := make(chan struct{}, 1)
	end := func() {
		ended <- struct{}{}
		m.after(0, func() {}) // which wakes its tasks
	}
	n.world.After(n.half(), func() {
		if n.IsDown || n.IsCut || n.Hangs {
			n.world.Tell("netbox", "does nothing of %s %s of %s", r.Method, r.URL.Path, m.name)
			return
		}
		served := n.serve(r, body, m.name)
		switch {
		case !n.LosesAnswers || n.world.Chance(0.5):
			answer = served
		case n.world.Chance(0.5):
			n.world.Tell("netbox", "the answer to %s %s of %s gets lost", r.Method, r.URL.Path, m.name)
			return
		default:
			n.world.Tell("netbox", "resets the connection of %s after %s %s", m.name, r.Method, r.URL.Path)
		}
		n.world.After(n.half(), end)
	})
	if m.Wait(ctx, tasks.Forever, ended) == tasks.Ended {
		return nil, errors.Join(errNoAnswer, ctx.Err())
	}
	if answer == nil {
		return nil, io.ErrUnexpectedEOF
	}
	return answer.Result(), nil
}

var errNoAnswer = errors.New("no answer")

// half is how long a request is on its way, or its answer.
func (n *NetBox) half() time.Duration {
	if n.IsSlow {
		return n.world.Between(minSlow/2, maxSlow/2)
	}
	return n.world.Between(minNetBox/2, maxNetBox/2)
}

// serve answers a request of somebody.
func (n *NetBox) serve(r *http.Request, body []byte, who string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	if n.IsBroken {
		answer.WriteHeader(http.StatusBadGateway)
		return answer
	}
	request := r.Clone(context.Background())
	request.Body = io.NopCloser(bytes.NewReader(body))
	do := func() { n.Server.ServeHTTP(answer, request) }
	if r.Method == http.MethodGet {
		do()
	} else {
		n.write(who, do)
		n.world.Tell("netbox", "%s %s of %s: %d", r.Method, r.URL.Path, who, answer.Code)
	}
	return answer
}

// write does what may change something, for somebody.
func (n *NetBox) write(who string, do func()) {
	do()
	if n.OnWrite != nil {
		n.OnWrite(who)
	}
}

// NewNetBoxCluster returns a cluster of two nodes on one link with a NetBox, whose version the seed says, and the two
// ServiceGroups that take their addresses from there.
func NewNetBoxCluster(w *World) (*Cluster, error) { return newNetBoxCluster(w, 2) }

// newNetBoxCluster returns one of some nodes.
func newNetBoxCluster(w *World, nodes int) (*Cluster, error) {
	c, err := NewCluster(w, nodes)
	if err != nil {
		return nil, err
	}
	version := []netbox.Version{netbox.V44, netbox.V46}[w.seed%2]
	w.Tell("netbox", "has version %s", version)
	n := &NetBox{Server: netbox.NewServer(version), world: w}
	c.NetBox = n
	n.Server.Create("tags", map[string]any{"name": netboxTag, "slug": netboxTag})
	n.Server.Create("tenants", map[string]any{"name": netboxTenant, "slug": netboxTenant})
	for i, prefix := range netboxPrefixes {
		n.Server.Create("prefixes", map[string]any{"prefix": prefix.String()})
		n.Server.Create("prefixes", map[string]any{"prefix": tenantPrefixes[i].String()})
		for number := range byte(tenantAddresses) {
			n.Server.Create("ip-addresses", map[string]any{
				"address": netip.PrefixFrom(addressOf(tenantPrefixes[i], number+1), tenantPrefixes[i].Bits()).String(),
				"tenant":  map[string]any{"slug": netboxTenant}, "status": "reserved",
			})
		}
	}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	objects := []client.Object{system, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: netboxSecret},
		Data:       map[string][]byte{"token": []byte(netbox.TokenV1), "url": []byte(netboxURL)},
	}}
	for _, name := range []string{GroupNetBox, GroupTenant} {
		group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
		group.Spec.Netbox = &v1.NetboxPools{
			URL: netboxURL, TokenSecretRef: v1.SecretKeyRef{Name: netboxSecret, Key: "token"}, Tenant: netboxTenant,
		}
		if name == GroupNetBox {
			group.Spec.Netbox.Tenant = ""
			group.Spec.Netbox.V4 = &v1.NetboxSource{Prefixes: []string{netboxPrefixes[0].String()}}
			group.Spec.Netbox.V6 = &v1.NetboxSource{Prefixes: []string{netboxPrefixes[1].String()}}
		}
		objects = append(objects, group)
	}
	for _, object := range objects {
		if err := c.Admin.Create(context.Background(), object); err != nil {
			return nil, fmt.Errorf("create %s: %w", object.GetName(), err)
		}
	}
	n.Installation = system.UID
	return c, nil
}
