package webhooks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/test/apiserver"
	"github.com/purelb/purelb-operator/webhooks"
)

const (
	namespace = "purelb-system" // of the manager
	elsewhere = "purelb"        // a namespace where ServiceGroups do not count
	user      = "test"          // of Services
	other     = "other"         // of Services

	soon  = time.Minute
	often = 20 * time.Millisecond
)

var (
	config   *rest.Config
	api      client.Client // without a cache; its warnings are in recorded
	cached   client.Client // what the webhooks see
	recorded warningRecorder
	hooks    envtest.WebhookInstallOptions
	stop     = func() error { return nil }

	// lateAgents, unless it is nil, is what the cache of the webhooks has of LBNodeAgents.
	lateAgents atomic.Pointer[v1.LBNodeAgentList]
)

// warningRecorder keeps the warnings that come with answers of the API server.
type warningRecorder struct {
	mu       sync.Mutex
	warnings []string
	// keepsSubnets is that warnings of subnets that no node is in are kept, too.
	keepsSubnets atomic.Bool
}

// HandleWarningHeaderWithContext is called for each warning. What newer API servers say themselves of
// spec.externalIPs is left out, and that no node is in the subnet of a pool, which is so of all pools
// but those of TestServiceGroupSubnetNotFound.
func (r *warningRecorder) HandleWarningHeaderWithContext(_ context.Context, _ int, _ string, text string) {
	if strings.HasPrefix(text, "spec.externalIPs is deprecated ") ||
		strings.HasPrefix(text, "spec.local: no node has ") && !r.keepsSubnets.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnings = append(r.warnings, text)
}

// take returns the warnings since the last call of take.
func (r *warningRecorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.warnings
	r.warnings = nil
	return taken
}

func TestMain(m *testing.M) {
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(often)
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// begin starts, once for all tests, the API server with the webhooks and a
// manager that serves them and runs the controllers.
func begin(t *testing.T) *WithT {
	t.Helper()
	apiserver.Mark(t)
	if err := start(); err != nil {
		t.Fatal(err)
	}
	recorded.take()
	return NewWithT(t)
}

var start = sync.OnceValue(func() (err error) {
	log.SetLogger(logr.Discard())
	var stopServer func() error
	config, stopServer, err = apiserver.Start()
	stop = stopServer
	if err != nil {
		return err
	}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return err
	}
	listening := rest.CopyConfig(config)
	listening.WarningHandlerWithContext = &recorded
	if api, err = client.New(listening, client.Options{Scheme: scheme.Scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	stop = func() error {
		cancel()
		return errors.Join(<-ended, hooks.Cleanup(), stopServer())
	}
	if err := install(ctx); err != nil {
		ended <- nil
		return err
	}
	mgr, err := newManager()
	if err != nil {
		ended <- nil
		return err
	}
	cached = mgr.GetClient()
	go func() { ended <- mgr.Start(ctx) }()
	return createCluster(ctx)
})

// install creates the namespaces, and the webhook configuration from the generated
// manifest.
func install(ctx context.Context) error {
	for _, name := range []string{namespace, elsewhere, user, other} {
		if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	hooks.MaxTime = soon
	hooks.Paths = []string{filepath.Join("..", "config", "webhook", "manifests.yaml")}
	if err := hooks.Install(config); err != nil {
		return err
	}
	// The API server waits 2 s for a verdict on a Service, and then stores it without: on a busy
	// machine a test would find the verdict missing.
	configurations := &admissionregistrationv1.ValidatingWebhookConfigurationList{}
	if err := api.List(ctx, configurations); err != nil {
		return err
	}
	allowSlowness := func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for k := range c.Webhooks {
			c.Webhooks[k].TimeoutSeconds = ptr.To[int32](30) // the longest that there is
		}
	}
	for _, c := range hooks.ValidatingWebhooks {
		allowSlowness(c) // for withWebhooks
	}
	for i := range configurations.Items {
		allowSlowness(&configurations.Items[i])
		if err := api.Update(ctx, &configurations.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func newManager() (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme.Scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhooks.NewServer(webhooks.ServerOptions{
			Host: hooks.LocalServingHost, Port: hooks.LocalServingPort, CertDir: hooks.LocalServingCertDir,
		}),
		NewClient: newLateClient,
	})
	if err != nil {
		return nil, err
	}
	c, own := mgr.GetClient(), controllers.NewMetrics(prometheus.NewRegistry())
	// it asks nobody
	external := controllers.NewExternalIPAM(
		c, c, controllers.ExternalIPAMOptions{Namespace: namespace, IsDefaultLoadBalancer: true, Now: time.Now},
	)
	return mgr, errors.Join(
		webhooks.SetupWithManager(mgr, webhooks.Options{Namespace: namespace, IsDefaultLoadBalancer: true}),
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
			Client: c, Recorder: mgr.GetEventRecorder("purelb-lbnodeagent"), Liveness: controllers.NewLivenessTracker(time.Now),
			Namespace: namespace,
			Defaults:  agents.Defaults{Image: "purelb.io/purelb:test", ServiceAccount: "purelb-agent"},
		}).SetupWithManager(mgr),
	)
}

// newLateClient makes the client that reads from the cache, or has of LBNodeAgents what
// lateAgents says.
func newLateClient(config *rest.Config, options client.Options) (client.Client, error) {
	c, err := client.NewWithWatch(config, options)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if all, isAgents := list.(*v1.LBNodeAgentList); isAgents && lateAgents.Load() != nil {
				lateAgents.Load().DeepCopyInto(all)
				return nil
			}
			return c.List(ctx, list, options...)
		},
	}), nil
}

// createCluster creates what all tests find: three nodes with addresses and
// gateways, some ServiceGroups, and three Services.
func createCluster(ctx context.Context) error {
	for i, rack := range []string{"a", "a", "b"} {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i+1), Labels: map[string]string{"rack": rack}},
		}
		if err := api.Create(ctx, n); err != nil {
			return err
		}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.7.0.%d", i+1)}}
		if err := api.Status().Update(ctx, n); err != nil {
			return err
		}
	}
	a := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "node1"},
		Spec:       v1.AnnouncementSpec{NodeName: "node1", LBNodeAgent: "facts"},
	}
	if err := api.Create(ctx, a); err != nil {
		return err
	}
	a.Status.Interfaces = []v1.NodeInterface{{
		Name: "eth0", MAC: "02:00:00:00:00:01",
		Subnets: []string{"10.7.0.1/24", "fd07::1/64"}, Gateways: []string{"10.7.0.254", "fd07::fe"},
	}}
	a.Status.ObservedGeneration = 1
	if err := api.Status().Update(ctx, a); err != nil {
		return err
	}
	deadline := time.Now().Add(soon)
	for { // until the webhooks are served
		err := api.Create(ctx, group("probe", "remote: {pool: 10.254.0.1, subnet: 10.254.0.0/24}"), client.DryRunAll)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(often)
	}
	for _, sg := range []*unstructured.Unstructured{
		group(
			"taken",
			"remote: {pool: 10.9.0.10-10.9.0.20, subnet: 10.9.0.0/24, v6pool: {pool: 'fd09::10-fd09::20', "+
				"subnet: 'fd09::/64'}}\nbgp: {allowServices: {communities: [no-export]}}",
		),
		group(
			"local",
			"local: {pool: 10.7.0.100-10.7.0.120, subnet: 10.7.0.0/24, v6pool: {pool: 'fd07::100-fd07::120', subnet: "+
				"'fd07::/64'}}",
		),
		group("shared", "{remote: {pool: 10.10.0.0/28, subnet: 10.10.0.0/24}, shareAcrossNamespaces: true}"),
		group("allowing", "{local: {pool: 10.7.0.130-10.7.0.140, subnet: 10.7.0.0/24}, policyLocal: Allow}"),
		group(
			"gold",
			"{remote: {pool: 10.11.0.1-10.11.0.9, subnet: 10.11.0.0/24}, allowedNamespaces: {from: Selector, selector: "+
				"{matchLabels: {tier: gold}}}}",
		),
		group(
			"reserving",
			"{remote: {pool: 10.12.0.1-10.12.0.9, subnet: 10.12.0.0/24}, reservations: [{address: 10.12.0.1, service: "+
				"other/web}, {address: 10.12.0.2, service: test/web}]}",
		),
		group("netbox", "netbox: {url: 'https://netbox.example', tenant: t, tokenSecretRef: {name: a, key: b}}"),
	} {
		if err := api.Create(ctx, sg); err != nil {
			return err
		}
	}
	far := service("far", "shared", 53)
	far.Namespace = other
	for _, svc := range []*corev1.Service{service("dns", "taken", 53), service("holder", "taken", 80), far} {
		svc.Annotations[v1.AnnotationAllowSharedIP] = "key"
		if err := api.Create(ctx, svc); err != nil {
			return err
		}
		key := client.ObjectKeyFromObject(svc)
		for svc.Status.LoadBalancer.Ingress == nil { // until the cache shows that the Service has its address
			if err := cached.Get(ctx, key, svc); client.IgnoreNotFound(err) != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("Service %s got no address", key)
			}
			time.Sleep(often)
		}
	}
	return nil
}

// object parses YAML.
func object(text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		panic(fmt.Sprintf("%v in:\n%s", err, text))
	}
	return u
}

// group makes a ServiceGroup with the YAML text as its spec.
func group(name, spec string) *unstructured.Unstructured {
	return manifest("ServiceGroup", name, spec)
}

func manifest(kind, name, spec string) *unstructured.Unstructured {
	u := object("spec:\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") + "\n")
	u.SetGroupVersionKind(v1.GroupVersion.WithKind(kind))
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// service makes a Service of type LoadBalancer that gets one IPv4 address.
func service(name, group string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: user, Name: name, Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
			Ports: []corev1.ServicePort{{Port: port}},
		},
	}
}

// answer is an answer of the API server.
type answer struct {
	warnings []string
	refused  []cause
	// forbidden is the refusal of a deletion.
	forbidden string
}

// cause is one reason of a refusal: the path of the field, and the message.
type cause struct{ field, message string }

// String writes the cause as conditions do.
func (c cause) String() string { return c.field + ": " + c.message }

// answerOf returns what the API server has just answered.
func answerOf(t *testing.T, err error) answer {
	t.Helper()
	got := answer{warnings: recorded.take()}
	var status apierrors.APIStatus
	switch {
	case err == nil:
	case !errors.As(err, &status) || status.Status().Details == nil:
		t.Fatalf("no answer of the API server: %v", err)
	case apierrors.IsForbidden(err):
		_, got.forbidden, _ = strings.Cut(err.Error(), " is forbidden: ")
	default:
		for _, c := range status.Status().Details.Causes {
			// Said in addition where the schema already refuses the object.
			if !strings.Contains(c.Message, "some validation rules were not checked") {
				got.refused = append(got.refused, cause{c.Field, c.Message})
			}
		}
		if len(got.refused) == 0 {
			t.Fatalf("refused for no field: %v", err)
		}
	}
	return got
}

// check compares what the API server has just answered with what it should answer.
func check(t *testing.T, err error, want answer) {
	t.Helper()
	got := answerOf(t, err)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(answer{}, cause{})); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// waitUntilCached waits until the cache of the webhooks has an object as the API server
// has it, or does not have it, either.
func waitUntilCached(t *testing.T, obj client.Object) {
	t.Helper()
	key, ctx := client.ObjectKeyFromObject(obj), context.Background()
	NewWithT(t).Eventually(func() bool {
		live, copied := obj.DeepCopyObject().(client.Object), obj.DeepCopyObject().(client.Object)
		if u, ok := live.(*unstructured.Unstructured); ok { // the cache has typed objects
			typed, err := scheme.Scheme.New(u.GroupVersionKind())
			if err != nil {
				t.Fatal(err)
			}
			live, copied = typed.(client.Object), typed.DeepCopyObject().(client.Object)
		}
		err := api.Get(ctx, key, live)
		if apierrors.IsNotFound(err) {
			return apierrors.IsNotFound(cached.Get(ctx, key, copied))
		}
		return err == nil && cached.Get(ctx, key, copied) == nil && copied.GetResourceVersion() == live.GetResourceVersion()
	}).Should(BeTrue(), "the cache does not catch up with %s", key)
}

// remove deletes an object, even if it is in use, and waits until the webhooks know.
func remove(t *testing.T, obj client.Object) {
	t.Helper()
	ctx := context.Background()
	g := NewWithT(t)
	g.Eventually(func() error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return client.IgnoreNotFound(err)
		}
		if _, isService := obj.(*corev1.Service); !isService && obj.GetAnnotations()[v1.AnnotationAllowOrphans] == "" {
			obj.SetAnnotations(map[string]string{v1.AnnotationAllowOrphans: "true", v1.AnnotationAllowWithdrawal: "true"})
			if err := api.Update(ctx, obj); err != nil {
				return err
			}
		}
		if err := api.Delete(ctx, obj); err != nil {
			return client.IgnoreNotFound(err)
		}
		return fmt.Errorf("%s is not gone", obj.GetName()) // it may have finalizers
	}).Should(Succeed())
	waitUntilCached(t, obj)
	recorded.take()
}

// create creates an object, and removes it when the test ends.
func create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := api.Create(context.Background(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, obj) })
	waitUntilCached(t, obj)
	recorded.take()
}

// checkCreate creates an object, first in a dry run, and checks both answers.
func checkCreate(t *testing.T, obj client.Object, want answer) {
	t.Helper()
	ctx := context.Background()
	err := api.Create(ctx, obj.DeepCopyObject().(client.Object), client.DryRunAll)
	check(t, err, want)
	made := obj.DeepCopyObject().(client.Object)
	err = api.Create(ctx, made)
	check(t, err, want)
	if err == nil {
		waitUntilCached(t, made)
		remove(t, made)
	}
}

// ingressOf returns the addresses that a Service shows.
func ingressOf(g Gomega, name string) []string {
	svc := &corev1.Service{}
	g.Expect(api.Get(context.Background(), client.ObjectKey{Namespace: user, Name: name}, svc)).To(Succeed())
	var addrs []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		addrs = append(addrs, in.IP)
	}
	slices.Sort(addrs)
	return addrs
}
