package plugin

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// balance is a cluster of nodes on one link, each of which holds some IPv4 addresses.
func balance(loads ...int) placement.Inputs {
	var inputs placement.Inputs
	for i, load := range loads {
		name := fmt.Sprintf("node%d", i+1)
		inputs.Nodes = append(inputs.Nodes, placement.Node{
			Name: name, LBNodeAgent: "default", Liveness: placement.Fresh, HasReportedFacts: true,
			Interfaces: []placement.Interface{{Name: "eth0", MAC: "mac-" + name, Subnets: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), 24), netip.MustParsePrefix("fd00::/64"),
			}}},
		})
		for range load {
			hold(&inputs, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + len(inputs.Addresses))}), name)
		}
	}
	return inputs
}

// hold adds an address that a node holds.
func hold(inputs *placement.Inputs, a netip.Addr, node string) {
	inputs.Addresses = append(inputs.Addresses, placement.Address{
		Addr: a, Group: "default", PoolType: v1.PoolTypeLocal, Services: []string{"shop/" + a.String()},
	})
	inputs.Entries = append(inputs.Entries, placement.Entry{
		Node: node, Addr: a, ReportedState: v1.StateAnnounced, IsObserved: true,
		Spec: v1.AnnouncedAddress{
			Address: a.String(), PrefixLength: int32(a.BitLen()), Interface: "eth0", Type: v1.AnnounceLocal,
			ServiceGroup: "default", Services: []string{"shop/" + a.String()}, ClaimPolicy: v1.ClaimProbe, Epoch: 1,
		},
	})
}

func clusterWith(inputs placement.Inputs) *Cluster {
	return &Cluster{Objects: &Objects{}, PlacementInputs: inputs}
}

// loadsIn returns how many IPv4 addresses each node has.
func loadsIn(all []NodeLoad) (loads []int) {
	for _, l := range all {
		loads = append(loads, l.IPv4)
	}
	return loads
}

// prefer has the group of all addresses prefer nodes by a label with as much weight as its value says, and spread
// them over zones.
func prefer(inputs *placement.Inputs, labelsOf map[string]string, topologyKey string) {
	p := &placement.Preference{TopologyKey: topologyKey}
	for weight := range 9 {
		selector := labels.SelectorFromSet(labels.Set{"weight": fmt.Sprint(weight)})
		p.Nodes = append(p.Nodes, placement.PreferredNodes{Weight: weight, Selector: selector})
	}
	for i := range inputs.Addresses {
		inputs.Addresses[i].Preference = p
	}
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		n.Labels = map[string]string{}
		for _, label := range strings.Fields(labelsOf[n.Name]) {
			key, value, _ := strings.Cut(label, "=")
			n.Labels[key] = value
		}
	}
}

// What is moved is as little as makes loads differ by one at most, among nodes that may take it.
func TestPlanRebalance(t *testing.T) {
	onlyOn := func(inputs *placement.Inputs, node string) { // addresses whose Services have endpoints there only
		for i := range inputs.Addresses {
			inputs.Addresses[i].ServingNodes = map[string]bool{node: true}
		}
	}
	for name, row := range map[string]struct {
		inputs placement.Inputs
		change func(*placement.Inputs)
		want   string // moves, and loads afterwards
	}{
		"nothing":                {balance(0, 0), nil, "0: [0 0]"},
		"even":                   {balance(2, 3, 2), nil, "0: [2 3 2]"},
		"after a rolling reboot": {balance(6, 3, 0), nil, "3: [3 3 3]"},
		"all on one":             {balance(7, 0, 0), nil, "4: [3 2 2]"},
		"one excluded": {balance(5, 0, 0), func(i *placement.Inputs) {
			i.Nodes[2].IsExcluded = true
		}, "2: [3 2 0]"},
		"one expired": {balance(5, 0, 0), func(i *placement.Inputs) {
			i.Nodes[2].Liveness = placement.Expired
		}, "2: [3 2 0]"},
		"endpoints there only": {balance(5, 0, 0), func(i *placement.Inputs) { onlyOn(i, "node1") }, "0: [5 0 0]"},
		"endpoints on two": {balance(5, 0, 0), func(i *placement.Inputs) {
			onlyOn(i, "node1")
			i.Addresses[4].ServingNodes = nil
		}, "1: [4 "},
		"somebody asks already": {balance(2, 0), func(i *placement.Inputs) {
			i.Nodes[0].AddressToHandOver = i.Addresses[1].Addr
		}, "1: [1 1]"},
		"families by themselves": {balance(1, 1), func(i *placement.Inputs) {
			hold(i, netip.MustParseAddr("fd00::1"), "node1")
		}, "0: [1 1]"},
		"IPv6": {balance(1, 1), func(i *placement.Inputs) {
			hold(i, netip.MustParseAddr("fd00::1"), "node1")
			hold(i, netip.MustParseAddr("fd00::2"), "node1")
		}, "1: [1 1]"},
		"a node is preferred": {balance(2, 2, 2), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node2": "weight=3"}, "")
		}, "4: [0 6 0]"},
		"two nodes are preferred": {balance(4, 0, 0), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node2": "weight=3", "node3": "weight=3"}, "")
		}, "4: [0 2 2]"},
		"the one that has them is preferred": {balance(4, 0, 0), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node1": "weight=3", "node3": "weight=2"}, "")
		}, "0: [4 0 0]"},
		"the preferred node is excluded": {balance(2, 0), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node2": "weight=3"}, "")
			i.Nodes[1].IsExcluded = true
		}, "0: [2 0]"},
		"zones": {balance(3, 3, 0), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node1": "zone=a", "node2": "zone=a", "node3": "zone=b"}, "zone")
		}, "3: ["},
		"zones, one of which has a node more": {balance(2, 2, 3), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node1": "zone=a", "node2": "zone=a", "node3": "zone=b"}, "zone")
		}, "0: [2 2 3]"},
		"nodes of zones": {balance(4, 0, 4), func(i *placement.Inputs) {
			prefer(i, map[string]string{"node1": "zone=a", "node2": "zone=a", "node3": "zone=b"}, "zone")
		}, "2: [2 2 4]"},
		"a Virtual address": {balance(1, 0), func(i *placement.Inputs) {
			routed := placement.Address{Addr: netip.MustParseAddr("172.16.0.1"), PoolType: v1.PoolTypeRemote}
			i.Addresses = append(i.Addresses, routed)
		}, "0: [1 0]"},
	} {
		t.Run(name, func(t *testing.T) {
			if row.change != nil {
				row.change(&row.inputs)
			}
			plan := PlanRebalance(clusterWith(row.inputs))
			if got := fmt.Sprintf("%d: %v", len(plan.Moves), loadsIn(plan.After)); !strings.HasPrefix(got, row.want) {
				t.Errorf("%s, not %s: %+v", got, row.want, plan.Moves)
			}
		})
	}
}

// Of any cluster, loads differ by one at most afterwards, and no address moves twice.
func TestPlanRebalanceOfAny(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		var before []int
		for range 2 + rng.IntN(5) {
			before = append(before, rng.IntN(9))
		}
		plan := PlanRebalance(clusterWith(balance(before...)))
		after, given := loadsIn(plan.After), 0
		for i := range before {
			given += max(before[i]-after[i], 0)
		}
		if slices.Max(after)-slices.Min(after) > 1 || len(plan.Moves) != given {
			t.Errorf("%v becomes %v by %d moves", before, after, len(plan.Moves))
		}
	}
}

// TestPlanRebalanceOfAnyPreference rebalances random loads by random preferences. Afterwards only nodes that the
// ServiceGroup prefers the most have addresses, in equal parts of their zones, and the plan comes to an end.
func TestPlanRebalanceOfAnyPreference(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for range 30 {
		var before []int
		for range 2 + rng.IntN(4) {
			before = append(before, rng.IntN(6))
		}
		inputs, labelsOf := balance(before...), map[string]string{}
		for i := range before {
			labelsOf[fmt.Sprintf("node%d", i+1)] = fmt.Sprintf("weight=%d zone=%d", rng.IntN(3), rng.IntN(2))
		}
		prefer(&inputs, labelsOf, "zone")
		most := 0
		for i := range inputs.Nodes {
			if len(inputs.Addresses) > 0 {
				most = max(most, inputs.Addresses[0].WeightOf(&inputs.Nodes[i]))
			}
		}
		plan, zones := PlanRebalance(clusterWith(inputs)), map[string]int{}
		for i, load := range plan.After {
			n := &inputs.Nodes[i]
			if load.IPv4 > 0 && inputs.Addresses[0].WeightOf(n) != most {
				t.Errorf("%v of %v: %s has %d", before, labelsOf, n.Name, load.IPv4)
			}
			if len(inputs.Addresses) > 0 && inputs.Addresses[0].WeightOf(n) == most {
				zones[n.Labels["zone"]] += load.IPv4
			}
		}
		if len(zones) == 2 && max(zones["0"], zones["1"])-min(zones["0"], zones["1"]) > 1 {
			t.Errorf("%v of %v: the zones have %v", before, labelsOf, zones)
		}
	}
}

// The plan is printed with why each address moves, and with what nodes have.
func TestRebalancingText(t *testing.T) {
	preferring, spread := balance(1, 0), balance(2, 0)
	prefer(&preferring, map[string]string{"node2": "weight=3"}, "")
	prefer(&spread, map[string]string{"node1": "zone=a", "node2": "zone=b"}, "zone")
	for want, inputs := range map[string]placement.Inputs{
		"ADDRESS    SERVICES        FROM    TO      WHY\n" +
			"10.0.0.1   shop/10.0.0.1   node1   node2   node1 has weight 0, node2 has 3\n\n" +
			"NODE    IPV4    IPV6\nnode1   1 → 0   0\nnode2   0 → 1   0\n": preferring,
		"ADDRESS    SERVICES        FROM    TO      WHY\n" +
			"10.0.0.1   shop/10.0.0.1   node1   node2   zone=a has 2 of ServiceGroup default, zone=b has 0\n\n" +
			"NODE    IPV4    IPV6\nnode1   2 → 1   0\nnode2   0 → 1   0\n": spread,
		"ADDRESS    SERVICES        FROM    TO      WHY\n" +
			"10.0.0.1   shop/10.0.0.1   node1   node2   node1 has 3, node2 has 1\n\n" +
			"NODE    IPV4    IPV6\nnode1   3 → 2   0\nnode2   1 → 2   0\n": balance(3, 1),
		"Nothing to move: no ServiceGroup prefers other nodes for an address, and no node has two addresses more than " +
			"another one that may take one of them.\n\n" +
			"NODE    IPV4   IPV6\nnode1   2      0\nnode2   1      0\n": balance(2, 1),
	} {
		if got := textOf(t, PlanRebalance(clusterWith(inputs))); got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
	}
}

// managed is a cluster whose manager does what an annotation asks for, unless it is deaf.
type managed struct {
	inputs placement.Inputs
	api    client.Client
	isDeaf bool
	// asked is what was asked for, one after the other.
	asked []string
}

func newManaged(t *testing.T, inputs placement.Inputs) *managed {
	t.Helper()
	m := &managed{inputs: inputs}
	builder := clientfake.NewClientBuilder().WithScheme(must(NewScheme())(t))
	for i := range inputs.Nodes {
		builder.WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: inputs.Nodes[i].Name, Annotations: map[string]string{"other": "stays"},
		}})
	}
	m.api = interceptor.NewClient(builder.Build(), interceptor.Funcs{
		Patch: func(
			ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, options ...client.PatchOption,
		) error {
			if err := c.Patch(ctx, obj, patch, options...); err != nil {
				return err
			}
			m.place(obj.(*corev1.Node))
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			announcements, isAnnouncements := list.(*v1.AnnouncementList)
			if !isAnnouncements {
				return c.List(ctx, list, options...)
			}
			for i := range m.inputs.Nodes {
				a := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: m.inputs.Nodes[i].Name}}
				for _, e := range m.inputs.Entries {
					if e.Node == a.Spec.NodeName {
						a.Spec.Addresses = append(a.Spec.Addresses, e.Spec)
						a.Status.Addresses = append(a.Status.Addresses, v1.AddressStatus{Address: e.Spec.Address, State: e.ReportedState})
					}
				}
				announcements.Items = append(announcements.Items, a)
			}
			return nil
		},
	})
	return m
}

// place does what the manager and the agents do when a Node has changed.
func (m *managed) place(node *corev1.Node) {
	address := node.Annotations[v1.AnnotationHandover]
	m.asked = append(m.asked, node.Name+" "+address)
	if m.isDeaf {
		return
	}
	i := slices.IndexFunc(m.inputs.Nodes, func(n placement.Node) bool { return n.Name == node.Name })
	m.inputs.Nodes[i].AddressToHandOver, _ = netip.ParseAddr(address)
	result, _ := placement.Predict(m.inputs)
	m.inputs.Entries, m.inputs.SharedEntries = placement.AssumeRealised(m.inputs, &result)
}

func (m *managed) read(ctx context.Context) (*Cluster, error) {
	var nodes corev1.NodeList
	err := m.api.List(ctx, &nodes)
	return &Cluster{Objects: &Objects{Nodes: nodes.Items}, PlacementInputs: m.inputs}, err
}

// Each node is asked for one address at a time, and for none any more as soon as another node has it.
func TestRebalance(t *testing.T) {
	m := newManaged(t, balance(4, 0))
	var out bytes.Buffer
	if _, err := Rebalance(t.Context(), m.api, "purelb-system", m.read, time.Minute, &out); err != nil {
		t.Fatal(err)
	}
	want := "1 of 2: 10.0.0.1 of shop/10.0.0.1 leaves node1, for node2: node1 has 4, node2 has 0\n" +
		"1 of 2: 10.0.0.1 is on node2\n" +
		"2 of 2: 10.0.0.2 of shop/10.0.0.2 leaves node1, for node2: node1 has 3, node2 has 1\n" +
		"2 of 2: 10.0.0.2 is on node2\n2 addresses moved\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
	if want := []string{"node1 10.0.0.1", "node1 ", "node1 10.0.0.2", "node1 "}; !slices.Equal(m.asked, want) {
		t.Errorf("asked for %q, not %q", m.asked, want)
	}
	m.checkNobodyAsks(t)
	out.Reset()
	if _, err := Rebalance(t.Context(), m.api, "purelb-system", m.read, time.Minute, &out); err != nil ||
		out.String() != "0 addresses moved\n" {
		t.Errorf("again: %v, %s", err, out.String())
	}
}

// It comes to an end also where one node gets new addresses all the time.
func TestRebalanceIsBounded(t *testing.T) {
	m := newManaged(t, balance(4, 0))
	last := byte(100)
	read := func(ctx context.Context) (*Cluster, error) {
		for range 2 {
			last++
			hold(&m.inputs, netip.AddrFrom4([4]byte{10, 0, 0, last}), "node1")
		}
		return m.read(ctx)
	}
	var out bytes.Buffer
	if _, err := Rebalance(t.Context(), m.api, "purelb-system", read, time.Minute, &out); err != nil ||
		!strings.HasSuffix(out.String(), "\n3 addresses moved\n") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// checkNobodyAsks looks that the annotations are as before.
func (m *managed) checkNobodyAsks(t *testing.T) {
	t.Helper()
	for _, n := range must(m.read(t.Context()))(t).Nodes {
		if len(n.Annotations) != 1 || n.Annotations["other"] != "stays" {
			t.Errorf("annotations of %s are %v", n.Name, n.Annotations)
		}
	}
}

// Nothing is moved, and nobody is asked any more afterwards, where something is in the way.
func TestRebalanceEnds(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(*managed)
		cancel  time.Duration // when the user ends it
		wantErr string
	}{
		"an older manager": {func(m *managed) { m.isDeaf = true }, time.Hour, "node1 still has 10.0.0.1, or no other node"},
		"the user ends it": {func(m *managed) { m.isDeaf = true }, time.Second, "node1 still has 10.0.0.1, or no other node"},
		"an address on its way": {func(m *managed) {
			m.inputs.Addresses = append(m.inputs.Addresses, placement.Address{
				Addr: netip.MustParseAddr("10.0.0.9"), PoolType: v1.PoolTypeLocal,
			})
		}, time.Hour, "nothing is moved, since 1 address on the way to a node"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newManaged(t, balance(4, 0))
				row.change(m)
				ctx, cancel := context.WithTimeout(t.Context(), row.cancel)
				defer cancel()
				var out bytes.Buffer
				_, err := Rebalance(ctx, m.api, "purelb-system", m.read, time.Minute, &out)
				if err == nil || !strings.Contains(err.Error(), row.wantErr) {
					t.Errorf("error is %v", err)
				}
				m.checkNobodyAsks(t)
			})
		})
	}
	m := newManaged(t, balance(4, 0))
	asked := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2"}}
	patch := client.RawPatch(
		"application/merge-patch+json", []byte(`{"metadata":{"annotations":{"purelb.io/handover":"1.2.3.4"}}}`),
	)
	if err := m.api.Patch(t.Context(), asked, patch); err != nil {
		t.Fatal(err)
	}
	if _, err := Rebalance(t.Context(), m.api, "purelb-system", m.read, time.Minute, &bytes.Buffer{}); err == nil ||
		!strings.Contains(err.Error(), "node node2 is asked to hand over 1.2.3.4 already") || len(m.asked) != 1 {
		t.Errorf("while somebody else asks: %v, %q", err, m.asked)
	}
	forgetful := func(context.Context) (*Cluster, error) {
		c := clusterWith(balance(4, 0))
		c.Unread = []Unread{{kindLeases, "no"}}
		return c, nil
	}
	if _, err := Rebalance(t.Context(), m.api, "purelb-system", forgetful, time.Minute, &bytes.Buffer{}); err == nil ||
		err.Error() != "nothing is moved, since Leases cannot be read" {
		t.Errorf("without Leases: %v", err)
	}
}
