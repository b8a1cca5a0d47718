package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/test/apiserver"
)

const (
	namespace = "purelb-system" // of the manager
	user      = "test"          // namespace of Services

	soon  = time.Minute // for what is to happen
	often = 50 * time.Millisecond

	// leaseSeconds is how long the agents say that their Leases last. The manager lets the Lease
	// of a node with Local addresses last for 3 s of its own clock at the most.
	leaseSeconds = 30
)

// api reaches the API server, without a cache, and cached is what the manager sees.
var (
	api, cached  client.Client
	serverConfig *rest.Config
	// clock is the manager's, and written is what it has written.
	clock    = newSimulatedClock()
	written  = &writeLog{}
	registry = prometheus.NewRegistry()
	stop     = func() error { return nil }
)

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(often)
	code := m.Run()
	for _, stop := range append(stopShared, func() error { return stop() }) {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// begin starts the API server and the manager, once for all tests, and returns
// the test's own Gomega. It is not done by TestMain: the go command would not
// know that the results depend on the CRDs, and show old ones.
func begin(t *testing.T) *WithT {
	t.Helper()
	apiserver.Mark(t)
	if err := start(); err != nil {
		t.Fatal(err)
	}
	return NewWithT(t)
}

// stopShared stops the API servers that several tests share. Tests do not run in parallel.
var stopShared []func() error

// sharedServer returns a function that starts an API server when it is called first. The server runs
// until all tests have ended.
func sharedServer() func() (*rest.Config, error) {
	return sync.OnceValues(func() (*rest.Config, error) {
		config, stop, err := apiserver.Start()
		stopShared = append(stopShared, stop)
		return config, err
	})
}

// addToScheme makes the scheme know this project's kinds, once: the manager of all tests
// reads the scheme while other tests start an API server of their own.
var addToScheme = sync.OnceValue(func() error { return v1.AddToScheme(scheme.Scheme) })

var start = sync.OnceValue(func() error {
	log.SetLogger(logr.Discard())
	config, stopServer, err := apiserver.Start()
	stop = stopServer
	if err != nil {
		return err
	}
	if err := addToScheme(); err != nil {
		return err
	}
	if api, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	for _, name := range []string{namespace, user} {
		if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			cancel()
			return err
		}
	}
	if err := api.Create(ctx, agentAccount()); err != nil {
		cancel()
		return err
	}
	serverConfig = config
	counted := rest.CopyConfig(config)
	counted.Wrap(countWrites)
	counted.Wrap(written.wrap)
	live := controllers.NewLivenessTracker(clock.Now)
	mgr, err := newManager(
		ctx, ctrl.Options{Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}}, counted, live,
	)
	if err != nil {
		cancel()
		return err
	}
	cached = mgr.GetClient()
	go clock.run(ctx, live)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = func() error {
		cancel()
		return errors.Join(<-ended, stopServer())
	}
	return nil
})

// agentAccount is the service account that the agents run as.
func agentAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "purelb-agent"}}
}

// slimKinds says, as the manager's program does, what the cache keeps of kinds that others
// write.
func slimKinds() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Service{}:            {Transform: controllers.SlimService},
		&discoveryv1.EndpointSlice{}: {Transform: controllers.SlimEndpointSlice},
		&corev1.Node{}:               {Transform: controllers.SlimNode},
		&coordinationv1.Lease{}:      {Transform: controllers.SlimLease},
	}
}

// noIPAM asks no external IPAM system.
func noIPAM(c client.Client) *controllers.ExternalIPAM {
	return controllers.NewExternalIPAM(
		c, c, controllers.ExternalIPAMOptions{Namespace: namespace, IsDefaultLoadBalancer: true, Now: time.Now},
	)
}

// newManager is a manager with all reconcilers.
func newManager(
	ctx context.Context, options ctrl.Options, config *rest.Config, live *controllers.LivenessTracker,
) (ctrl.Manager, error) {
	options.Cache.ByObject = slimKinds()
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	own, reasons := controllers.NewMetrics(registry), &controllers.AddressExplanations{}
	c := mgr.GetClient()
	external := noIPAM(c)
	return mgr, errors.Join(
		live.Watch(ctx, mgr.GetCache()),
		mgr.Add(live),
		(&controllers.ServiceReconciler{
			Client: c, Recorder: mgr.GetEventRecorder("purelb-allocator"), Namespace: namespace,
			IsDefaultLoadBalancer: true, Metrics: own,
			IPAM: external,
		}).SetupWithManager(mgr),
		(&controllers.ServiceGroupReconciler{
			Client: c, Recorder: mgr.GetEventRecorder("purelb-servicegroup"), Namespace: namespace, IsDefaultLoadBalancer: true,
			Metrics: own, IPAM: external,
		}).SetupWithManager(mgr),
		(&controllers.LBNodeAgentReconciler{
			Client: c, Recorder: mgr.GetEventRecorder("purelb-lbnodeagent"), Liveness: live, Namespace: namespace,
			Defaults: agents.Defaults{Image: "purelb.io/purelb:test", ServiceAccount: "purelb-agent"},
		}).SetupWithManager(mgr),
		(&controllers.PlacementReconciler{
			Client: c, Namespace: namespace,
			IsDefaultLoadBalancer: true, Liveness: live, Now: clock.Now, Metrics: own, Explanations: reasons,
			Recorder: mgr.GetEventRecorder("purelb-placement"), NamesSuccessors: true,
		}).SetupWithManager(mgr),
		(&controllers.RoutingReconciler{
			Client: c, Recorder: mgr.GetEventRecorder("purelb-routing"), Namespace: namespace, Now: time.Now,
			Defaults: agents.Defaults{Image: "purelb.io/purelb:test", ServiceAccount: "purelb-speaker"},
		}).SetupWithManager(mgr),
		(&controllers.AnnouncedReconciler{
			Client: c, Recorder: mgr.GetEventRecorder("purelb-lbnodeagent"), Namespace: namespace, IsDefaultLoadBalancer: true,
			Now: time.Now, Explanations: reasons,
		}).SetupWithManager(mgr),
	)
}

// create makes an object and removes it when the test ends.
func create(t *testing.T, obj client.Object) {
	t.Helper()
	ctx := context.Background()
	if err := api.Create(ctx, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, obj) })
}

// remove deletes an object, if it is there, and waits until it is gone.
func remove(t *testing.T, obj client.Object) {
	t.Helper()
	ctx := context.Background()
	if err := api.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	NewWithT(t).Eventually(func() bool {
		return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(obj), obj))
	}).Should(BeTrue(), "%s is not gone", obj.GetName())
}

// serviceGroup makes a group in the manager's namespace, with the YAML text as its spec. Unless that
// says so, no address is left to Services that earlier tests have deleted.
func serviceGroup(t *testing.T, name, spec string) *v1.ServiceGroup {
	t.Helper()
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &sg.Spec); err != nil {
		t.Fatal(err)
	}
	if sg.Spec.StickyFor == nil && sg.Spec.Netbox == nil {
		sg.Spec.StickyFor = &metav1.Duration{}
	}
	create(t, sg)
	return sg
}

// lbNodeAgent makes an LBNodeAgent that selects nodes with the given labels.
func lbNodeAgent(t *testing.T, name string, selector map[string]string) *v1.LBNodeAgent {
	t.Helper()
	a := &v1.LBNodeAgent{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.LBNodeAgentSpec{NodeSelector: selector},
	}
	create(t, a)
	return a
}

// node makes a Node that is ready.
func node(t *testing.T, name string, labels map[string]string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	t.Cleanup(func() { // after the Node has gone: there is no garbage collector
		ctx := context.Background()
		in, of := client.InNamespace(namespace), client.MatchingLabels{v1.LabelNode: name}
		NewWithT(t).Expect(api.DeleteAllOf(ctx, &v1.Announcement{}, in, of)).To(Succeed())
		NewWithT(t).Expect(api.DeleteAllOf(ctx, &coordinationv1.Lease{}, in, of)).To(Succeed())
	})
	create(t, n)
	setReady(t, name, corev1.ConditionTrue)
	return n
}

func setReady(t *testing.T, name string, status corev1.ConditionStatus) {
	t.Helper()
	ctx := context.Background()
	n := &corev1.Node{}
	g := NewWithT(t)
	g.Eventually(func() error {
		if err := api.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		return api.Status().Update(ctx, n)
	}).Should(Succeed())
}

// service makes a Service of type LoadBalancer after applying the changes.
func service(t *testing.T, name string, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: user, Name: name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	for _, c := range change {
		c(svc)
	}
	create(t, svc)
	return svc
}

func ofGroup(name string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[v1.AnnotationServiceGroup] = name }
}

func dualStack(svc *corev1.Service) {
	svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
}

// fetch reads an object anew and returns it.
func fetch[T client.Object](g Gomega, obj T) T {
	g.Expect(api.Get(context.Background(), client.ObjectKeyFromObject(obj), obj)).To(Succeed())
	return obj
}

// ingress is the addresses of a Service as they are now.
func ingress(svc *corev1.Service) func(Gomega) []string {
	return func(g Gomega) []string {
		var out []string
		for _, in := range fetch(g, svc).Status.LoadBalancer.Ingress {
			out = append(out, in.IP)
		}
		return out
	}
}

// condition is status, reason and message of a condition of a Service.
func condition(svc *corev1.Service, kind string) func(Gomega) string {
	return func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, svc).Status.Conditions, kind)
		if c == nil {
			return ""
		}
		g.Expect(c.ObservedGeneration).To(Equal(svc.Generation))
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

// ready is status, reason and message of the condition Ready of a group.
func ready(sg *v1.ServiceGroup) func(Gomega) string {
	return func(g Gomega) string {
		c := meta.FindStatusCondition(fetch(g, sg).Status.Conditions, v1.ConditionReady)
		g.Expect(c).NotTo(BeNil())
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
}

// eventsOf is the events about an object that have a reason, as reporter: note.
func eventsOf(obj client.Object, reason string) func(Gomega) []string {
	return func(g Gomega) []string {
		var list eventsv1.EventList
		g.Expect(api.List(context.Background(), &list)).To(Succeed())
		var out []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.Regarding.UID != obj.GetUID() || e.Reason != reason {
				continue
			}
			line := e.ReportingController + ": " + e.Note
			if e.Series != nil {
				line += fmt.Sprintf(" (x%d)", e.Series.Count)
			}
			out = append(out, line)
		}
		slices.Sort(out)
		return out
	}
}

// agent plays the agent of one node: it renews its Lease and reports that it
// does what its Announcements say.
type agent struct {
	node       string
	interfaces []v1.NodeInterface
	stop       func()
	// turns is locked during a turn. It guards isPaused.
	turns    sync.Mutex
	isPaused bool
	// findsAnother is that another station answers for addresses that the agent is to probe.
	findsAnother atomic.Bool
	// macs is what it reports in the first of its Announcements, if it is set.
	macs atomic.Pointer[[]string]
	// reaches is what it reports of the addresses that it asks for: nothing if it is not set.
	reaches atomic.Pointer[v1.Reachability]
}

// pause makes the agent renew its Lease, but look at nothing, from its next turn on.
func (a *agent) pause(yes bool) {
	a.turns.Lock()
	defer a.turns.Unlock()
	a.isPaused = yes
}

// runAgent starts an agent; it ends with the test, or when stopped.
func runAgent(t *testing.T, node string, interfaces ...v1.NodeInterface) *agent {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a := &agent{node: node, interfaces: interfaces}
	a.stop = func() {
		cancel()
		<-ended
		clock.remove(a)
	}
	t.Cleanup(a.stop)
	clock.add(a)
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				a.takeTurn(ctx)
			}
		}
	}()
	return a
}

// takeTurn reports and renews once. What fails is tried again, and the clock waits for it.
func (a *agent) takeTurn(ctx context.Context) {
	a.turns.Lock()
	defer a.turns.Unlock()
	began := clock.step()
	if !a.isPaused {
		if err := a.report(ctx); err != nil {
			return
		}
	}
	hasLease, err := a.renew(ctx)
	if err != nil {
		return
	}
	clock.note(a, turn{step: began, hasRenewed: hasLease})
}

// renew renews the agent's Lease, if there is one.
func (a *agent) renew(ctx context.Context) (hasLease bool, err error) {
	lease := &coordinationv1.Lease{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1.LeasePrefix + a.node}, lease); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](leaseSeconds)
	return true, api.Update(ctx, lease)
}

func (a *agent) report(ctx context.Context) error {
	var list v1.AnnouncementList
	if err := api.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingFields{"spec.nodeName": a.node}); err != nil {
		return err
	}
	for i := range list.Items {
		ann := &list.Items[i]
		status := v1.AnnouncementStatus{
			ObservedGeneration: ann.Generation, Interfaces: a.interfaces, Conditions: ann.Status.Conditions,
		}
		if macs := a.macs.Load(); macs != nil && ann.Name == a.node {
			status.MACs = *macs
		}
		for _, e := range ann.Spec.Addresses {
			state := v1.StateAnnounced
			if e.ClaimPolicy == v1.ClaimProbe && a.findsAnother.Load() {
				state = v1.StateWaiting
			} else {
				status.Announced++
			}
			status.Addresses = append(status.Addresses, v1.AddressStatus{
				Address: e.Address, Epoch: e.Epoch, State: state, Interface: string(e.Interface),
				LastTransitionTime: metav1.Unix(1, 0),
			})
		}
		if found := a.reaches.Load(); found != nil && ann.Spec.Asking != nil {
			for _, e := range ann.Spec.Asking.Addresses {
				status.Reachability = append(status.Reachability, v1.Reachability{
					Address: e.Address, Epoch: e.Epoch, Reachable: found.Reachable, Reason: found.Reason,
					LastTransitionTime: metav1.Unix(1, 0),
				})
			}
		}
		status.Desired = int32(len(status.Addresses))
		if ann.Spec.IncludeCommonAnnouncements {
			status.CommonAnnouncementsRevision = new(int64)
			var commons v1.CommonAnnouncementList
			if err := api.List(
				ctx, &commons, client.InNamespace(namespace), client.MatchingFields{"spec.lbNodeAgent": ann.Spec.LBNodeAgent},
			); err != nil {
				return err
			}
			for k := range commons.Items {
				*status.CommonAnnouncementsRevision = max(*status.CommonAnnouncementsRevision, commons.Items[k].Spec.Revision)
			}
		}
		if equality.Semantic.DeepEqual(status, ann.Status) {
			continue
		}
		ann.Status = status
		if err := api.Status().Update(ctx, ann); err != nil {
			return err
		}
	}
	return nil
}

// eth is an interface in a subnet.
func eth(name, subnet string) v1.NodeInterface {
	return v1.NodeInterface{Name: v1.InterfaceName(name), MAC: "02:00:00:00:00:01", Subnets: []string{subnet}}
}
