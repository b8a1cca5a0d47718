//go:build proof

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/footprint"
	"github.com/purelb/purelb-operator/test/measure"
	"github.com/purelb/purelb-operator/webhooks"
)

// The worst that the users of namespaces and their pods may do to the manager.
const (
	strangers       = 10_000    // Services that PureLB does not serve
	tenants         = 500       // Services of type LoadBalancer, as a quota may allow
	annotationBytes = 250 << 10 // of each of them; the API server takes 256 KiB
	slowClients     = 500       // of a server, which send all of a request but its end
	webhookPath     = "/validate--v1-service"
)

// TestProofMemory has tenants fill the manager's cache and their pods its webhooks, and kills
// the manager meanwhile: it needs less than the memory of its container all the time, and goes
// on to allocate.
func TestProofMemory(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // of the agents, which run in this process
	ctx := t.Context()
	address, folder := freeAddress(t), certificateFolder(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	limit, heapLimit := memoryOf(t, managerContainer(t))
	r, err := newRun(ctx, options{
		root: "../..", program: programPath(t), pprof: "0", locals: 5,
		managerArgs: []string{"--webhook-port=" + port, "--webhook-cert-dir=" + folder},
		managerEnv:  []string{heapLimit},
	}, t.Output(), flat, 3)
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		checkPeak(t, "the manager", r.manager.pid(), limit, when)
		// A manager that cannot renew its Lease has to end: an etcd that writes gigabytes is slow.
		log := logOf(t, r.manager.logFile)
		if _, losses := r.manager.readCPU(); losses > strings.Count(log, "leader election lost") {
			t.Errorf(
				"%s: the manager has ended by itself %d times; its log ends:\n%s", when, losses, log[max(0, len(log)-4000):],
			)
		} else if losses > 0 {
			t.Logf("%s: the manager has lost its Lease %d times", when, losses)
		}
	}
	check("nothing but 5 Services")

	large := strings.Repeat("x", annotationBytes)
	createLarge := func(name string, count int, kind corev1.ServiceType, annotations map[string]string) {
		t.Helper()
		// One after the other: the API server is to have time for the manager's Lease.
		for i := range count {
			all := map[string]string{"example.com/large": large}
			maps.Copy(all, annotations)
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s%05d", name, i), Annotations: all},
				Spec:       corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if kind == corev1.ServiceTypeLoadBalancer {
				svc.Spec.AllocateLoadBalancerNodePorts = ptr.To(false)
			}
			if err := r.cluster.admin.Create(ctx, svc); err != nil {
				t.Fatal(err)
			}
		}
	}
	createLarge(
		"tenant", tenants, corev1.ServiceTypeLoadBalancer, map[string]string{v1.AnnotationServiceGroup: virtualGroup},
	)
	for i := range tenants {
		waitForAddress(ctx, t, r, fmt.Sprintf("tenant%05d", i))
	}
	check(fmt.Sprintf("%d Services of type LoadBalancer with %d KiB of annotations each", tenants, annotationBytes>>10))
	createLarge("stranger", strangers, corev1.ServiceTypeClusterIP, nil)
	serve := func(name string) {
		t.Helper()
		if err := r.createService(ctx, name, virtualGroup, ""); err != nil {
			t.Fatal(err)
		}
		waitForAddress(ctx, t, r, name)
	}
	serve("after-strangers")
	check(fmt.Sprintf("%d other Services with as many", strangers))

	stop := stall(ctx, address, true, stalledReview())
	serve("while-clients-stall")
	check(fmt.Sprintf("%d clients that stall", slowClients))
	stop()
	if err := r.manager.kill(); err != nil {
		t.Fatal(err)
	}
	if err := r.manager.start(); err != nil {
		t.Fatal(err)
	}
	serve("after-restart")
	stop = stall(ctx, address, true, stalledReview())
	serve("after-restart-while-clients-stall")
	check("after a restart with all of that")
	stop()
}

// managerContainer returns the manager's container as it is installed.
func managerContainer(t *testing.T) corev1.Container {
	t.Helper()
	file, err := os.Open("../../config/manager/manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for documents := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
		deployment := &appsv1.Deployment{}
		if err := documents.Decode(deployment); err != nil {
			t.Fatalf("find the manager's Deployment: %v", err)
		}
		if deployment.Kind == "Deployment" {
			return deployment.Spec.Template.Spec.Containers[0]
		}
	}
}

// memoryOf returns how many MiB of memory a container has, and the environment variable that limits
// the heap as footprint.LimitHeap does in such a container.
func memoryOf(t *testing.T, c corev1.Container) (limitMiB float64, heapLimit string) {
	t.Helper()
	limit := uint64(c.Resources.Limits.Memory().Value())
	if limit == 0 {
		t.Fatalf("the container %s has no limit", c.Name)
	}
	return float64(limit) / (1 << 20), fmt.Sprintf("GOMEMLIMIT=%d", footprint.HeapLimit(limit))
}

// checkPeak logs how much memory a process has needed so far, and fails if that is more than its
// container has.
func checkPeak(t *testing.T, program string, pid int, limitMiB float64, when string) {
	t.Helper()
	peak, err1 := measure.PeakMiB(pid)
	now, err2 := measure.ResidentMiB(pid)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: at most %.0f MiB so far, %.0f MiB now", when, peak, now)
	if peak >= limitMiB {
		t.Errorf("%s: %s needs %.0f MiB, its container has %.0f", when, program, peak, limitMiB)
	}
}

// stalledReview returns all of the longest request that the webhooks take but its last byte.
func stalledReview() []byte {
	head := fmt.Sprintf(
		"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", webhookPath,
		webhooks.MaxBody,
	)
	return append([]byte(head), make([]byte, webhooks.MaxBody-1)...)
}

// stall connects clients to a server that send the beginning of a request, again and again, until
// stop is called.
func stall(ctx context.Context, address string, isTLS bool, request []byte) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	plain := &net.Dialer{Timeout: time.Minute}
	dial := plain.DialContext
	if isTLS {
		config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}} //nolint:gosec // a test
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	var clients, connected sync.WaitGroup
	connected.Add(slowClients)
	for range slowClients {
		clients.Go(func() {
			once := sync.OnceFunc(connected.Done)
			defer once()
			for ctx.Err() == nil {
				conn, err := dial(ctx, "tcp", address)
				if err != nil {
					continue // the server has replaced the connection already
				}
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Write(request)
				once()
				_, _ = conn.Read(make([]byte, 1)) // until the server ends the connection
				end()
				_ = conn.Close()
			}
		})
	}
	connected.Wait()
	return func() { cancel(); clients.Wait() }
}

// waitForAddress waits until a Service has an address.
func waitForAddress(ctx context.Context, t *testing.T, r *run, name string) {
	t.Helper()
	err := waitUntil(ctx, name+" has an address", func() (bool, error) {
		svc := &corev1.Service{}
		err := r.cluster.admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, svc)
		return len(svc.Status.LoadBalancer.Ingress) > 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func logOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// certificateFolder writes a certificate for the webhooks.
func certificateFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}
