package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/test/apiserver"
	fake "github.com/purelb/purelb-operator/test/netbox"
)

// startExternal starts the API server that the tests of external IPAM systems share. Each of them
// leaves it as it was.
var startExternal = sharedServer()

// externalWorld is an API server, a fake NetBox, and a manager that allocates: a test starts and
// kills it.
type externalWorld struct {
	*WithT
	t      *testing.T
	config *rest.Config
	api    client.Client
	netbox *fake.Server
	url    string
	// installationID is the id of managers that are started, or empty for the cluster's UID.
	installationID types.UID
	// ahead is by how much the manager's clock is ahead.
	ahead atomic.Int64
	// isDead makes all requests of the manager fail, as those of a process that has ended. Each manager
	// has its own.
	isDead *atomic.Bool
	// onWrite is called before and after each write of a Service by the manager. It may be
	// nil.
	onWrite  func(isDone bool)
	mu       sync.Mutex
	kill     func()
	registry *prometheus.Registry
}

func newExternalWorld(t *testing.T) *externalWorld {
	t.Helper()
	apiserver.Mark(t)
	config, err := startExternal()
	if err != nil {
		t.Fatal(err)
	}
	if err := addToScheme(); err != nil {
		t.Fatal(err)
	}
	w := &externalWorld{WithT: NewWithT(t), t: t, config: config, netbox: fake.NewServer(fake.V46), kill: func() {}}
	server := httptest.NewServer(w.netbox)
	t.Cleanup(server.Close)
	w.url = server.URL
	w.api, err = client.New(config, client.Options{Scheme: scheme.Scheme})
	w.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{namespace, user} {
		w.Expect(client.IgnoreAlreadyExists(w.api.Create(
			t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		))).To(Succeed())
	}
	t.Cleanup(w.tidy) // after the manager has ended
	w.Expect(w.api.Create(
		t.Context(),
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "netbox"},
			StringData: map[string]string{"token": fake.TokenV2, "url": w.url},
		},
	)).To(Succeed())
	for _, kind := range []string{"tags", "tenants"} {
		for _, slug := range []string{"purelb", "lab", "pool"} {
			w.netbox.Create(kind, map[string]any{"name": slug, "slug": slug})
		}
	}
	t.Cleanup(func() { w.kill() })
	return w
}

// tidy removes what the test, and its managers, have made.
func (w *externalWorld) tidy() {
	ctx := context.Background()
	lists := []client.ObjectList{
		&corev1.ServiceList{}, &v1.ServiceGroupList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &eventsv1.EventList{},
	}
	w.Eventually(func(g Gomega) {
		for _, list := range lists {
			left := 0
			for _, name := range []string{namespace, user} {
				g.Expect(w.api.List(ctx, list, client.InNamespace(name))).To(Succeed())
				left += meta.LenList(list)
				g.Expect(meta.EachListItem(list, func(item runtime.Object) error {
					obj := item.(client.Object)
					if len(obj.GetFinalizers()) == 0 {
						return client.IgnoreNotFound(w.api.Delete(ctx, obj))
					}
					obj.SetFinalizers(nil) // whose manager has been killed
					return client.IgnoreNotFound(w.api.Update(ctx, obj))
				})).To(Succeed())
			}
			g.Expect(left).To(BeZero(), "of %T", list)
		}
	}).Should(Succeed())
}

// start starts a manager.
func (w *externalWorld) start() {
	w.t.Helper()
	isDead := &atomic.Bool{}
	own := rest.CopyConfig(w.config)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if isDead.Load() {
				return nil, errors.New("the process has ended")
			}
			w.mu.Lock()
			onWrite := w.onWrite
			w.mu.Unlock()
			if onWrite == nil || r.Method == http.MethodGet || !strings.Contains(r.URL.Path, "/services/") {
				return next.RoundTrip(r)
			}
			if onWrite(false); isDead.Load() {
				return nil, errors.New("the process has ended")
			}
			resp, err := next.RoundTrip(r)
			onWrite(true)
			return resp, err
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{
			SkipNameValidation: ptr.To(true),
		},
		GracefulShutdownTimeout: ptr.To(5 * time.Second),
	})
	w.Expect(err).NotTo(HaveOccurred())
	w.registry = prometheus.NewRegistry()
	metrics := controllers.NewMetrics(w.registry)
	external := controllers.NewExternalIPAM(mgr.GetClient(), mgr.GetAPIReader(), controllers.ExternalIPAMOptions{
		Recorder: mgr.GetEventRecorder("purelb-allocator"), Namespace: namespace,
		IsDefaultLoadBalancer: true, Metrics: metrics,
		Now:            func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) },
		InstallationID: w.installationID,
	})
	w.Expect(external.SetupWithManager(mgr)).To(Succeed())
	w.Expect((&controllers.ServiceReconciler{
		Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("purelb-allocator"), Namespace: namespace,
		IsDefaultLoadBalancer: true,
		Metrics:               metrics, IPAM: external,
	}).SetupWithManager(mgr)).To(Succeed())
	w.Expect((&controllers.ServiceGroupReconciler{
		Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("purelb-servicegroup"), Namespace: namespace,
		IsDefaultLoadBalancer: true,
		Metrics:               metrics, IPAM: external,
	}).SetupWithManager(mgr)).To(Succeed())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mgr.Start(ctx) // a killed process has no error
	}()
	var once sync.Once
	w.isDead = isDead
	w.kill = func() {
		once.Do(func() {
			isDead.Store(true)
			cancel()
			<-ended
		})
	}
}

// death returns a function that makes the requests of the manager that runs now fail: it has ended
// in the middle of something. A request of this manager that is served late, when the next one runs
// already, does not end the next one.
func (w *externalWorld) death() func() {
	isDead := w.isDead
	return func() { isDead.Store(true) }
}

// prefix makes a prefix in NetBox, and returns its id.
func (w *externalWorld) prefix(cidr string) int64 {
	return w.netbox.Create("prefixes", map[string]any{"prefix": cidr, "status": "active"})
}

// group makes a ServiceGroup that takes its addresses from the fake.
func (w *externalWorld) group(name, spec string) *v1.ServiceGroup {
	w.t.Helper()
	sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.Expect(yaml.UnmarshalStrict(
		[]byte("netbox: {url: '"+w.url+"', tokenSecretRef: {name: netbox, key: token}, "+spec+"}"), &sg.Spec,
	)).To(Succeed())
	w.Expect(w.api.Create(w.t.Context(), sg)).To(Succeed())
	return sg
}

func (w *externalWorld) service(name, group string, change ...func(*corev1.Service)) *corev1.Service {
	w.t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: user, Name: name, Annotations: map[string]string{v1.AnnotationServiceGroup: group},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false), Ports: []corev1.ServicePort{
				{Port: 80},
			},
		},
	}
	for _, c := range change {
		c(svc)
	}
	w.Expect(w.api.Create(w.t.Context(), svc)).To(Succeed())
	return svc
}

func annotation(name, value string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Annotations[name] = value }
}

func (w *externalWorld) get(g Gomega, obj client.Object) {
	g.Expect(w.api.Get(context.Background(), client.ObjectKeyFromObject(obj), obj)).To(Succeed())
}

func (w *externalWorld) remove(obj client.Object) {
	w.t.Helper()
	w.Expect(w.api.Delete(w.t.Context(), obj)).To(Succeed())
	w.Eventually(func() bool {
		return apierrors.IsNotFound(w.api.Get(w.t.Context(), client.ObjectKeyFromObject(obj), obj))
	}).Should(BeTrue())
}

func (w *externalWorld) patch(obj client.Object, text string) {
	w.t.Helper()
	w.Expect(w.api.Patch(w.t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(text)))).To(Succeed())
}

// addresses returns the addresses that a Service shows.
func (w *externalWorld) addresses(svc *corev1.Service) func(Gomega) []string {
	return func(g Gomega) []string {
		w.get(g, svc)
		var out []string
		for _, in := range svc.Status.LoadBalancer.Ingress {
			out = append(out, in.IP)
		}
		return out
	}
}

// condition returns status, reason and message of a condition, with URL for the fake's.
func (w *externalWorld) condition(obj client.Object, kind string) func(Gomega) string {
	return func(g Gomega) string {
		w.get(g, obj)
		var conditions []metav1.Condition
		switch o := obj.(type) {
		case *corev1.Service:
			conditions = o.Status.Conditions
		case *v1.ServiceGroup:
			conditions = o.Status.Conditions
		}
		c := meta.FindStatusCondition(conditions, kind)
		if c == nil {
			return ""
		}
		text := strings.TrimSuffix(c.Message, "; spec.netbox.url: by http, everyone on the way can read the token: use https")
		return strings.ReplaceAll(fmt.Sprintf("%s %s: %s", c.Status, c.Reason, text), w.url, "URL")
	}
}

// events returns the notes of events about an object that have a reason.
func (w *externalWorld) events(obj client.Object, reason string) func(Gomega) []string {
	return func(g Gomega) []string {
		var list eventsv1.EventList
		g.Expect(w.api.List(context.Background(), &list)).To(Succeed())
		var notes []string
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Name == obj.GetName() && e.Reason == reason {
				notes = append(notes, strings.ReplaceAll(e.Note, w.url, "URL"))
			}
		}
		slices.Sort(notes)
		return slices.Compact(notes)
	}
}

// recorded returns what NetBox has recorded of this cluster, by address: the name of the
// Service. Records that are twice have two names.
func (w *externalWorld) recorded() map[string]string {
	out := map[string]string{}
	for _, a := range w.netbox.Addresses() {
		if !strings.HasPrefix(a.Description, "purelb ") {
			continue
		}
		parts := strings.Split(a.Description, "/")
		out[a.Address.Addr().String()] += parts[2]
	}
	return out
}

// at returns what NetBox has recorded of an address.
func (w *externalWorld) at(a string) *fake.Address {
	for _, record := range w.netbox.Addresses() {
		if record.Address.Addr() == netip.MustParseAddr(a) {
			return &record
		}
	}
	return nil
}

// pass lets time pass for the manager, and then wakes it by a Service of a group.
func (w *externalWorld) pass(d time.Duration, group string) {
	w.t.Helper()
	w.ahead.Add(int64(d))
	svc := w.service(fmt.Sprintf("pass-%d", w.ahead.Load()/int64(time.Second)), group)
	w.Eventually(w.addresses(svc)).ShouldNot(BeEmpty())
	w.remove(svc)
}

// holders returns the name of the Service that has each address, and fails if two have one.
func (w *externalWorld) holders(g Gomega) map[string]string {
	var list corev1.ServiceList
	g.Expect(w.api.List(context.Background(), &list, client.InNamespace(user))).To(Succeed())
	holders := map[string]string{}
	for i := range list.Items {
		svc := &list.Items[i]
		addrs := allocation.RecordOf(svc).Addresses
		g.Expect(addrs).To(HaveLen(len(svc.Spec.IPFamilies)), "%s: %s", svc.Name, w.condition(svc, v1.ConditionAllocated)(g))
		for _, a := range addrs {
			g.Expect(holders).NotTo(HaveKey(a.String()), "%s and %s", holders[a.String()], svc.Name)
			holders[a.String()] = svc.Name
		}
	}
	return holders
}
