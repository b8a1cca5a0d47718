package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/test/measure"
)

// cachedCluster is a client whose cache holds a cluster of five nodes. Its lists share the objects with the cache,
// as those do by which the manager decides. Agents do at once what is written, and report that.
type cachedCluster struct {
	client.Client
	nodes         []corev1.Node
	groups        []v1.ServiceGroup
	services      []corev1.Service
	announcements []v1.Announcement
	commons       []v1.CommonAnnouncement
	writes        int
}

// newCachedCluster has Services of a group, a node's subnet is that of the group if it is local.
func newCachedCluster(poolType v1.PoolType, services int) *cachedCluster {
	c := &cachedCluster{}
	group := v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "g"}}
	pools := v1.PoolSet{V4Pool: &v1.AddressPool{Pool: "10.1.0.0-10.1.255.255", Subnet: "10.1.0.0/16"}}
	if poolType == v1.PoolTypeLocal {
		group.Spec.Local = &v1.LocalPools{PoolSet: pools}
	} else {
		group.Spec.Remote = &v1.RemotePools{PoolSet: pools}
	}
	c.groups = []v1.ServiceGroup{group}
	for i := range 5 {
		c.nodes = append(c.nodes, *benchNode(fmt.Sprintf("n%d", i+1)))
	}
	for i := range services {
		address := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()
		svc := benchService(fmt.Sprintf("a/s%05d", i), address, "g", poolType)
		svc.UID, svc.ResourceVersion = types.UID(svc.Name), "1"
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		c.services = append(c.services, *svc)
	}
	return c
}

func (c *cachedCluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.NodeList:
		list.Items = slices.Clone(c.nodes)
	case *corev1.ServiceList:
		list.Items = slices.Clone(c.services)
	case *v1.LBNodeAgentList:
		list.Items = []v1.LBNodeAgent{*benchAgent()}
	case *v1.ServiceGroupList:
		list.Items = slices.Clone(c.groups)
	case *v1.AnnouncementList:
		list.Items = slices.Clone(c.announcements)
	case *v1.CommonAnnouncementList:
		list.Items = slices.Clone(c.commons)
	}
	return nil
}

func (c *cachedCluster) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	svc, isService := obj.(*corev1.Service)
	if !isService {
		return nil // a Lease, of which it matters that it is there
	}
	for i := len(c.services) - 1; i >= 0; i-- {
		if c.services[i].Name == key.Name {
			c.services[i].DeepCopyInto(svc)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, key.Name)
}

func (c *cachedCluster) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	obj.SetUID(types.UID(obj.GetName()))
	return c.store(obj)
}

func (c *cachedCluster) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return c.store(obj)
}

func (c *cachedCluster) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return nil
}

func (c *cachedCluster) Status() client.SubResourceWriter { return acceptedStatuses{} }

// acceptedStatuses accepts all statuses, and stores none.
type acceptedStatuses struct{ client.SubResourceWriter }

func (acceptedStatuses) Apply(context.Context, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
	return nil
}

// store replaces an object, or adds it.
func (c *cachedCluster) store(obj client.Object) error {
	c.writes++
	obj.SetGeneration(obj.GetGeneration() + 1)
	switch obj := obj.(type) {
	case *v1.Announcement:
		reportAnnounced(obj)
		at := slices.IndexFunc(c.announcements, func(a v1.Announcement) bool { return a.Name == obj.Name })
		if at < 0 {
			at, c.announcements = len(c.announcements), append(c.announcements, v1.Announcement{})
		}
		obj.DeepCopyInto(&c.announcements[at])
	case *v1.CommonAnnouncement:
		at := slices.IndexFunc(c.commons, func(a v1.CommonAnnouncement) bool { return a.Name == obj.Name })
		if at < 0 {
			at, c.commons = len(c.commons), append(c.commons, v1.CommonAnnouncement{})
		}
		obj.DeepCopyInto(&c.commons[at])
		for i := range c.announcements {
			if a := &c.announcements[i]; a.Name == a.Spec.NodeName {
				a.Status.CommonAnnouncementsRevision = &obj.Spec.Revision
			}
		}
	}
	return nil
}

// reportAnnounced makes a status say that the node announces all that it is asked for.
func reportAnnounced(a *v1.Announcement) {
	a.Status.ObservedGeneration, a.Status.Addresses = a.Generation, nil
	for _, e := range a.Spec.Addresses {
		reported := v1.AddressStatus{Address: e.Address, Epoch: e.Epoch, State: v1.StateAnnounced, Interface: "eth0"}
		a.Status.Addresses = append(a.Status.Addresses, reported)
	}
	if a.Name == a.Spec.NodeName {
		a.Status.Interfaces = []v1.NodeInterface{
			{Name: "eth0", MAC: "02:00:00:00:00:0" + a.Name[1:], Subnets: []string{"10.1.255.20" + a.Name[1:] + "/16"}},
		}
	}
}

// benchmarkChanges calls do again and again, and reports the time on processors, too, which does not depend on what
// else the machine does.
func benchmarkChanges(b *testing.B, do func()) {
	b.Helper()
	began, err := measure.CPUTime(os.Getpid())
	for b.Loop() {
		do()
	}
	ended, err2 := measure.CPUTime(os.Getpid())
	if err != nil || err2 != nil {
		b.Fatal(err, err2)
	}
	b.ReportMetric(float64((ended-began).Nanoseconds())/float64(b.N), "CPU-ns/op")
}

// BenchmarkPlacement measures one placement, without the API server, after a Service has come or gone beside others.
func BenchmarkPlacement(b *testing.B) {
	for _, shape := range []struct {
		name            string
		poolType        v1.PoolType
		namesSuccessors bool
	}{
		{"Local", v1.PoolTypeLocal, false},
		{"Local with successors", v1.PoolTypeLocal, true},
		{"Virtual", v1.PoolTypeRemote, false},
	} {
		for _, addresses := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d addresses", shape.name, addresses), func(b *testing.B) {
				c := newCachedCluster(shape.poolType, addresses+1)
				all := c.services
				now := time.Unix(1_000_000, 0)
				ctx := ctrllog.IntoContext(context.Background(), logr.Discard())
				r := &PlacementReconciler{
					Client: c, APIReader: c, Namespace: benchNamespace, IsDefaultLoadBalancer: true,
					Liveness: NewLivenessTracker(func() time.Time { return now }), Now: func() time.Time { return now },
					Metrics: NewMetrics(prometheus.NewRegistry()), Explanations: &AddressExplanations{},
					Recorder:        &events.FakeRecorder{},
					NamesSuccessors: shape.namesSuccessors, ParallelWrites: 1,
				}
				r.resetState()
				place := func() int {
					before := c.writes
					if result, err := r.Reconcile(ctx, wholeCluster); err != nil || result.RequeueAfter == batchWait {
						b.Fatal(result, err)
					}
					return c.writes - before
				}
				c.services = all[:addresses]
				for begun, writes := now, 1; writes > 0 || now.Sub(begun) < 5*time.Second; {
					now = now.Add(time.Second)
					for i := range c.nodes {
						r.Liveness.observeLease(&coordinationv1.Lease{
							ObjectMeta: metav1.ObjectMeta{Name: v1.LeasePrefix + c.nodes[i].Name},
							Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}},
						})
					}
					writes = place()
				}
				isMore := false
				benchmarkChanges(b, func() {
					if isMore = !isMore; isMore {
						c.services = all
					} else {
						c.services = all[:addresses]
					}
					if writes := place(); writes != 1 {
						b.Fatalf("%d writes", writes)
					}
				})
			})
		}
	}
}

// BenchmarkAllocation measures one look of the allocator, without the API server, at a Service that comes, beside
// others that have Local addresses.
func BenchmarkAllocation(b *testing.B) {
	for _, services := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("%d Services", services), func(b *testing.B) {
			c := newCachedCluster(v1.PoolTypeLocal, services)
			r := &ServiceReconciler{
				Client: c, apiReader: c, index: newServiceIndex(true, time.Now), Namespace: benchNamespace,
				IsDefaultLoadBalancer: true,
				Metrics:               NewMetrics(prometheus.NewRegistry()), Recorder: &events.FakeRecorder{},
				IPAM: NewExternalIPAM(c, c, ExternalIPAMOptions{Now: time.Now}),
			}
			for i := range c.services {
				r.index.observe(&c.services[i])
			}
			for i := range max(len(c.nodes), services/25) {
				a := v1.Announcement{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), Generation: 1}}
				a.Spec.NodeName = "n1"
				if i < len(c.nodes) {
					a.Spec.NodeName = a.Name
				}
				for j := i * 25; j < min(services, i*25+25); j++ {
					address := c.services[j].Status.LoadBalancer.Ingress[0].IP
					a.Spec.Addresses = append(a.Spec.Addresses, v1.AnnouncedAddress{Address: address, Epoch: 1})
				}
				reportAnnounced(&a)
				c.announcements = append(c.announcements, a)
			}
			svc := loadBalancer("new", func(svc *corev1.Service) {
				svc.Annotations[v1.AnnotationServiceGroup] = "g"
				svc.UID, svc.ResourceVersion = "new", "1"
			})
			c.services = append(c.services, *svc)
			key := client.ObjectKeyFromObject(svc)
			benchmarkChanges(b, func() {
				if _, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: key}); err != nil {
					b.Fatal(err)
				}
				r.index.remove(key, "")
			})
		})
	}
}
