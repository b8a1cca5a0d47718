package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestAnnounceType compares what allocation takes a pool for with what placement makes of its addresses: one Node is in
// the pool's subnet by what its agent reports, and it depends on its LBNodeAgent and on the Nodes whether that counts.
func TestAnnounceType(t *testing.T) {
	for _, row := range []struct {
		name     string
		allowed  []string // subnets of the LBNodeAgent
		reports  string   // of node n1
		internal [2]string
		want     v1.AnnounceType
	}{
		{"no subnets named", nil, "10.1.0.5/24", [2]string{}, v1.AnnounceLocal},
		{"its subnet named", []string{"10.9.0.0/24", "10.1.0.0/24"}, "10.1.0.5/24", [2]string{}, v1.AnnounceLocal},
		{"another subnet named", []string{"10.9.0.0/24"}, "10.1.0.5/24", [2]string{}, v1.AnnounceVirtual},
		{"not in it", nil, "10.9.0.5/24", [2]string{}, v1.AnnounceVirtual},
		{"no link is so large", nil, "10.1.0.5/7", [2]string{}, v1.AnnounceVirtual},
		{"one address is no link", nil, "10.1.0.9/32", [2]string{}, v1.AnnounceVirtual},
		{"its Node is in it", nil, "10.1.0.5/24", [2]string{"10.1.0.5", "10.1.0.6"}, v1.AnnounceLocal},
		{"another Node is, and this one is elsewhere", nil, "10.1.0.5/24", [2]string{"10.9.0.5", "10.1.0.6"},
			v1.AnnounceVirtual},
		{"no report", nil, "", [2]string{}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			lbNodeAgent := benchAgent()
			if row.allowed != nil {
				lbNodeAgent.Spec.Local = &v1.LBNodeAgentLocal{Subnets: row.allowed}
			}
			sg := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "g"}}
			sg.Spec.Local = &v1.LocalPools{PoolSet: v1.PoolSet{
				V4Pools: []v1.AddressPool{{Pool: "10.1.0.9", Subnet: "10.1.0.0/24"}},
			}}
			objects := []client.Object{lbNodeAgent, sg, benchService("a/b", "10.1.0.9", "g", v1.PoolTypeLocal)}
			for i, addr := range row.internal {
				n := benchNode(fmt.Sprintf("n%d", i+1))
				if addr != "" {
					n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}
				}
				objects = append(objects, n)
			}
			if row.reports != "" {
				objects = append(objects, &v1.Announcement{
					ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: "n1", Generation: 1},
					Spec:       v1.AnnouncementSpec{NodeName: "n1", LBNodeAgent: "default"},
					Status: v1.AnnouncementStatus{
						ObservedGeneration: 1,
						Interfaces:         []v1.NodeInterface{{Name: "eth0", MAC: "02:00:00:00:00:01", Subnets: []string{row.reports}}},
					},
				})
			}
			b := newBench(t, objects...)
			inputs, _, err := allocationInputs(t.Context(), b.api, benchNamespace)
			if err != nil {
				t.Fatal(err)
			}
			group := &inputs.Catalog["g"].Group
			if got := inputs.AnnounceType(group.Ranges[0]); got != row.want {
				t.Errorf("the pool is %q, want %q", got, row.want)
			}
			isNotFound := slices.Equal(inputs.SubnetsNotFound(group), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")})
			if isNotFound != (row.want == v1.AnnounceVirtual) {
				t.Errorf("the subnet is not found: %t", isNotFound)
			}
			cluster, err := gatherCluster(t.Context(), b.api, benchNamespace)
			if err != nil {
				t.Fatal(err)
			}
			dead := func(string) placement.Liveness { return placement.Expired } // so that nothing is awaited
			in := cluster.placementInputs(dead, b.now, true)
			for i := range in.Nodes {
				in.Nodes[i].AreFactsAwaited = false
			}
			if verdict, _ := placement.ExplainAddress(in, netip.MustParseAddr("10.1.0.9")); verdict.Type != row.want {
				t.Errorf("placement makes it %q, want %q", verdict.Type, row.want)
			}
		})
	}
}

// TestAnnounceTypeIsFollowed checks that the allocator and the ServiceGroups are woken when an LBNodeAgent names other
// subnets, or a node gets another LBNodeAgent.
func TestAnnounceTypeIsFollowed(t *testing.T) {
	r, c := allocator(t)
	for name, watches := range map[string][]Watch{
		"service":      r.Component(componentManager{c}).Watches,
		"servicegroup": (&ServiceGroupReconciler{IPAM: r.IPAM}).Component().Watches,
	} {
		wakes := func(before, after client.Object) bool {
			return slices.ContainsFunc(watches, func(w Watch) bool {
				return fmt.Sprintf("%T", w.Object) == fmt.Sprintf("%T", after) && w.Changed != nil &&
					w.Changed.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
			})
		}
		named, other := benchAgent(), benchAgent()
		named.Spec.Local = &v1.LBNodeAgentLocal{Subnets: []string{"10.1.0.0/24"}}
		other.Spec.LogLevel = "debug"
		if !wakes(benchAgent(), named) || wakes(benchAgent(), other) {
			t.Errorf("%s: by other subnets %t, by another log level %t", name, wakes(benchAgent(), named),
				wakes(benchAgent(), other))
		}
		of := func(lbNodeAgent string) *v1.Announcement {
			return &v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: "n1", LBNodeAgent: lbNodeAgent}}
		}
		if !wakes(of("a"), of("b")) || wakes(of("a"), of("a")) {
			t.Errorf("%s: by another LBNodeAgent %t, by none %t", name, wakes(of("a"), of("b")), wakes(of("a"), of("a")))
		}
	}
}

// componentManager is what a reconciler needs besides a client.
type componentManager struct{ client.Client }

func (m componentManager) GetAPIReader() client.Reader { return m.Client }

func (componentManager) GetFieldIndexer() client.FieldIndexer { return nil }
