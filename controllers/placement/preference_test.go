package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// preferring makes the addresses of inputs prefer nodes with labels, by "fast=10 big=5", and spreads
// them over the values of a label.
func preferring(t *testing.T, inputs *placement.Inputs, weights, topologyKey string) {
	t.Helper()
	p := &placement.Preference{TopologyKey: topologyKey}
	for _, word := range strings.Fields(weights) {
		label, weight, _ := strings.Cut(word, "=")
		nodes := placement.PreferredNodes{Selector: labels.SelectorFromSet(labels.Set{label: ""})}
		if _, err := fmt.Sscan(weight, &nodes.Weight); err != nil {
			t.Fatal(err)
		}
		p.Nodes = append(p.Nodes, nodes)
	}
	for i := range inputs.Addresses {
		inputs.Addresses[i].Group, inputs.Addresses[i].Preference = "g", p
	}
}

// labelNodes gives nodes labels: "a=fast,big,zone/1 b=zone/2".
func labelNodes(inputs *placement.Inputs, text string) {
	for _, word := range strings.Fields(text) {
		name, all, _ := strings.Cut(word, "=")
		set := map[string]string{}
		for _, l := range strings.Split(all, ",") {
			key, value, _ := strings.Cut(l, "/")
			set[key] = value
		}
		i := slices.IndexFunc(inputs.Nodes, func(n placement.Node) bool { return n.Name == name })
		inputs.Nodes[i].Labels = set
	}
}

// TestPreferredNodes elects nodes for an address beside those that nodes have.
func TestPreferredNodes(t *testing.T) {
	for _, row := range []struct {
		name, nodes, labels, weights, topologyKey string
		held                                      string // a node for each address that has one
		want                                      string // the nodes of which one is elected
	}{
		{"none preferred", "a b c", "", "", "", "", "a b c"},
		{"one preferred", "a b c", "b=fast", "fast=1", "", "", "b"},
		{"one preferred, that has the most", "a b c", "b=fast", "fast=1", "", "b b b b b", "b"},
		{"two preferred", "a b c", "b=fast c=fast", "fast=1", "", "", "b c"},
		{"two preferred, of which one has its share", "a b c", "b=fast c=fast", "fast=1", "", "b b b", "c"},
		{"the greater weight", "a b c", "b=fast c=big", "fast=10 big=9", "", "", "b"},
		{"the greater sum", "a b c", "b=fast c=big,near", "fast=10 big=9 near=2", "", "", "c"},
		{"one selected twice", "a b", "b=fast", "fast=1 fast=1", "", "", "b"},
		{"the preferred one is NotReady", "a b:notready", "b=fast", "fast=1", "", "", "a"},
		{"the preferred one is excluded", "a b:excluded", "b=fast", "fast=1", "", "", "a"},
		{"the preferred one is not on the link", "a b:elsewhere", "b=fast", "fast=1", "", "", "a"},
		{"all are NotReady", "a:notready b:notready", "b=fast", "fast=1", "", "", "b"},
		{"nothing selects a node", "a b", "b=slow", "fast=1", "", "", "a b"},

		{"the other zone", "a b c", "a=zone/1 b=zone/1 c=zone/2", "", "zone", "a", "c"},
		{
			"the other zone, whose node has more of another group", "a b c", "a=zone/1 b=zone/1 c=zone/2", "", "zone",
			"a other:c other:c other:c", "c",
		},
		{"the zone with the fewest", "a b c", "a=zone/1 b=zone/2 c=zone/3", "", "zone", "a a b c c", "b"},
		{"zones with as many", "a b c", "a=zone/1 b=zone/1 c=zone/2", "", "zone", "a c", "b"},
		{"nodes without the label are one zone", "a b c", "a=zone/1", "", "zone", "b", "a"},
		{"and get as many", "a b c", "a=zone/1", "", "zone", "a", "b c"},
		{
			"the preferred node, though its zone has more", "a b c", "a=zone/1,fast b=zone/2 c=zone/3", "fast=1", "zone",
			"a a", "a",
		},
		{
			"of the preferred nodes, the other zone", "a b c", "a=zone/1,fast b=zone/2,fast c=zone/3", "fast=1", "zone",
			"a", "b",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			elected := map[string]bool{}
			for i := range 40 {
				inputs := placement.Inputs{Nodes: nodes(t, row.nodes)}
				use := func(a netip.Addr) {
					inputs.Addresses = append(inputs.Addresses, placement.Address{
						Addr: a, PoolType: v1.PoolTypeLocal, Services: []string{"a/b"},
					})
				}
				address := netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)})
				use(address)
				for k, word := range strings.Fields(row.held) {
					use(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + k)}))
					node := strings.TrimPrefix(word, "other:")
					inputs.Entries = append(inputs.Entries, entry(t, inputs.Addresses[1+k].Addr, node+" 1 Announced"))
				}
				labelNodes(&inputs, row.labels)
				preferring(t, &inputs, row.weights, row.topologyKey)
				for k, word := range strings.Fields(row.held) {
					if strings.HasPrefix(word, "other:") {
						inputs.Addresses[1+k].Group = "other"
					}
				}
				result := placement.Place(inputs)
				elected[result.Moves[address].To] = true
				for k, word := range strings.Fields(row.held) {
					holder := []string{strings.TrimPrefix(word, "other:")}
					if got := result.NodesOf(&inputs, inputs.Addresses[1+k].Addr); !slices.Equal(got, holder) {
						t.Errorf("%s moves from %s to %s", inputs.Addresses[1+k].Addr, holder, got)
					}
				}
			}
			want := map[string]bool{}
			for _, name := range strings.Fields(row.want) {
				want[name] = true
			}
			if diff := cmp.Diff(want, elected); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpreadOverDomains gives each zone as many of a group's addresses as any other, however many
// nodes it has, and each node of a zone its share.
func TestSpreadOverDomains(t *testing.T) {
	inputs := placement.Inputs{Nodes: nodes(t, "a b c d e f")}
	labelNodes(&inputs, "a=zone/1 b=zone/2 c=zone/2 d=zone/3 e=zone/3 f=zone/3")
	for i := range 30 {
		inputs.Addresses = append(inputs.Addresses, placement.Address{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), PoolType: v1.PoolTypeLocal,
		})
	}
	preferring(t, &inputs, "", "zone")
	result := placement.Place(inputs)
	has := func(names ...string) (n int) {
		for _, name := range names {
			n += len(result.Entries[name])
		}
		return n
	}
	if one, two, three := has("a"), has("b", "c"), has("d", "e", "f"); one != 10 || two != 10 || three != 10 {
		t.Errorf("the zones have %d, %d and %d addresses", one, two, three)
	}
	if has("b") != 5 || has("c") != 5 || has("d") > 5 || has("e") > 5 || has("f") > 5 {
		t.Errorf("nodes b to f have %d, %d, %d, %d and %d addresses", has("b"), has("c"), has("d"), has("e"), has("f"))
	}
}

// TestPreferenceMovesNothing has the holder of an address be one that nobody prefers any more.
func TestPreferenceMovesNothing(t *testing.T) {
	inputs, addr := onLink(t, "a b c", "a 1 Announced")
	labelNodes(&inputs, "a=zone/1 b=zone/2,fast c=zone/1")
	preferring(t, &inputs, "fast=100", "zone")
	result := placement.Place(inputs)
	if got := result.NodesOf(&inputs, addr); !slices.Equal(got, []string{"a"}) || len(result.Moves) > 0 {
		t.Errorf("on %v: %+v", got, result.Moves)
	}
	verdict, _ := placement.ExplainAddress(inputs, addr)
	const could = "could take it; the holder keeps it while it is eligible (this node has 0; "
	want := []placement.NodeVerdict{
		{Node: "a", IsEligible: true},
		{Node: "b", IsEligible: true, Why: could + "weight 100; zone=2 has 0 of ServiceGroup g)"},
		{Node: "c", IsEligible: true, Why: could + "weight 0; zone=1 has 1 of ServiceGroup g)"},
	}
	if diff := cmp.Diff(want, verdict.Nodes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	inputs.Nodes[0].AddressToHandOver = addr
	if move := placement.Place(inputs).Moves[addr]; move.To != "b" || move.NotChosen !=
		"a is annotated purelb.io/handover; c has weight 0, and b has 100" {
		t.Errorf("asked for: %+v", move)
	}
	inputs.Nodes[0].AddressToHandOver = netip.Addr{}
	preferring(t, &inputs, "", "zone")
	verdict, _ = placement.ExplainAddress(inputs, addr)
	if got, want := verdict.Nodes[1].Why, could+"zone=2 has 0 of ServiceGroup g)"; got != want {
		t.Errorf("without weights: %s, want %s", got, want)
	}
	inputs.Nodes[0].AddressToHandOver = addr
	inputs.Addresses = append(inputs.Addresses, inputs.Addresses[0])
	inputs.Addresses[1].Addr = netip.MustParseAddr("10.0.0.2")
	inputs.Entries = append(inputs.Entries, entry(t, inputs.Addresses[1].Addr, "c 1 Announced"))
	if move := placement.Place(inputs).Moves[addr]; move.To != "b" || move.NotChosen !=
		"a is annotated purelb.io/handover; c is where zone=1 has 1 of ServiceGroup g, and zone=2 has 0" {
		t.Errorf("asked for: %+v", move)
	}
}

// TestPreferenceOfVirtual puts a Virtual address on all nodes, whatever its group prefers.
func TestPreferenceOfVirtual(t *testing.T) {
	inputs := placement.Inputs{Nodes: nodes(t, "a:elsewhere b:elsewhere"), Addresses: localAddresses(1)}
	labelNodes(&inputs, "b=fast")
	preferring(t, &inputs, "fast=1", "zone")
	result := placement.Place(inputs)
	if got := result.NodesOf(&inputs, inputs.Addresses[0].Addr); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("on %v", got)
	}
}

// TestPreferredSuccessors names a node that is preferred as the first successor.
func TestPreferredSuccessors(t *testing.T) {
	for _, preferred := range []string{"b", "c", "d"} {
		inputs, _ := onLink(t, "a b c d", "a 1 Announced waiting observed")
		inputs.NamesSuccessors = true
		labelNodes(&inputs, preferred+"=fast")
		preferring(t, &inputs, "fast=1", "")
		successors := placement.Place(inputs).Entries["a"][0].Successors
		if len(successors) != 2 || successors[0].NodeName != preferred {
			t.Errorf("%v, not %s first", successors, preferred)
		}
	}
}

// Node c, which is preferred, is the first successor for all addresses of node a, also when the manager decides once
// more.
func TestPreferredSuccessorOfMany(t *testing.T) {
	inputs := held(t, "a b c d", 4)
	labelNodes(&inputs, "c=fast")
	preferring(t, &inputs, "fast=1", "")
	for round := range 3 {
		result := placement.Place(inputs)
		if got := len(result.Entries["a"]); got != 4 {
			t.Fatalf("round %d: node a has %d entries, want 4", round, got)
		}
		for _, e := range result.Entries["a"] {
			if len(e.Successors) != 2 || e.Successors[0].NodeName != "c" {
				t.Errorf("round %d: successors of %s are %v, want c first", round, e.Addr, e.Successors)
			}
		}
		realise(&inputs, &result)
	}
}

// TestPreferredWatchers prefers two of nine nodes: they are among the four that watch node a, and the first successors
// of its addresses, but for one that they may not take.
func TestPreferredWatchers(t *testing.T) {
	for _, preferred := range []string{"bc", "ef", "gj", "ij"} {
		inputs := held(t, "a b c d e f g h i j", 8)
		labelNodes(&inputs, preferred[:1]+"=fast "+preferred[1:]+"=fast")
		preferring(t, &inputs, "fast=1", "")
		inputs.Addresses[7].ServingNodes = map[string]bool{"a": true, "d": true, "h": true}
		result := placement.Place(inputs)
		watchers := map[string]bool{}
		for i, e := range result.Entries["a"] {
			for _, s := range e.Successors {
				watchers[s.NodeName] = true
			}
			if len(e.Successors) != 2 || i < 7 && !strings.Contains(preferred, e.Successors[0].NodeName) {
				t.Errorf("%s preferred: successors of %s are %v", preferred, e.Addr, e.Successors)
			}
		}
		if len(watchers) != 4 {
			t.Errorf("%s preferred: %v watch, want 4", preferred, watchers)
		}
	}
}

// TestPreferredNodeWatchesNotAll has a ServiceGroup prefer node0, while each of 29 other nodes has an address. node0
// watches 16 of these nodes because it is preferred, and one or two more by its hash, as any node does. That is so
// whether all addresses need successors at once, or half of them later.
func TestPreferredNodeWatchesNotAll(t *testing.T) {
	const count = 30
	inputs := placement.Inputs{NamesSuccessors: true}
	for i := range count {
		n := healthy("a")
		n.Name = fmt.Sprint("node", i)
		n.Interfaces[0].Subnets[0] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(200 + i)}), 24)
		inputs.Nodes = append(inputs.Nodes, n)
		if i == 0 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		inputs.Addresses = append(
			inputs.Addresses, placement.Address{Addr: addr, PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}},
		)
		e := entry(t, addr, "a 1 Announced observed")
		e.Node, e.UnchangedFor = n.Name, time.Minute
		inputs.Entries = append(inputs.Entries, e)
	}
	inputs.Nodes[0].Labels = map[string]string{"fast": ""}
	preferring(t, &inputs, "fast=1", "")
	for atFirst, want := range map[int]int{count / 2: 16 + 1, count - 1: 16 + 2} {
		in := inputs
		in.Addresses, in.Entries = inputs.Addresses[:atFirst], slices.Clone(inputs.Entries[:atFirst])
		result := placement.Place(in)
		realise(&in, &result)
		in.Addresses, in.Entries = inputs.Addresses, append(in.Entries, inputs.Entries[atFirst:]...)
		for round := range 2 {
			watched := 0
			result := placement.Place(in)
			for i := range in.Addresses {
				if strings.Contains(successorsOf(&result, in.Addresses[i].Addr), "node0 ") {
					watched++
				}
			}
			if watched != want {
				t.Errorf("%d at first, round %d: it watches %d nodes, want %d", atFirst, round, watched, want)
			}
			realise(&in, &result)
		}
	}
}

// TestSecondPreferredSuccessor prefers node e as well as node c, which is the first successor for all addresses of node
// a: the two become it for two addresses each, and no other node does.
func TestSecondPreferredSuccessor(t *testing.T) {
	inputs := held(t, "a b c d e", 4)
	labelNodes(&inputs, "c=fast")
	preferring(t, &inputs, "fast=1", "")
	for round, want := range []map[string]int{{"c": 4}, {"c": 4}, {"c": 2, "e": 2}, {"c": 2, "e": 2}} {
		if round == 2 {
			labelNodes(&inputs, "e=fast")
		}
		result := placement.Place(inputs)
		first := map[string]int{}
		for _, e := range result.Entries["a"] {
			first[e.Successors[0].NodeName]++
		}
		if !maps.Equal(first, want) {
			t.Errorf("round %d: %v, want %v", round, first, want)
		}
		realise(&inputs, &result)
	}
}

// TestEachSelectorIsParsed reports each selector that is none.
func TestEachSelectorIsParsed(t *testing.T) {
	bad := v1.PreferredNodes{NodeSelector: metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "fast", Operator: "Has"}},
	}}
	spec := v1.ServiceGroupSpec{PreferredNodes: []v1.PreferredNodes{bad, {Weight: 1}, bad}}
	preference, errs := placement.ParsePreference(&spec, field.NewPath("spec"))
	var fields []string
	for _, err := range errs {
		fields = append(fields, err.Field)
	}
	want := []string{"spec.preferredNodes[0].nodeSelector", "spec.preferredNodes[2].nodeSelector"}
	if !slices.Equal(fields, want) || len(preference.Nodes) != 1 {
		t.Errorf("%v, and %d selectors", errs, len(preference.Nodes))
	}
}

func TestParsePreference(t *testing.T) {
	selector := func(key string, operator metav1.LabelSelectorOperator) []v1.PreferredNodes {
		return []v1.PreferredNodes{{Weight: 3, NodeSelector: metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator}},
		}}}
	}
	const routed = "addresses of remote pools are Virtual: all nodes have them"
	for _, row := range []struct {
		name string
		spec v1.ServiceGroupSpec
		want string
	}{
		{"nothing", v1.ServiceGroupSpec{}, ""},
		{"a selector", v1.ServiceGroupSpec{PreferredNodes: selector("fast", "Exists")}, ""},
		{"a label", v1.ServiceGroupSpec{TopologyKey: "topology.kubernetes.io/zone"}, ""},
		{
			"no operator", v1.ServiceGroupSpec{PreferredNodes: selector("fast", "Has")},
			`spec.preferredNodes[0].nodeSelector: Invalid value: "Has" is not a valid label selector operator`,
		},
		{
			"no key", v1.ServiceGroupSpec{PreferredNodes: selector("f/a/s/t", "Exists")},
			"spec.preferredNodes[0].nodeSelector: ",
		},
		{"no label", v1.ServiceGroupSpec{TopologyKey: "zone="}, "spec.topologyKey: Invalid value: \"zone=\": must be " +
			"the name of a label, such as topology.kubernetes.io/zone"},
		{"of remote pools", v1.ServiceGroupSpec{Remote: &v1.RemotePools{}, PreferredNodes: selector("fast", "Exists")},
			"spec.preferredNodes: Forbidden: " + routed},
		{"spread, of remote pools", v1.ServiceGroupSpec{Remote: &v1.RemotePools{}, TopologyKey: "zone"},
			"spec.topologyKey: Forbidden: " + routed},
	} {
		t.Run(row.name, func(t *testing.T) {
			preference, errs := placement.ParsePreference(&row.spec, field.NewPath("spec"))
			switch {
			case row.want != "":
				if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), row.want) {
					t.Errorf("%v, not %s", errs, row.want)
				}
			case len(errs) > 0:
				t.Error(errs)
			case (preference == nil) != (row.name == "nothing"):
				t.Errorf("%+v", preference)
			}
		})
	}
}
