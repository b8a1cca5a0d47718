package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/measure"
)

// BenchmarkWrite measures what one write of PureLB's costs a real API server and its etcd, in milliseconds of a
// processor, with as many watches of the objects of its kind as its name says, each by a connection of its own.
// object-bytes is the size of the object. KUBEBUILDER_ASSETS names a folder with the programs.
func BenchmarkWrite(b *testing.B) {
	ctrl.SetLogger(logr.Discard()) // nothing reads what clients log
	c, err := startCluster(b.Context(), "../..")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.stop(); err != nil {
			b.Error(err)
		}
	})
	const many = 300
	b.Run("Lease", func(b *testing.B) { benchmarkLease(b, c) })
	b.Run("Service", func(b *testing.B) { benchmarkServiceStatus(b, c) })
	for _, addresses := range []int{1, 25} {
		name := fmt.Sprint("addresses=", addresses)
		b.Run("Announcement/"+name, func(b *testing.B) { benchmarkAnnouncement(b, c, addresses) })
		b.Run("Report/"+name, func(b *testing.B) { benchmarkReport(b, c, addresses) })
	}
	for _, watches := range []int{0, many} {
		b.Run(fmt.Sprint("CommonAnnouncement/addresses=25/watches=", watches), func(b *testing.B) {
			watchAll(b, c, &v1.CommonAnnouncementList{}, watches, func(int) fields.Selector { return nil })
			benchmarkShared(b, c, 25)
		})
	}
	for _, field := range []string{"spec.nodeName", "metadata.name"} {
		b.Run(fmt.Sprint("Report/addresses=25/watches=", many, "/by=", field), func(b *testing.B) {
			watchAll(b, c, &v1.AnnouncementList{}, many, func(i int) fields.Selector {
				return fields.OneTermEqualSelector(field, fmt.Sprint("other", i))
			})
			benchmarkReport(b, c, 25)
		})
	}
}

// watchAll watches objects of a kind until the benchmark ends, by as many connections, each with its selector.
func watchAll(b *testing.B, c *cluster, list client.ObjectList, count int, selector func(int) fields.Selector) {
	b.Helper()
	for i := range count {
		config := rest.CopyConfig(c.config)
		config.Dial = (&net.Dialer{}).DialContext // connections are shared by those who share this
		watcher, err := client.NewWithWatch(config, client.Options{Scheme: c.admin.Scheme()})
		if err != nil {
			b.Fatal(err)
		}
		objects, ok := list.DeepCopyObject().(client.ObjectList)
		if !ok {
			b.Fatalf("%T is no list", list)
		}
		w, err := watcher.Watch(b.Context(), objects, &client.ListOptions{Namespace: namespace, FieldSelector: selector(i)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(w.Stop)
		go func() {
			for range w.ResultChan() { //nolint:revive // until it is stopped
			}
		}()
	}
}

// measureWrites writes as often as the benchmark says, and reports what each write took.
func (c *cluster) measureWrites(b *testing.B, obj client.Object, write func(i int) error) {
	b.Helper()
	read := func() (apiServer, etcd time.Duration) {
		apiServer, err1 := measure.CPUTime(c.apiServer)
		etcd, err2 := measure.CPUTime(c.etcd)
		if err := errors.Join(err1, err2); err != nil {
			b.Fatal(err)
		}
		return apiServer, etcd
	}
	if err := write(-1); err != nil { // and makes the server ready for more
		b.Fatal(err)
	}
	apiServer, etcd := read()
	for i := range b.N {
		if err := write(i); err != nil {
			b.Fatal(err)
		}
	}
	apiServerAfter, etcdAfter := read()
	perWrite := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(b.N) }
	b.ReportMetric(perWrite(apiServerAfter-apiServer), "apiserver-ms/op")
	b.ReportMetric(perWrite(etcdAfter-etcd), "etcd-ms/op")
	stored, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		b.Fatalf("%T is no object", obj)
	}
	if err := c.admin.Get(b.Context(), client.ObjectKeyFromObject(obj), stored); err != nil {
		b.Fatal(err)
	}
	content, err := json.Marshal(stored)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(content)), "object-bytes")
}

// remake deletes an object of an earlier benchmark, and makes it.
func (c *cluster) remake(b *testing.B, obj client.Object) {
	b.Helper()
	obj.SetNamespace(namespace)
	err := c.admin.Delete(b.Context(), obj)
	if client.IgnoreNotFound(err) != nil {
		b.Fatal(err)
	}
	obj.SetResourceVersion("")
	obj.SetUID("")
	if err := c.admin.Create(b.Context(), obj); err != nil {
		b.Fatal(err)
	}
}

// benchmarkLease renews a Lease as an agent does.
func benchmarkLease(b *testing.B, c *cluster) {
	b.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1.LeasePrefix + "bench"}}
	c.remake(b, lease)
	c.measureWrites(b, lease, func(int) error {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{
			"holderIdentity": "bench", "leaseDurationSeconds": 3, "renewTime": metav1.NewMicroTime(time.Now()),
		}})
		if err != nil {
			return err
		}
		return c.admin.Patch(b.Context(), lease, client.RawPatch("application/merge-patch+json", patch))
	})
}

// benchmarkServiceStatus writes the status of a Service as the manager does.
func benchmarkServiceStatus(b *testing.B, c *cluster) {
	b.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	c.remake(b, svc)
	c.measureWrites(b, svc, func(i int) error {
		return c.applyStatus(b.Context(), svc, "v1", "Service", map[string]any{
			"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "192.0.2.1", "ipMode": "VIP"}}},
			"conditions": []any{map[string]any{
				"type": v1.ConditionAnnounced, "status": "True", "reason": "Announced", "message": fmt.Sprint("for the time ", i),
				"lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
			}},
		})
	})
}

// applyStatus applies a status, as the manager and the agents do.
func (c *cluster) applyStatus(
	ctx context.Context, obj client.Object, apiVersion, kind string, status map[string]any,
) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "status": status}}
	u.SetNamespace(namespace)
	u.SetName(obj.GetName())
	return c.admin.Status().Apply(
		ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("bench"), client.ForceOwnership,
	)
}

// announcedAddresses returns entries of a node's Announcement, or of a CommonAnnouncement.
func announcedAddresses(count int, announceType v1.AnnounceType) []v1.AnnouncedAddress {
	entries := make([]v1.AnnouncedAddress, count)
	for i := range entries {
		entries[i] = v1.AnnouncedAddress{
			Address: fmt.Sprint("192.0.2.", i+1), PrefixLength: 24, Interface: "eth0", Type: announceType,
			ServiceGroup: "default", Services: []string{fmt.Sprint("tenant/service-", i)}, Epoch: 1,
		}
		if announceType == v1.AnnounceVirtual {
			entries[i].Interface, entries[i].PrefixLength, entries[i].Epoch = "kube-lb0", 32, 0
		}
	}
	return entries
}

// remakeAnnouncement makes a node's Announcement with as many addresses.
func (c *cluster) remakeAnnouncement(b *testing.B, addresses int) *v1.Announcement {
	b.Helper()
	a := &v1.Announcement{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1.AnnouncementSpec{
			NodeName: "bench", LBNodeAgent: lbNodeAgent, Addresses: announcedAddresses(addresses, v1.AnnounceLocal),
		},
	}
	c.remake(b, a)
	return a
}

// benchmarkAnnouncement writes the spec of an Announcement, of which one address changes, as the manager does.
func benchmarkAnnouncement(b *testing.B, c *cluster, addresses int) {
	b.Helper()
	a := c.remakeAnnouncement(b, addresses)
	c.measureWrites(b, a, func(i int) error {
		a.Spec.Addresses[0].Epoch = int64(i + 2)
		return c.admin.Update(b.Context(), a, client.FieldOwner("bench"))
	})
}

// benchmarkReport applies the status of an Announcement, in which one address changes, as an agent does.
func benchmarkReport(b *testing.B, c *cluster, addresses int) {
	b.Helper()
	a := c.remakeAnnouncement(b, addresses)
	c.measureWrites(b, a, func(i int) error {
		status := v1.AnnouncementStatus{ObservedGeneration: 1}
		for n := range a.Spec.Addresses {
			e := &a.Spec.Addresses[n]
			status.Addresses = append(status.Addresses, v1.AddressStatus{
				Address: e.Address, State: v1.StateAnnounced, Interface: string(e.Interface), MAC: "02:00:00:00:00:01",
				Epoch: e.Epoch, LastTransitionTime: metav1.Unix(1_800_000_000, 0),
			})
		}
		status.Addresses[0].Epoch = int64(i + 2)
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
		if err != nil {
			return err
		}
		return c.applyStatus(b.Context(), a, v1.GroupVersion.String(), "Announcement", content)
	})
}

// benchmarkShared writes a CommonAnnouncement, of which one address changes, as the manager does.
func benchmarkShared(b *testing.B, c *cluster, addresses int) {
	b.Helper()
	a := &v1.CommonAnnouncement{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1.CommonAnnouncementSpec{
			LBNodeAgent: lbNodeAgent, Revision: 1, Addresses: announcedAddresses(addresses, v1.AnnounceVirtual),
		},
	}
	c.remake(b, a)
	c.measureWrites(b, a, func(i int) error {
		a.Spec.Revision, a.Spec.Addresses[0].Services = int64(i+2), []string{fmt.Sprint("tenant/service-", i+1_000)}
		return c.admin.Update(b.Context(), a, client.FieldOwner("bench"))
	})
}
