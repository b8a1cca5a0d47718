package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
)

// serviceWrites is how often the manager has written a Service.
var serviceWrites atomic.Int64

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func countWrites(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/services/") {
			serviceWrites.Add(1)
		}
		return next.RoundTrip(r)
	})
}

// TestTwoLeaders runs a second allocator for a moment, as when a leader is late
// to notice that it is none any more: what both give away is repaired.
func TestTwoLeaders(t *testing.T) {
	g := begin(t)
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := ctrl.NewManager(serverConfig, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{
			SkipNameValidation: ptr.To(true),
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect((&controllers.ServiceReconciler{
		Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("purelb-allocator"), Namespace: namespace,
		IsDefaultLoadBalancer: true,
		Metrics:               controllers.NewMetrics(prometheus.NewRegistry()), IPAM: noIPAM(mgr.GetClient()),
	}).SetupWithManager(mgr)).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer cancel()
	g.Expect(mgr.GetCache().WaitForCacheSync(ctx)).To(BeTrue())

	const addresses, wanted = 30, 40
	serviceGroup(t, "contested", "remote: {pool: 10.37.0.1-10.37.0.30, subnet: 10.37.0.0/24}")
	var services []*corev1.Service
	for i := range wanted {
		services = append(services, service(t, fmt.Sprintf("contested-%d", i), ofGroup("contested")))
		if i%4 == 3 {
			g.Expect(api.Delete(ctx, services[0])).To(Succeed())
			services = services[1:]
		}
	}
	cancel()
	g.Expect(<-ended).To(Succeed())
	for i := range wanted / 4 {
		services = append(services, service(t, fmt.Sprintf("contested-late-%d", i), ofGroup("contested")))
	}

	holders := func(g Gomega) map[string]string {
		holder := map[string]string{}
		for _, svc := range services {
			for _, a := range ingress(svc)(g) {
				g.Expect(holder).NotTo(HaveKey(a), "%s and %s", holder[a], svc.Name)
				holder[a] = svc.Name
			}
		}
		g.Expect(holder).To(HaveLen(addresses))
		return holder
	}
	g.Eventually(func(g Gomega) { holders(g) }).Should(Succeed())
	waitUntilAllocated(t)
	settled := holders(g)
	waitUntilAllocated(t)
	g.Expect(holders(g)).To(Equal(settled), "nothing moves any more")
}

// BenchmarkServices makes Services as fast as the API server takes them, and
// waits until all have their address: go test -bench Services -benchtime 10000x.
func BenchmarkServices(b *testing.B) {
	SetDefaultEventuallyTimeout(20 * time.Minute)
	if err := start(); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	group := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bench"}}
	group.Spec.Remote = &v1.RemotePools{
		PoolSet: v1.PoolSet{V4Pool: &v1.AddressPool{Pool: "10.128.0.0/16", Subnet: "10.128.0.0/16"}},
	}
	if err := client.IgnoreAlreadyExists(api.Create(ctx, group)); err != nil {
		b.Fatal(err)
	}
	watching, err := client.NewWithWatch(serverConfig, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		b.Fatal(err)
	}
	events, err := watching.Watch(ctx, &corev1.ServiceList{}, client.InNamespace(user))
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()

	created, took := sync.Map{}, make([]time.Duration, 0, b.N)
	writes, run := serviceWrites.Load(), time.Now().UnixNano()
	b.ResetTimer()
	go func() {
		for i := range b.N {
			name := fmt.Sprintf("bench-%d-%d", run, i)
			created.Store(name, time.Now())
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: user, Name: name, Annotations: map[string]string{v1.AnnotationServiceGroup: "bench"},
				},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false),
					Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if err := api.Create(ctx, svc); err != nil {
				b.Error(err)
			}
		}
	}()
	for e := range events.ResultChan() {
		svc, ok := e.Object.(*corev1.Service)
		if !ok || len(svc.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		if at, waits := created.LoadAndDelete(svc.Name); waits {
			took = append(took, time.Since(at.(time.Time)))
		}
		if len(took) == b.N {
			break
		}
	}
	b.StopTimer()
	slices.Sort(took)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "allocations/s")
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Milliseconds()), "p99-ms")
	b.ReportMetric(float64(serviceWrites.Load()-writes)/float64(b.N), "writes/Service")
	b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "heap-MiB")
}
