package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// withSuccessors are the inputs of held addresses whose successors are named.
func withSuccessors(t *testing.T, ns string, count int) placement.Inputs {
	t.Helper()
	inputs := held(t, ns, count)
	result := placement.Place(inputs)
	realise(&inputs, &result)
	return inputs
}

// node is node a, b, c, … as the others reach it.
func reached(name string) v1.StandbyNode {
	return v1.StandbyNode{
		NodeName: name, Addresses: []string{fmt.Sprintf("10.0.0.%d", 200+name[0]-'a')}, MACs: []string{"mac-" + name},
	}
}

func TestPlanStandbys(t *testing.T) {
	inputs := held(t, "a b c d e f", 1)
	inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "c", Epoch: 2}, {NodeName: "b", Epoch: 3}}
	address := v1.StandbyAddress{
		Address: "10.0.0.1", ServiceGroup: "g", Epoch: 1, Successors: inputs.Entries[0].Spec.Successors,
	}
	plans := placement.PlanStandbys(inputs)
	if len(plans) != 2 {
		t.Fatalf("%+v", plans)
	}
	for i, watcher := range []string{"b", "c"} {
		plan, other := plans[i], map[string]string{"b": "c", "c": "b"}[watcher]
		witnesses := plan.Standby.Witnesses
		plan.Standby.Witnesses = nil
		want := placement.StandbyPlan{Watcher: watcher, LinkKey: "a/eth0/eth0", Standby: v1.Standby{
			Watched: reached("a"), Interface: "eth0", OtherSuccessors: []v1.StandbyNode{reached(other)},
			Addresses: []v1.StandbyAddress{address},
		}}
		if diff := cmp.Diff(want, plan); diff != "" {
			t.Errorf("%s (-want +got):\n%s", watcher, diff)
		}
		var names []string
		for _, w := range witnesses {
			names = append(names, w.NodeName)
			if diff := cmp.Diff(reached(w.NodeName), w); diff != "" {
				t.Errorf("a witness of %s (-want +got):\n%s", watcher, diff)
			}
		}
		if len(names) != 3 || slices.Contains(names, "a") || slices.Contains(names, watcher) || !slices.IsSorted(names) {
			t.Errorf("the witnesses of %s are %v", watcher, names)
		}
	}
}

// TestPlanStandbysOfSome plans for the address that a node has, and not for the one before it, which nobody has.
func TestPlanStandbysOfSome(t *testing.T) {
	inputs := held(t, "a b c d", 2)
	inputs.Entries = inputs.Entries[1:] // nobody has the first
	inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "c", Epoch: 2}}
	plans := placement.PlanStandbys(inputs)
	if len(plans) != 1 || plans[0].Watcher != "c" || plans[0].Standby.Addresses[0].Address != "10.0.0.2" {
		t.Errorf("%+v", plans)
	}
}

func TestPlanStandbysRows(t *testing.T) {
	for _, row := range []struct {
		name   string
		nodes  string
		change func(*placement.Inputs)
		want   string // watchers, each with its interface and witnesses
	}{
		{"two nodes have no witness", "a b", nil, "b eth0"},
		{"three", "a b c", nil, "b eth0 c, c eth0 b"},
		{"the gate is off", "a b c", func(f *placement.Inputs) { f.NamesSuccessors = false }, ""},
		{"nothing is held", "a b c", func(f *placement.Inputs) {
			f.Entries[0].ReportedState, f.Entries[0].Spec.Successors = v1.StatePending, nil
		}, ""},
		{"the holder's interface is unknown", "a b c", func(f *placement.Inputs) { f.Nodes[0].Interfaces = nil }, ""},
		{"a successor is gone", "a b c", func(f *placement.Inputs) { f.Nodes[1].IsDeleted = true }, "c eth0"},
		{"the other successor is gone", "a b c", func(f *placement.Inputs) { f.Nodes[2].IsDeleted = true }, "b eth0"},
		{"a successor is unknown", "a b c", func(f *placement.Inputs) { f.Nodes = slices.Delete(f.Nodes, 1, 2) }, "c eth0"},
		{
			"the other successor is unknown", "a b c", func(f *placement.Inputs) { f.Nodes = slices.Delete(f.Nodes, 2, 3) },
			"b eth0",
		},
		{"a successor runs no agent", "a b c", func(f *placement.Inputs) { f.Nodes[1].LBNodeAgent = "" }, "c eth0 b"},
		{
			"a successor has left the subnet", "a b c", func(f *placement.Inputs) { f.Nodes[1].Interfaces[0].Subnets = nil },
			"c eth0",
		},
		{
			"a witness is dead", "a b c", func(f *placement.Inputs) { f.Nodes[2].Liveness = placement.Expired },
			"b eth0, c eth0 b",
		},
		{"a witness is NotReady", "a b c", func(f *placement.Inputs) { f.Nodes[2].IsNotReady = true }, "b eth0, c eth0 b"},
		{"a witness shuts down", "a b c", func(f *placement.Inputs) { f.Nodes[2].IsShuttingDown = true }, "b eth0, c eth0 b"},
		{"a witness has a route to the subnet only", "a b c", func(f *placement.Inputs) {
			f.Nodes[2].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
		}, "b eth0, c eth0 b"},
		{"a witness with an address of its own behind a route", "a b c", func(f *placement.Inputs) {
			f.Nodes[2].Interfaces[0].Subnets = []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.0.202/32"),
			}
		}, "b eth0 c, c eth0 b"},
		{
			"the address is being handed over", "a b c", func(f *placement.Inputs) { f.Entries[0].Spec.HandingOver = true },
			"b eth0 c, c eth0 b",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := withSuccessors(t, row.nodes, 1)
			if row.change != nil {
				row.change(&inputs)
			}
			var got []string
			for _, plan := range placement.PlanStandbys(inputs) {
				words := []string{plan.Watcher, string(plan.Standby.Interface)}
				for _, w := range plan.Standby.Witnesses {
					words = append(words, w.NodeName)
				}
				got = append(got, strings.Join(words, " "))
			}
			if strings.Join(got, ", ") != row.want {
				t.Errorf("%s, want %s", strings.Join(got, ", "), row.want)
			}
		})
	}
}

// A plan allocates no more memory in a larger cluster: nothing is done with each node for each pair of a watcher and
// the node that it watches.
func TestPlansOfLargeClusters(t *testing.T) {
	allocationsPerPlan := func(nodes int) float64 {
		inputs := settledWithSuccessors(t, nodes, nodes)
		plans := 0
		allocations := testing.AllocsPerRun(1, func() { plans = len(placement.PlanStandbys(inputs)) })
		return allocations / float64(plans)
	}
	if few, many := allocationsPerPlan(20), allocationsPerPlan(200); many > 2*few {
		t.Errorf("%.0f allocations for each plan with 20 nodes, and %.0f with 200", few, many)
	}
}

// A node that watches several has other witnesses for each, and always the same.
func TestWitnessesAreSpread(t *testing.T) {
	inputs := held(t, "a b c d e f g h i", 6)
	for i := range inputs.Entries {
		inputs.Entries[i].Node = string(rune('a' + i))
		inputs.Entries[i].Spec.Successors = []v1.Successor{{NodeName: "i", Epoch: 2}}
	}
	got := map[string]string{}
	for _, plan := range placement.PlanStandbys(inputs) {
		names := ""
		for _, w := range plan.Standby.Witnesses {
			names += w.NodeName
		}
		got[plan.Standby.Watched.NodeName] = names
	}
	want := map[string]string{"a": "bfg", "b": "deg", "c": "abd", "d": "efh", "e": "bch", "f": "abg"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// witnessesOf are the names of the witnesses of the one watcher there is.
func witnessesOf(t *testing.T, inputs placement.Inputs) string {
	t.Helper()
	plans := placement.PlanStandbys(inputs)
	if len(plans) != 1 {
		t.Fatalf("%d plans", len(plans))
	}
	names := ""
	for _, w := range plans[0].Standby.Witnesses {
		names += w.NodeName
	}
	return names
}

// storeStandbys stores what PlanStandbys decides.
func storeStandbys(inputs *placement.Inputs) {
	stored := map[string][]placement.StoredObject{}
	for _, plan := range placement.PlanStandbys(*inputs) {
		for name, spec := range plan.Announcements(inputs.Standbys[plan.Watcher]) {
			object := placement.StoredObject{Name: name}
			for _, w := range spec.Standby.Witnesses {
				object.Witnesses = append(object.Witnesses, w.NodeName)
			}
			for _, a := range spec.Standby.Addresses {
				object.Addresses = append(object.Addresses, a.Address)
			}
			stored[plan.Watcher] = append(stored[plan.Watcher], object)
		}
	}
	inputs.Standbys = stored
}

// TestWitnessesRemain has something happen to a witness that stored objects name.
func TestWitnessesRemain(t *testing.T) {
	for _, row := range []struct {
		name    string
		change  func(*placement.Node)
		remains bool
	}{
		{"its agent restarts", func(n *placement.Node) { n.Liveness = placement.Expired }, true},
		{"its agent is late", func(n *placement.Node) { n.Liveness = placement.Late }, true},
		{"its Lease has been expired for long", func(n *placement.Node) {
			n.Liveness, n.IsExpiredForLong = placement.Expired, true
		}, false},
		{"it is NotReady", func(n *placement.Node) { n.IsNotReady = true }, true},
		{"it has been NotReady for long", func(n *placement.Node) { n.IsNotReady, n.IsNotReadyForLong = true, true }, false},
		{"it shuts down", func(n *placement.Node) { n.IsShuttingDown = true }, false},
		{"it is deleted", func(n *placement.Node) { n.IsDeleted = true }, false},
		{"it has left the link", func(n *placement.Node) { n.Interfaces = nil }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := held(t, "a b c d e f", 1)
			inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}}
			before := witnessesOf(t, inputs)
			storeStandbys(&inputs)
			witness := &inputs.Nodes[before[0]-'a']
			healthy := *witness
			row.change(witness)
			during := witnessesOf(t, inputs)
			if len(before) != 3 || len(during) != 3 || (during == before) != row.remains {
				t.Errorf("the witnesses were %s, and are %s", before, during)
			}
			storeStandbys(&inputs)
			*witness = healthy
			if after := witnessesOf(t, inputs); after != during {
				t.Errorf("the witnesses were %s and %s, and are %s when %s is back", before, during, after, witness.Name)
			}
			inputs.Standbys = nil
			if row.change(witness); witness.Liveness == placement.Expired && witnessesOf(t, inputs) == before {
				t.Errorf("%s becomes a witness", witness.Name)
			}
		})
	}
}

// A plan of several objects has each of its witnesses in all of them. One that is gone is replaced all the same.
func TestWitnessesOfSeveralObjects(t *testing.T) {
	inputs := held(t, "a b c d e f", 1)
	inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}}
	before := witnessesOf(t, inputs)
	storeStandbys(&inputs)
	further := inputs.Standbys["b"][0]
	further.Name += "-1"
	inputs.Standbys["b"] = append(inputs.Standbys["b"], further)
	if after := witnessesOf(t, inputs); after != before {
		t.Errorf("the witnesses were %s, and are %s", before, after)
	}
	inputs.Nodes[before[0]-'a'].IsDeleted = true
	after := witnessesOf(t, inputs)
	if len(after) != 3 || !strings.Contains(after, before[1:2]) || !strings.Contains(after, before[2:]) {
		t.Errorf("the witnesses were %s, and are %s when %s is gone", before, after, before[:1])
	}
}

// TestWitnessesOfDomains spreads the witnesses of an address over the values of the label over which its group spreads
// addresses: of those in one rack none is left when that is cut off.
func TestWitnessesOfDomains(t *testing.T) {
	for _, row := range []struct {
		racks, current string
		want           []int // witnesses in rack 1, 2 and 3
		remain         int   // how many of the current ones
	}{
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/2 h=rack/3", "", []int{1, 1, 1}, 0},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/1 h=rack/3", "", []int{2, 0, 1}, 0},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/1 h=rack/1", "", []int{3, 0, 0}, 0},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/2 h=rack/3", "cd", []int{1, 1, 1}, 1},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/2 h=rack/3", "cdf", []int{1, 1, 1}, 1},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/2 h=rack/3", "dgh", []int{1, 1, 1}, 3},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/1 h=rack/3", "cdf", []int{2, 0, 1}, 2},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/1 h=rack/3", "cdh", []int{2, 0, 1}, 3},
		{"c=rack/1 d=rack/1 e=rack/3 f=rack/3 g=rack/1 h=rack/3", "ceh", []int{1, 0, 2}, 3},
		{"c=rack/1 d=rack/1 e=rack/1 f=rack/1 g=rack/1 h=rack/1", "cdf", []int{3, 0, 0}, 3},
	} {
		inputs := held(t, "a b c d e f g h", 1)
		inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}}
		labelNodes(&inputs, row.racks)
		preferring(t, &inputs, "", "rack")
		if row.current != "" {
			storeStandbys(&inputs)
			inputs.Standbys["b"][0].Witnesses = strings.Split(row.current, "")
		}
		names, got := witnessesOf(t, inputs), []int{0, 0, 0}
		for _, n := range names {
			for rack := range got {
				if inputs.Nodes[n-'a'].Labels["rack"] == fmt.Sprint(rack+1) {
					got[rack]++
				}
			}
		}
		remain := 0
		for _, n := range row.current {
			remain += strings.Count(names, string(n))
		}
		if !slices.Equal(got, row.want) || remain != row.remain {
			t.Errorf("%s, before %q: the witnesses are %s, by racks %v, want %v; want %d to remain",
				row.racks, row.current, names, got, row.want, row.remain)
		}
		storeStandbys(&inputs)
		if again := witnessesOf(t, inputs); again != names {
			t.Errorf("%s: the witnesses are %s, and then %s", row.racks, names, again)
		}
	}
}

// A node that could be a witness and comes later replaces none. Objects of other plans say nothing of this one.
func TestWitnessesOfStoredPlan(t *testing.T) {
	inputs := held(t, "a b c d e f g h i j k l m n", 1)
	inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}}
	all, best := inputs.Nodes, witnessesOf(t, inputs)
	inputs.Nodes = slices.DeleteFunc(slices.Clone(all), func(n placement.Node) bool { return n.Name == best[:1] })
	before := witnessesOf(t, inputs)
	storeStandbys(&inputs)
	inputs.Nodes = all
	if after := witnessesOf(t, inputs); after != before || after == best {
		t.Errorf("the witnesses were %s, and are %s; without those %s", before, after, best)
	}
	inputs.Standbys["b"][0].Name = "b-standby-0123456789abcdef"
	if other := witnessesOf(t, inputs); other != best {
		t.Errorf("beside another plan's object the witnesses are %s, want %s", other, best)
	}
}

// The watchers of node a ask the address of its Node object first, and not a lower one that other software gave to
// the node for a while.
func TestFloatingAddressIsNotWatched(t *testing.T) {
	inputs := withSuccessors(t, "a b c", 1)
	a := &inputs.Nodes[0]
	a.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.200")}
	a.Interfaces[0].Subnets = append(a.Interfaces[0].Subnets, netip.MustParsePrefix("10.0.0.5/32"))
	plans := placement.PlanStandbys(inputs)
	if len(plans) != 2 {
		t.Fatalf("%d plans, want one for each watcher", len(plans))
	}
	for _, plan := range plans {
		if diff := cmp.Diff([]string{"10.0.0.200", "10.0.0.5"}, plan.Standby.Watched.Addresses); diff != "" {
			t.Errorf("%s (-want +got):\n%s", plan.Watcher, diff)
		}
	}
}

// TestPlanStandbysOfSeveral tells of an address although nothing can be told of those before it.
func TestPlanStandbysOfSeveral(t *testing.T) {
	inputs := held(t, "a b", 3)
	unreached := netip.MustParseAddr("10.9.9.1")
	inputs.Addresses[1].Addr, inputs.Entries[1].Addr, inputs.Entries[1].Spec.Address = unreached, unreached,
		unreached.String()
	for i := 1; i < 3; i++ { // the first has no successors, and of the second the holder's interface is unknown
		inputs.Entries[i].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}}
	}
	plans := placement.PlanStandbys(inputs)
	if len(plans) != 1 || len(plans[0].Standby.Addresses) != 1 || plans[0].Standby.Addresses[0].Address != "10.0.0.3" {
		t.Errorf("%+v", plans)
	}
}

// TestManyOthers tells a watcher of at most eight other successors, by name.
func TestManyOthers(t *testing.T) {
	others := strings.Fields("c d e f g h i j k l")
	inputs := held(t, "a b "+strings.Join(others, " "), len(others))
	for i, other := range others {
		inputs.Entries[i].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: other, Epoch: 3}}
	}
	inputs.Nodes = slices.DeleteFunc(inputs.Nodes, func(n placement.Node) bool { return n.Name == "d" })
	var want, got []v1.StandbyNode
	for _, name := range strings.Fields("c e f g h i j k") {
		want = append(want, reached(name))
	}
	for _, plan := range placement.PlanStandbys(inputs) {
		if plan.Watcher == "b" {
			got = plan.Standby.OtherSuccessors
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestStandbyAnnouncements distributes 250 addresses over three objects, whose names suit
// nodes with the longest names.
func TestStandbyAnnouncements(t *testing.T) {
	plan := placement.StandbyPlan{Watcher: strings.Repeat("node.", 50), LinkKey: "a/eth0/eth0"}
	for i := range 250 {
		plan.Standby.Addresses = append(plan.Standby.Addresses, v1.StandbyAddress{Address: fmt.Sprintf("10.0.0.%d", i)})
	}
	named := plan.Announcements(nil)
	count := map[string]int{}
	for name, spec := range named {
		if len(name) > 253 {
			t.Errorf("%s has %d characters", name, len(name))
		}
		for _, a := range spec.Standby.Addresses {
			count[a.Address]++
		}
	}
	if len(named) != 3 || len(count) != 250 || slices.Max(slices.Collect(maps.Values(count))) != 1 {
		t.Errorf("%d objects, %d addresses", len(named), len(count))
	}
	plan.LinkKey = "b/eth0/eth0"
	for name := range plan.Announcements(nil) {
		if named[name] != nil {
			t.Errorf("two watched nodes have %s", name)
		}
	}
}

// TestStandbyNames checks the names of the objects: another version of the manager finds them by these.
func TestStandbyNames(t *testing.T) {
	plan := placement.StandbyPlan{
		Watcher: "node1", LinkKey: "a/eth0/eth0",
		Standby: v1.Standby{Addresses: make([]v1.StandbyAddress, 2*v1.MaxAddressesPerAnnouncement+50)},
	}
	got := map[string]int{}
	for name, spec := range plan.Announcements(nil) {
		got[name] = len(spec.Standby.Addresses)
	}
	want := map[string]int{
		"node1-standby-5425c00d9c8a89bf": 100, "node1-standby-5425c00d9c8a89bf-1": 100,
		"node1-standby-5425c00d9c8a89bf-2": 50,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
