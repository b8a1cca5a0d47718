package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const namespace = "purelb-system"

var (
	oldHolder = neigh.MAC{2, 0, 0, 0, 0, 1}
	stranger  = neigh.MAC{2, 0, 0, 0, 0, 2}
)

// neighbours is a link in memory: stations that have addresses, and a record of
// what was sent and when.
type neighbours struct {
	mu       sync.Mutex
	start    time.Time
	stations map[string]neigh.MAC
	broken   map[string]error
	probes   [][]string
	sent     []string
	asked    []string
	checked  []string // asked by themselves
	listener func(neigh.Message)
}

// Ask is answered at once by the station that has the address.
func (n *neighbours) Ask(q neigh.Question) error {
	n.mu.Lock()
	n.asked = append(n.asked, fmt.Sprintf("%s %v", q.Addr, time.Since(n.start)))
	mac, answers := n.stations[q.Addr.String()]
	n.mu.Unlock()
	if answers {
		n.say(answerOf(q.Addr, mac))
	}
	return nil
}

// AskStation is answered at once if that station has the address.
func (n *neighbours) AskStation(q neigh.Question, station neigh.MAC) error {
	n.mu.Lock()
	n.checked = append(n.checked, fmt.Sprintf("%s %s %v", q.Addr, station, time.Since(n.start)))
	mac, answers := n.stations[q.Addr.String()]
	n.mu.Unlock()
	if answers && mac == station {
		n.say(answerOf(q.Addr, mac))
	}
	return nil
}

func (*neighbours) SetPodMACs([]string) {}

// answerOf is the answer to a question for an address.
func answerOf(addr netip.Addr, mac neigh.MAC) neigh.Message {
	return neigh.Message{Kind: neigh.ARPReply, Addr: addr, MAC: mac, IsDirect: true}
}

func (n *neighbours) Listen(
	ctx context.Context, _ string, wanted func(netip.Addr) bool, heard func(neigh.Message),
) error {
	n.mu.Lock()
	n.listener = func(m neigh.Message) {
		if wanted(m.Addr) {
			heard(m)
		}
	}
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listener = nil
	return nil
}

// say makes those who listen hear something.
func (n *neighbours) say(m neigh.Message) {
	n.mu.Lock()
	listener := n.listener
	n.mu.Unlock()
	if listener != nil {
		listener(m)
	}
}

// claim is a gratuitous ARP of a station.
func (n *neighbours) claim(address string, mac neigh.MAC) {
	n.say(neigh.Message{Kind: neigh.ARPRequest, Addr: netip.MustParseAddr(address), MAC: mac, IsGratuitous: true})
}

func (n *neighbours) Announce(iface string, addr netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, fmt.Sprintf("%s %s %v", addr, iface, time.Since(n.start)))
	return nil
}

func (n *neighbours) Probe(
	ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
) map[netip.Addr]neigh.ProbeResult {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(count) * interval):
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	answers := map[netip.Addr]neigh.ProbeResult{}
	var asked []string
	for _, q := range questions {
		asked = append(asked, q.Addr.String())
		if mac, ok := n.stations[q.Addr.String()]; ok && !slices.Contains(q.IgnoredMACs, mac) {
			answers[q.Addr] = neigh.ProbeResult{MAC: mac}
		} else if err := n.broken[q.Addr.String()]; err != nil {
			answers[q.Addr] = neigh.ProbeResult{Err: err}
		}
	}
	n.probes = append(n.probes, asked)
	return answers
}

// heard is what was announced.
func (n *neighbours) heard() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent
}

func (n *neighbours) set(address string, mac neigh.MAC) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stations[address] = mac
}

func (n *neighbours) unset(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.stations, address)
}

// world is an agent and all that it deals with.
type world struct {
	*Agent
	t          testing.TB
	kernel     *linktest.Kernel
	neighbours *neighbours
	// started is that the reporter runs by itself.
	started bool
	// turn is held by who does the worker's work.
	turn chan struct{}
	// reconnects is how often the heartbeat has asked for new connections.
	reconnects int
	api
}

// api is what tests want of the API server, and know of it.
type api struct {
	mu       sync.Mutex
	away     error
	requests []string
}

// fail makes every request fail; nil lets them pass again.
func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = err
}

// made returns the requests made since it was last called: writes by what they
// wrote, live reads as "list".
func (a *api) made() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.requests
	a.requests = nil
	return requests
}

// errHanging makes every request fail after it has hung for a while.
var errHanging = errors.New("no answer")

const hangs = time.Minute

// note notes a request, or refuses it.
func (a *api) note(request string) error {
	a.mu.Lock()
	away := a.away
	if away == nil {
		a.requests = append(a.requests, request)
	}
	a.mu.Unlock()
	if errors.Is(away, errHanging) {
		time.Sleep(hangs)
	}
	return away
}

func newWorld(t testing.TB, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(purelbv1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t,
		kernel: linktest.New(
			plan.NetworkInterface{Name: "lo", IsLoopback: true},
			plan.NetworkInterface{Name: "eth0", MAC: "02:00:00:00:00:0a", IsUp: true},
		),
		neighbours: &neighbours{start: time.Now(), stations: map[string]neigh.MAC{}, broken: map[string]error{}},
		turn:       make(chan struct{}, 1),
	}
	w.kernel.Put(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.11/24"), Valid: plan.Forever, Preferred: plan.Forever,
	})
	w.kernel.AddRoute(plan.Route{
		Interface: "eth0", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("192.0.2.254"),
	})
	store := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&purelbv1.Announcement{}).
		WithIndex(&purelbv1.Announcement{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*purelbv1.Announcement).Spec.NodeName}
		}).
		WithIndex(&purelbv1.CommonAnnouncement{}, "spec.lbNodeAgent", func(o client.Object) []string {
			return []string{o.(*purelbv1.CommonAnnouncement).Spec.LBNodeAgent}
		}).
		WithObjects(objects...).Build()
	cached := interceptor.NewClient(store, interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption,
		) error {
			if err := w.note("patch " + obj.GetName()); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourceApply: func(
			ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration,
			opts ...client.SubResourceApplyOption,
		) error {
			if err := w.note("apply " + sub); err != nil {
				return err
			}
			return c.SubResource(sub).Apply(ctx, obj, opts...)
		},
	})
	live := interceptor.NewClient(store, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, common := list.(*purelbv1.CommonAnnouncementList); common { // after the first
				return c.List(ctx, list, opts...)
			}
			if err := w.note("list"); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
	w.Agent = &Agent{
		Client: cached, APIReader: live, Kernel: w.kernel, Neighbours: w.neighbours,
		Metrics: NewMetrics(prometheus.NewRegistry()), NodeName: "node1", Namespace: namespace, LBNodeAgentName: "default",
	}
	w.prepare()
	return w
}

func settings() *purelbv1.LBNodeAgent {
	return &purelbv1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
}

func announcementOf(name string, addresses ...purelbv1.AnnouncedAddress) *purelbv1.Announcement {
	return &purelbv1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1},
		Spec: purelbv1.AnnouncementSpec{
			NodeName: "node1", LBNodeAgent: "default", HeartbeatSeconds: 1, Addresses: addresses,
		},
	}
}

func local(address string, edit ...func(*purelbv1.AnnouncedAddress)) purelbv1.AnnouncedAddress {
	a := purelbv1.AnnouncedAddress{
		Address: address, PrefixLength: 24, Interface: "eth0", Type: purelbv1.AnnounceLocal, ClaimPolicy: purelbv1.ClaimProbe,
		Epoch: 1, Services: []string{"test/kuard"}, PreviousMACs: []string{oldHolder.String()},
	}
	for _, e := range edit {
		e(&a)
	}
	return a
}

func takeover(a *purelbv1.AnnouncedAddress) { a.ClaimPolicy = purelbv1.ClaimTakeover }

func virtual(address string) purelbv1.AnnouncedAddress {
	return purelbv1.AnnouncedAddress{
		Address: address, PrefixLength: 32, Interface: "kube-lb0", Type: purelbv1.AnnounceVirtual,
		ClaimPolicy: purelbv1.ClaimProbe, Services: []string{"test/far"},
	}
}

// reconcile does what once does, and once more when the link has been asked.
func (w *world) reconcile() (time.Duration, error) {
	w.t.Helper()
	again, err := w.once()
	for w.isAsking() {
		<-w.wake
		again, err = w.once()
	}
	return again, err
}

// once does what the worker does when it is woken, the cache is filled and a list is answered, and
// what others do by themselves: they write the checkpoint and report. It returns when there is
// something to do again.
func (w *world) once() (time.Duration, error) {
	w.t.Helper()
	w.isCacheFilled.Store(true)
	w.turn <- struct{}{}
	again, err := w.syncWoken(w.t.Context())
	if w.state.isListing {
		again, _, err = w.syncListed(w.t.Context(), <-w.listResults)
	}
	<-w.turn
	if w.started {
		return again, err
	}
	left, failed := w.finish()
	return plan.ShorterWait(again, left), errors.Join(err, failed)
}

// standIn does what the worker does when it is woken before the cache is filled.
func (w *world) standIn() {
	_, _ = w.syncWoken(w.t.Context())
}

// listAndSync does what the worker does when it is asked for a list, by the heartbeat or by itself.
func (w *world) listAndSync(isOfHeartbeat bool) error {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	request, pending := listRequest{timeout: requestTimeout}, &pendingSync{done: make(chan struct{}, 1)}
	if isOfHeartbeat {
		request.sync = pending
	}
	w.beginList(w.t.Context(), request)
	_, _, err := w.syncListed(w.t.Context(), <-w.listResults)
	if isOfHeartbeat {
		return pending.err
	}
	return err
}

// work lets the worker work until ctx ends, with a cache that is filled. Tests signal wake when
// an object changes.
func (w *world) work(ctx context.Context) {
	w.isCacheFilled.Store(true)
	pacing.Signal(w.wake)
	_ = w.Start(ctx)
}

// finish writes the checkpoint and reports, as far as that is due.
func (w *world) finish() (time.Duration, error) {
	pause, _ := w.checkpointSaver.WriteDue(w.t.Context())
	wait, err := w.reporter.WriteDue(w.t.Context())
	return plan.ShorterWait(pause, wait), err
}

// isAsking reports whether answers of links are awaited, or wait for the next sync.
func (w *world) isAsking() bool {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	for _, p := range w.state.memory.ProbeStates {
		if p.IsAsking {
			return true
		}
	}
	return false
}

func (w *world) reconcileOrFail() time.Duration {
	w.t.Helper()
	again, err := w.reconcile()
	if err != nil {
		w.t.Fatal(err)
	}
	return again
}

// edit changes the spec of an Announcement, as the manager does.
func (w *world) edit(name string, change func(*purelbv1.AnnouncementSpec)) {
	w.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // an agent may be writing its status
		ann := w.get(name)
		change(&ann.Spec)
		ann.Generation++
		return w.Client.Update(w.t.Context(), ann)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(name string) *purelbv1.Announcement {
	w.t.Helper()
	ann := &purelbv1.Announcement{}
	if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, ann); err != nil {
		w.t.Fatal(err)
	}
	return ann
}

func (w *world) states(name string) string {
	w.t.Helper()
	var states []string
	for _, s := range w.get(name).Status.Addresses {
		states = append(states, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", s.Address, s.State, s.Reason, s.MAC)))
	}
	return strings.Join(states, ", ")
}

func (w *world) expect(what string, want, got any) {
	w.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (w *world) list() []purelbv1.Announcement {
	list := &purelbv1.AnnouncementList{}
	if err := w.Client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}
