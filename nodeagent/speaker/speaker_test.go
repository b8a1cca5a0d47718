package speaker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// fakeServer holds what it is told, and says in which order it was told.
type fakeServer struct {
	log      []string
	peers    []netip.Addr
	startErr error        // why it does not start
	refuses  netip.Addr   // this neighbour, and takes all others
	rejects  netip.Prefix // this route, and takes all others
	sessions func(peer netip.Addr) routes.Session
	resets   chan netip.Addr // whose sessions were reset
}

func (f *fakeServer) Start(_ context.Context, routerID netip.Addr) error {
	f.log = append(f.log, "start "+routerID.String())
	return f.startErr
}

func (f *fakeServer) Apply(_ context.Context, c routes.Changes) routes.Refusals {
	refused := routes.Refusals{Paths: map[netip.Prefix]error{}, Peers: map[netip.Addr]error{}}
	for _, p := range c.RemovePaths {
		f.log = append(f.log, "-"+p.String())
	}
	for _, p := range c.AddPaths {
		if p.Prefix == f.rejects {
			refused.Paths[p.Prefix] = errors.New("the route is refused")
			continue
		}
		text := "+" + p.Prefix.String()
		if slices.Contains(p.Communities, routes.GracefulShutdownCommunity) {
			text += " avoid"
		}
		f.log = append(f.log, text)
	}
	for _, p := range c.RemovePeers {
		f.log = append(f.log, "-"+p.Neighbour.String())
		f.peers = slices.DeleteFunc(f.peers, func(a netip.Addr) bool { return a == p.Neighbour })
	}
	for _, p := range append(c.ReopenPeers, c.AddPeers...) {
		if p.Neighbour == f.refuses {
			refused.Peers[p.Neighbour] = errors.New("refused")
			continue
		}
		text := "+" + p.Neighbour.String()
		if p.SetsRestartState {
			text += " restarting"
		}
		if p.Password != "" {
			text += " " + p.Password
		}
		f.log = append(f.log, text)
		if !slices.Contains(f.peers, p.Neighbour) {
			f.peers = append(f.peers, p.Neighbour)
		}
	}
	return refused
}

func (f *fakeServer) TendSessions(context.Context) ([]routes.Session, error) {
	var sessions []routes.Session
	for _, p := range f.peers {
		s := routes.Session{Neighbour: p, State: purelbv1.SessionEstablished, HasSentAll: true}
		if f.sessions != nil {
			s = f.sessions(p)
		}
		sessions = append(sessions, s)
	}
	return sessions, nil
}

func (f *fakeServer) ResetSession(_ context.Context, neighbour netip.Addr) error {
	f.resets <- neighbour
	return nil
}

func (f *fakeServer) Stop(_ context.Context, graceful bool) error {
	if graceful {
		f.log = append(f.log, "stop, routes stay")
	} else {
		f.log = append(f.log, "stop, routes go")
	}
	return nil
}

// take returns what the library was told since the last call.
func (f *fakeServer) take() []string {
	log := f.log
	f.log = nil
	return log
}

// fakeBFD watches neighbours of which the test says how they are.
type fakeBFD struct {
	watched map[netip.Addr]bfd.NeighbourSettings
	states  map[netip.Addr]bfd.State
	failed  func(netip.Addr)
	ctx     context.Context
	server  *fakeServer
}

func (f *fakeBFD) Sync(watched map[netip.Addr]bfd.NeighbourSettings) { f.watched = watched }

func (f *fakeBFD) State(neighbour netip.Addr) bfd.State { return f.states[neighbour] }

func (f *fakeBFD) Wait() {
	<-f.ctx.Done()
	f.server.log = append(f.server.log, "end of BFD")
}

// fakeKernel has addresses on kube-lb0.
type fakeKernel struct {
	addresses []string
	// later are the addresses from the next listing but one, if there are any.
	later     []string
	err       error
	sourceErr error // of the addresses that sessions have as their source
	gateways  map[netip.Addr][]netip.Addr
}

func (k *fakeKernel) GatewaysFrom(address netip.Addr) ([]netip.Addr, error) {
	return k.gateways[address], nil
}

func (k *fakeKernel) Addresses(iface string) ([]plan.Address, error) {
	return []plan.Address{{Interface: iface, Prefix: netip.MustParsePrefix("10.9.9.7/32")}}, k.sourceErr
}

func (k *fakeKernel) AgentAddresses(iface string) ([]netip.Prefix, error) {
	var own []netip.Prefix
	for _, a := range k.addresses {
		if iface == "kube-lb0" {
			own = append(own, netip.MustParsePrefix(a))
		}
	}
	if len(k.later) > 0 {
		k.addresses, k.later = k.later, nil
	}
	return own, k.err
}

func (k *fakeKernel) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (k *fakeKernel) RouterAddressOn(string) (netip.Addr, error) {
	return netip.Addr{}, errors.New("no router")
}

// world is a speaker with a fake library and kernel, whose rounds the test runs.
type world struct {
	*Speaker
	server *fakeServer
	bfd    *fakeBFD
	kernel *fakeKernel
	t      testing.TB
	proxy  bool
}

func newWorld(t testing.TB, dir string) *world {
	t.Helper()
	w := &world{
		server: &fakeServer{resets: make(chan netip.Addr, 1)}, kernel: &fakeKernel{addresses: []string{"198.51.100.1/32"}},
		t: t, proxy: true,
	}
	w.Speaker = &Speaker{
		Kernel: w.kernel, NewBGPServer: func(func()) BGPServer { return w.server },
		Hello: func(from, to netip.Addr) error { return fmt.Errorf("no hello from %s to %s", from, to) },
		ProxyForwards: func(context.Context) bool {
			return w.proxy
		},
		Metrics: NewMetrics(prometheus.NewRegistry()), NodeName: "node1", Namespace: "purelb-system", StateDir: dir,
		PasswordDir: filepath.Join(dir, "passwords"), UnitDir: filepath.Join(dir, "units"),
		StartBFD: func(ctx context.Context, _ func(), failed func(netip.Addr)) (BFD, error) {
			w.bfd = &fakeBFD{failed: failed, ctx: ctx, server: w.server}
			return w.bfd, nil
		},
	}
	if err := os.MkdirAll(w.UnitDir, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(w.UnitDir, "invocation:"+shutdownUnit)
	if err := os.Symlink("1", link); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	w.Prepare()
	if err := errors.Join(w.restore(t.Context()), w.startBFD(t.Context())); err != nil {
		t.Fatal(err)
	}
	return w
}

// routingOf is a NodeRouting with these neighbours.
func routingOf(generation int64, peers ...string) *purelbv1.NodeRouting {
	r := &purelbv1.NodeRouting{
		Spec: purelbv1.NodeRoutingSpec{
			NodeName: "node1", LBNodeAgent: "default", Interface: "kube-lb0", RouterID: "192.0.2.11",
		},
	}
	r.Name, r.Namespace, r.UID, r.Generation = "node1", "purelb-system", "u", generation
	for _, p := range peers {
		r.Spec.Peers = append(
			r.Spec.Peers,
			purelbv1.RoutingPeer{Name: "p", Address: p, PeerASN: 65000, MyASN: 65001, RestartSeconds: 30, HoldSeconds: 9},
		)
	}
	return r
}

// expect runs one round and compares what the library was told.
func (w *world) expect(want ...string) time.Duration {
	w.t.Helper()
	wait, err := w.round(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, haveEnded := w.saver.WriteDue(w.t.Context()); !haveEnded || w.saver.Problem() != "" {
		w.t.Error("the checkpoint is not written", w.saver.Problem())
	}
	if diff := cmp.Diff(want, w.server.take()); diff != "" {
		w.t.Errorf("what the library was told (-want +got):\n%s", diff)
	}
	return wait
}

func TestRounds(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.expect() // nothing is known
	w.setRouting(routingOf(1, "192.0.2.1"), false)
	w.proxy = false
	if wait := w.expect("start 192.0.2.11", "+198.51.100.1/32"); wait != proxyInterval {
		t.Errorf("waits %s for the service proxy", wait)
	}
	if w.Ready() == nil {
		t.Error("ready before any session")
	}
	w.proxy = true
	w.expect("+192.0.2.1")
	if err := w.Ready(); err != nil {
		t.Error(err)
	}
	w.expect() // nothing changes
	w.kernel.addresses = []string{"198.51.100.2/32", "203.0.113.5/24", "203.0.113.6/24"}
	w.expect("-198.51.100.1/32", "+198.51.100.2/32", "+203.0.113.0/24")
	w.kernel.addresses = []string{"203.0.113.6/24"}
	w.expect("-198.51.100.2/32")
	w.setRouting(routingOf(2, "192.0.2.2"), false)
	w.expect("-192.0.2.1", "+192.0.2.2")
}

// TestSettledRounds lets things happen to a speaker whose library holds everything. The round after decides anew.
func TestSettledRounds(t *testing.T) {
	for _, row := range []struct {
		name    string
		happens func(*world)
		want    []string
	}{
		{"nothing", func(*world) {}, nil},
		{"an address comes", func(w *world) {
			w.kernel.addresses = append(w.kernel.addresses, "198.51.100.2/32")
		}, []string{"+198.51.100.2/32"}},
		{"an address is another one", func(w *world) { w.kernel.addresses = []string{"198.51.100.2/32"} },
			[]string{"-198.51.100.1/32", "+198.51.100.2/32"}},
		{"the same NodeRouting comes again", func(w *world) { w.setRouting(w.routing, false) }, nil},
		{"a neighbour comes", func(w *world) { w.setRouting(routingOf(2, "192.0.2.1", "192.0.2.2"), false) },
			[]string{"+192.0.2.2"}},
		{"the node has another identifier", func(w *world) {
			routing := routingOf(2, "192.0.2.1")
			routing.Spec.RouterID = "192.0.2.12"
			w.setRouting(routing, false)
		}, []string{"stop, routes stay", "start 192.0.2.12", "+198.51.100.1/32", "+192.0.2.1 restarting"}},
		{"a group withholds the address", func(w *world) {
			routing := routingOf(2, "192.0.2.1")
			routing.Spec.Withheld = []string{"198.51.100.1-198.51.100.9"}
			w.setRouting(routing, false)
		}, []string{"-198.51.100.1/32"}},
		{"the library has lost the neighbour", func(w *world) {
			w.server.peers = nil
			w.expect() // the round finds that out
		}, []string{"+192.0.2.1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			w.setRouting(routingOf(1, "192.0.2.1"), false)
			w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
			w.expect()
			if w.state.settledOn.routing != w.routing {
				t.Error("the speaker is not settled")
			}
			row.happens(w)
			w.expect(row.want...)
			w.expect()
		})
	}
}

// BenchmarkRoundAtRest runs rounds of a speaker whose library holds routes to 1,000 addresses, while nothing changes.
func BenchmarkRoundAtRest(b *testing.B) {
	w := newWorld(b, b.TempDir())
	w.kernel.addresses = nil
	for i := range 1000 {
		w.kernel.addresses = append(w.kernel.addresses, fmt.Sprintf("198.18.%d.%d/32", i/250, i%250+1))
	}
	w.setRouting(routingOf(1, "192.0.2.1"), false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.round(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReadyInTheEnd checks that a speaker without a NodeRouting holds up the update of other nodes for a while only.
func TestReadyInTheEnd(t *testing.T) {
	for _, row := range []struct {
		name    string
		happens func(*world)
	}{
		{"no NodeRouting", func(*world) {}},
		{"NodeRouting deleted at once", func(w *world) { w.setRouting(routingOf(1, "192.0.2.1"), true) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			row.happens(w)
			for _, waited := range []time.Duration{0, readyPatience - time.Second, readyPatience + time.Second} {
				w.state.startedAt = time.Now().Add(-waited)
				if _, err := w.round(t.Context()); err != nil {
					t.Fatal(err)
				}
				if isReady := w.Ready() == nil; isReady != (waited > readyPatience) {
					t.Errorf("ready after %s: %t", waited, isReady)
				}
			}
		})
	}
}

// TestEnds ends speakers: neighbours are to keep the routes only if another follows. The names of its rows are
// the first cells of the table of docs/how-to/bgp.md.
func TestEnds(t *testing.T) {
	const keep, drop = "stop, routes stay", "stop, routes go"
	drain := func(w *world) {
		routing := routingOf(2, "192.0.2.1")
		routing.Spec.DrainSince = &metav1.Time{Time: time.Now()}
		w.setRouting(routing, false)
	}
	unitStops := func(w *world) {
		if err := os.Remove(filepath.Join(w.UnitDir, "invocation:"+shutdownUnit)); err != nil {
			w.t.Error(err)
		}
	}
	var names []string
	for _, row := range []struct {
		name    string
		happens func(*world)
		want    string
	}{
		{"the speaker is updated or restarted, or crashes", func(*world) {}, keep},
		{"the node reboots or shuts down", unitStops, drop},
		{"traffic is to leave the node", drain, drop},
		{"its last BGPPeer or PureLB is removed", func(w *world) {
			w.setRouting(routingOf(1, "192.0.2.1"), true)
			w.expect() // a NodeRouting that is missing is not an empty one
		}, drop},
	} {
		names = append(names, row.name)
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			w.t = t
			w.setRouting(routingOf(1, "192.0.2.1"), false)
			w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
			row.happens(w)
			if err := w.stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{row.want}, w.server.take()); diff != "" {
				t.Errorf("end (-want +got):\n%s", diff)
			}
		})
	}
	page, err := os.ReadFile("../../docs/how-to/bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## What a stop does\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, match := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(section, -1) {
		listed = append(listed, match[1])
	}
	if diff := cmp.Diff(append([]string{"what happens"}, names...), listed); diff != "" {
		t.Errorf("the table of docs/how-to/bgp.md (-tested +page):\n%s", diff)
	}
}

// TestShutdownIsNoticed ends a speaker whose node begins to shut down a moment later, and speakers that
// cannot know.
func TestShutdownIsNoticed(t *testing.T) {
	link := func(w *world) string { return filepath.Join(w.UnitDir, "invocation:"+shutdownUnit) }
	for _, row := range []struct {
		name          string
		before, while func(*world)
		want          string
	}{
		{"the unit stops after the speaker was told to", func(*world) {}, func(w *world) { _ = os.Remove(link(w)) },
			"stop, routes go"},
		{"there was no such unit when the speaker started", func(w *world) { _ = os.Remove(link(w)) }, func(*world) {},
			"stop, routes stay"},
		{"there is no systemd", func(w *world) { _ = os.RemoveAll(w.UnitDir) }, func(*world) {}, "stop, routes stay"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, t.TempDir())
			row.before(w)
			w.setRouting(routingOf(1, "192.0.2.1"), false)
			w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
			ended := make(chan error)
			go func() { ended <- w.stop(t.Context()) }()
			row.while(w)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{row.want}, w.server.take()); diff != "" {
				t.Errorf("end (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFaultNoAPIServer starts a second speaker, which the API server does not tell anything.
func TestFaultNoAPIServer(t *testing.T) {
	dir := t.TempDir()
	first := newWorld(t, dir)
	first.setRouting(routingOf(1, "192.0.2.1"), false)
	first.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
	next := newWorld(t, dir)
	next.proxy = false // it is not asked: the node forwards already
	next.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1 restarting")

	// After a reboot of the node nothing has been forwarded meanwhile.
	path := filepath.Join(dir, checkpointFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bootID, err := machine{}.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), bootID, "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	rebooted := newWorld(t, dir)
	rebooted.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
}

// TestNodeRoutingIsDeleted deletes the NodeRouting while a speaker runs, or while none does: a later speaker does
// not call its neighbours.
func TestNodeRoutingIsDeleted(t *testing.T) {
	for _, isRunning := range []bool{true, false} {
		dir := t.TempDir()
		w := newWorld(t, dir)
		w.setRouting(routingOf(1, "192.0.2.1"), false)
		w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
		if isRunning {
			w.setRouting(routingOf(1, "192.0.2.1"), true)
			w.expect()
		} else {
			w = newWorld(t, dir)
			w.noteSynced()
			w.expect()
		}
		w = newWorld(t, dir)
		w.expect()
		w.setRouting(routingOf(1, "192.0.2.9"), false)
		w.noteSynced()
		w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.9")
		w = newWorld(t, dir)
		w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.9 restarting")
	}
}

// TestFaultCheckpoints has speakers that find a checkpoint that they cannot use. Where the kernel has addresses of the
// agent, it has forwarded while no speaker ran, and routers that have routes are to keep them.
func TestFaultCheckpoints(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":99}`, `{"version":1,"nodeName":"node2"}`} {
		for _, forwards := range []bool{true, false} {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, checkpointFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, dir)
			want := []string{"start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1 restarting"}
			if !forwards {
				w.kernel.addresses = nil
				want = []string{"start 192.0.2.11", "+192.0.2.1"}
			}
			w.expect()
			w.setRouting(routingOf(1, "192.0.2.1"), false)
			w.expect(want...)
		}
	}
}

// retryNow lets the time pass until the library is given again what it refused.
func (w *world) retryNow() { w.state.libraryRefusal.retryAt = time.Time{} }

// TestFaultNeighbourRefused has a library that does not take the first of two neighbours, until it
// does. The speaker has a session with the other one meanwhile, and leaves that one alone.
func TestFaultNeighbourRefused(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.setRouting(routingOf(1, "192.0.2.1", "192.0.2.2"), false)
	w.server.refuses = netip.MustParseAddr("192.0.2.1")
	for _, want := range [][]string{{"start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.2"}, nil} {
		if _, err := w.round(t.Context()); err == nil {
			t.Error("no error")
		}
		if diff := cmp.Diff(want, w.server.take()); diff != "" {
			t.Errorf("what the library takes (-want +got):\n%s", diff)
		}
		w.retryNow()
	}
	w.server.refuses = netip.Addr{}
	w.expect("+192.0.2.1")
	w.expect()
}

// TestFaultRouteRefused has a library that does not take one of two routes, until it does: the status says
// so, and the route is not tried in each round.
func TestFaultRouteRefused(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.kernel.addresses = append(w.kernel.addresses, "198.51.100.2/32")
	routing := routingOf(1, "192.0.2.1")
	status := func() string {
		s := w.reporter.Latest(routing, purelbv1.NodeRoutingStatus{})
		return fmt.Sprint(s.Networks, " ", s.Conditions[0].Status, " ", s.Conditions[0].Reason, " ", s.Sessions[0].Unsent)
	}
	w.setRouting(routing, false)
	w.server.sessions = func(p netip.Addr) routes.Session {
		return routes.Session{
			Neighbour: p, State: purelbv1.SessionEstablished, Families: []purelbv1.IPFamily{"IPv4"}, HasSentAll: true,
		}
	}
	w.server.rejects = netip.MustParsePrefix("198.51.100.1/32")
	for i := range 3 {
		if _, err := w.round(t.Context()); err == nil {
			t.Error("no error")
		}
		if got := status(); got != "1 False Degraded [198.51.100.1-198.51.100.1]" {
			t.Errorf("status: %s", got)
		}
		w.server.take()
		if wait := w.expect(); wait <= 0 || wait > minRefusalRetry<<i {
			t.Errorf("refused %d times, and the next try is in %s", i+1, wait)
		}
		w.retryNow()
	}
	w.server.rejects = netip.Prefix{}
	w.expect("+198.51.100.1/32")
	if got := status(); got != "2 True Established []" {
		t.Errorf("status: %s", got)
	}
}

// TestFaultKernelUnknown has a kernel of which the speaker cannot find out what it has: the routes stay, and
// the status says why; also of a speaker that has not found out yet.
func TestFaultKernelUnknown(t *testing.T) {
	for _, isFirst := range []bool{false, true} {
		w := newWorld(t, t.TempDir())
		routing := routingOf(1, "192.0.2.1")
		w.setRouting(routing, false)
		if !isFirst {
			w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
		}
		w.kernel.addresses, w.kernel.err = nil, errors.New("the record is damaged")
		if _, err := w.round(t.Context()); err == nil {
			t.Error("no error")
		}
		if got := w.server.take(); len(got) > 0 {
			t.Errorf("the library was told %q", got)
		}
		ready := w.reporter.Latest(routing, purelbv1.NodeRoutingStatus{}).Conditions[0]
		if ready.Reason != purelbv1.ReasonDegraded || !strings.Contains(ready.Message, "the record is damaged") {
			t.Errorf("Ready: %s %s", ready.Reason, ready.Message)
		}
	}
}

// TestBGPDoesNotStart has a library that does not start, at first or when the node's identifier changes: the status
// says so, and the next round tries again.
func TestBGPDoesNotStart(t *testing.T) {
	for _, isFirst := range []bool{true, false} {
		w := newWorld(t, t.TempDir())
		routing := routingOf(1, "192.0.2.1")
		w.setRouting(routing, false)
		if !isFirst {
			w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
			routing = routingOf(2, "192.0.2.1")
			routing.Spec.RouterID = "192.0.2.12"
			w.setRouting(routing, false)
		}
		ready := func() string {
			status := w.reporter.Latest(routing, purelbv1.NodeRoutingStatus{})
			return fmt.Sprint(status.SessionsText, " ", status.Networks, " ", status.Conditions[0].Message)
		}
		w.server.startErr = errors.New("no memory")
		if _, err := w.round(t.Context()); err == nil {
			t.Error("no error")
		}
		if got := ready(); !strings.HasPrefix(got, "0/1 0 ") || !strings.Contains(got, "no memory") {
			t.Errorf("Ready: %s", got)
		}
		w.server.take()
		w.server.startErr, w.server.peers = nil, nil
		restarting := ""
		if !isFirst {
			restarting = " restarting"
		}
		w.expect("start "+routing.Spec.RouterID, "+198.51.100.1/32", "+192.0.2.1"+restarting)
		w.expect()
		if got := ready(); !strings.HasPrefix(got, "1/1 1 ") || strings.Contains(got, "no memory") {
			t.Errorf("Ready: %s", got)
		}
	}
}

func TestDrainPhases(t *testing.T) {
	var d drainState
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		after      time.Duration
		isDraining bool
		phase      routes.DrainPhase
		isOver     bool
		wait       time.Duration
	}{
		{0, false, routes.NotDraining, false, 0},
		{time.Second, true, routes.Avoid, false, 5 * time.Second},
		{3 * time.Second, true, routes.Avoid, false, 3 * time.Second},
		{6 * time.Second, true, routes.Withdrawn, false, 3 * time.Second},
		{9 * time.Second, true, routes.Withdrawn, true, 0},
		{time.Hour, true, routes.Withdrawn, true, 0},
		{2 * time.Hour, false, routes.NotDraining, false, 0},
		{3 * time.Hour, true, routes.Avoid, false, 5 * time.Second},
	} {
		phase, isOver, wait := d.advance(row.isDraining, now.Add(row.after))
		if phase != row.phase || isOver != row.isOver || wait != row.wait {
			t.Errorf("after %s: %v %v %s", row.after, phase, isOver, wait)
		}
	}
}

func TestDrainRounds(t *testing.T) {
	w := newWorld(t, t.TempDir())
	routing := routingOf(1, "192.0.2.1")
	w.setRouting(routing, false)
	w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
	routing = routingOf(2, "192.0.2.1")
	routing.Spec.DrainSince = &metav1.Time{Time: time.Now()}
	w.setRouting(routing, false)
	w.expect("+198.51.100.1/32 avoid")
	w.state.drain.drainsSince = w.state.drain.drainsSince.Add(-avoidTime)
	w.expect("-198.51.100.1/32")
	w.state.drain.drainsSince = w.state.drain.drainsSince.Add(-settleTime)
	w.expect()
	if !w.reporter.Latest(routing, purelbv1.NodeRoutingStatus{}).Drained {
		t.Error("not reported as drained")
	}
	w.setRouting(routingOf(3, "192.0.2.1"), false)
	w.expect("+198.51.100.1/32")
	if w.reporter.Latest(routing, purelbv1.NodeRoutingStatus{}).Drained {
		t.Error("still reported as drained")
	}
}

// TestAddressIsReplaced has an IPv6 address go and come with another prefix length: at no time is there no route to it.
func TestAddressIsReplaced(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.kernel.addresses = []string{"2001:db8::1/128"}
	w.setRouting(routingOf(1, "192.0.2.1"), false)
	w.expect("start 192.0.2.11", "+2001:db8::1/128", "+192.0.2.1")
	w.kernel.addresses, w.kernel.later = nil, []string{"2001:db8::1/64"}
	w.expect("+2001:db8::/64")
	w.kernel.addresses, w.kernel.later = nil, []string{"2001:db8::1/64"} // once more, while a route lingers
	w.expect()
	for prefix, since := range w.state.lingering {
		w.state.lingering[prefix] = since.Add(-time.Minute)
	}
	w.expect("-2001:db8::1/128")
	w.kernel.addresses = nil
	w.expect("-2001:db8::/64")
}

// TestRoutesLinger makes a network larger: its route is there before the address's is withdrawn.
func TestRoutesLinger(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.setRouting(routingOf(1, "192.0.2.1"), false)
	w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
	w.kernel.addresses = []string{"198.51.100.1/24"}
	if wait := w.expect("+198.51.100.0/24"); wait > time.Second {
		t.Errorf("the next round is due in %s", wait)
	}
	for prefix, since := range w.state.lingering {
		w.state.lingering[prefix] = since.Add(-time.Minute)
	}
	w.expect("-198.51.100.1/32")
	w.expect()
}

func TestPasswordFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"good": "secret\n", "empty": "", "long": strings.Repeat("x", 81)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := passwordReader(dir)
	for name, want := range map[string]string{
		"good": "secret", "empty": "", "long": "", "missing": "", "../good": "", "..": "",
	} {
		got, ok := read(name)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

// TestPasswordChanges replaces the file with a password: the session begins anew. Without a password, or with that of
// another file, it goes on until the file is there.
func TestPasswordChanges(t *testing.T) {
	w := newWorld(t, t.TempDir())
	if err := os.Mkdir(w.PasswordDir, 0o700); err != nil {
		t.Fatal(err)
	}
	routing := routingOf(1, "192.0.2.1")
	routing.Spec.Peers[0].PasswordFile = "p"
	w.setRouting(routing, false)
	w.expect("start 192.0.2.11", "+198.51.100.1/32")
	without := routing.DeepCopy()
	without.Spec.Peers[0].PasswordFile = ""
	w.setRouting(without, false)
	w.expect("+192.0.2.1")
	w.setRouting(routing, false)
	w.expect()
	for _, password := range []string{"first", "second"} {
		if err := os.WriteFile(filepath.Join(w.PasswordDir, "p"), []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		w.expect("+192.0.2.1 " + password)
	}
	// Another BGPPeer has the neighbour, and the kubelet brings its password later.
	routing = routing.DeepCopy()
	routing.Generation, routing.Spec.Peers[0].Name, routing.Spec.Peers[0].PasswordFile = 2, "q", "q"
	w.setRouting(routing, false)
	w.expect()
	if err := os.Rename(filepath.Join(w.PasswordDir, "p"), filepath.Join(w.PasswordDir, "q")); err != nil {
		t.Fatal(err)
	}
	w.expect()
}

// TestLock has a second speaker wait until the first one is gone, and a third one until the second one is, which the
// test does not await.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := unix.Open(filepath.Join(dir, lockFile), unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(first, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() { taken <- takeLock(t.Context(), dir) }()
	select {
	case err := <-taken:
		t.Fatalf("two speakers at once: %v", err)
	case <-time.After(3 * lockInterval):
	}
	if err := unix.Close(first); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	for range 3 { // what nobody refers to any more is closed
		runtime.GC()
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := takeLock(ended, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a third speaker starts: %v", err)
	}
}

// TestHealthy has rounds that take time. A speaker that waits, for the lock or for the next round,
// takes none.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, t.TempDir())
		for age, isStuck := range map[time.Duration]bool{0: false, stallTime / 2: false, 2 * stallTime: true} {
			w.watchdog.BeginRound()
			time.Sleep(age)
			if err := w.Healthy(); err != nil != isStuck {
				t.Errorf("a round began %s ago: %v", age, err)
			}
		}
		w.watchdog.EndRound(nil)
		time.Sleep(time.Hour)
		if err := w.Healthy(); err != nil {
			t.Errorf("no round is under way: %v", err)
		}
	})
}

// TestFailureGap reports at once what changes, and later and later only why sessions stay down.
func TestFailureGap(t *testing.T) {
	s := state{failures: pacing.Backoff{Min: minFailureGap, Max: maxFailureGap}}
	report := func(state purelbv1.SessionState, why string) purelbv1.NodeRoutingStatus {
		return purelbv1.NodeRoutingStatus{Sessions: []purelbv1.RoutingSession{{Peer: "a", State: state, LastError: why}}}
	}
	up, refused, silent := report(purelbv1.SessionEstablished, ""), report("Idle", "refused"), report("Idle", "silent")
	for i, step := range []struct {
		before, after purelbv1.NodeRoutingStatus
		want          time.Duration
	}{
		{up, refused, 0},
		{refused, silent, time.Second},
		{silent, silent, 0},
		{silent, refused, 2 * time.Second},
		{refused, silent, 4 * time.Second},
		{silent, up, 0},
		{refused, silent, time.Second},
	} {
		if got := s.failureGap(step.before, step.after); got != step.want {
			t.Errorf("step %d waits %s, not %s", i, got, step.want)
		}
	}
	for range 20 {
		s.failureGap(refused, silent)
	}
	if got := s.failureGap(refused, silent); got != maxFailureGap {
		t.Errorf("at the end it waits %s", got)
	}
}

// TestSourceUnknown cannot read the addresses of a source interface for a while: the session stays. A new one
// waits.
func TestSourceUnknown(t *testing.T) {
	w := newWorld(t, t.TempDir())
	routing := routingOf(1, "192.0.2.1")
	routing.Spec.Peers[0].SourceInterface = "lo"
	w.setRouting(routing, false)
	w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1")
	w.kernel.sourceErr = errors.New("the disk hangs")
	w.expect()
	routing = routingOf(2, "192.0.2.1", "192.0.2.2")
	routing.Spec.Peers[0].SourceInterface, routing.Spec.Peers[1].SourceInterface = "lo", "eth9"
	w.setRouting(routing, false)
	w.expect()
	w.kernel.sourceErr = nil
	w.expect("+192.0.2.2")
}

// TestBFD has a neighbour that is watched by BFD, and one that is not: how it is, what follows when it fails,
// and that BFD goes on until the sessions have ended.
func TestBFD(t *testing.T) {
	w := newWorld(t, t.TempDir())
	watched, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	w.bfd.failed(watched) // before there is a library, nothing can be reset
	routing := routingOf(1, "192.0.2.1", "192.0.2.2")
	routing.Spec.Peers[0].BFDIntervalMilliseconds, routing.Spec.Peers[0].BFDMultiplier = 300, 3
	w.setRouting(routing, false)
	w.expect("start 192.0.2.11", "+198.51.100.1/32", "+192.0.2.1", "+192.0.2.2")
	w.server.sessions = func(peer netip.Addr) routes.Session { return routes.Session{Neighbour: peer, State: "Idle"} }
	w.expect()
	if len(w.bfd.watched) > 0 {
		t.Errorf("watched before BGP is up: %v", w.bfd.watched)
	}
	w.server.sessions = nil // all are up
	w.expect()
	if len(w.bfd.watched) != 1 || w.bfd.watched[watched].Interval != 300*time.Millisecond {
		t.Errorf("watched: %v", w.bfd.watched)
	}
	for state, want := range map[bfd.State]string{
		bfd.AdminDown: "Down", bfd.Down: "Down", bfd.Init: "Down", bfd.Up: "Up",
	} {
		w.bfd.states = map[netip.Addr]bfd.State{watched: state, other: bfd.Up}
		w.expect()
		sessions := w.reporter.Latest(routing, routing.Status).Sessions
		if len(sessions) != 2 || sessions[0].BFD != want || sessions[1].BFD != "" {
			t.Errorf("%s: %+v", state, sessions)
		}
	}
	w.bfd.failed(watched)
	if got := <-w.server.resets; got != watched {
		t.Errorf("the session with %s was reset", got)
	}

	before := w.bfd
	moved := routing.DeepCopy()
	moved.Spec.RouterID = "192.0.2.99"
	w.setRouting(moved, false)
	w.expect("stop, routes stay", "start 192.0.2.99", "+198.51.100.1/32", "+192.0.2.1 restarting", "+192.0.2.2 restarting")
	if w.bfd != before || len(w.bfd.watched) != 1 {
		t.Error("BFD ended with the library")
	}
	if err := w.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.state.endBFD()
	if diff := cmp.Diff([]string{"stop, routes stay", "end of BFD"}, w.server.take()); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}
}
