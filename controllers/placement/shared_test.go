package placement_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestSharedEntries checks which entries a Virtual address has while it changes between all
// nodes and some.
func TestSharedEntries(t *testing.T) {
	addr := netip.MustParseAddr("172.16.0.1")
	for _, row := range []struct {
		name    string
		nodes   string
		serves  string // the nodes with endpoints; all without
		entries []string
		shared  int64            // the epoch of the shared entry now, 0 for none
		made    map[string]int64 // up to which revision nodes have realised the shared entries
		want    string
	}{
		{name: "on all nodes", nodes: "a b", want: "shared"},
		{name: "on none", nodes: "a:excluded b:noagent", want: ""},
		{name: "on some", nodes: "a b", serves: "a", want: "a"},
		{name: "a node has an own entry", nodes: "a b", entries: []string{"a 0 Virtual Announced"}, want: "a shared"},
		{
			name: "the node has realised others, but not this", nodes: "a b", entries: []string{"a 0 Virtual Announced"},
			shared: 7, made: map[string]int64{"a": 6}, want: "a shared",
		},
		{
			name: "the node has realised the shared entry", nodes: "a b", entries: []string{"a 0 Virtual Announced"}, shared: 7,
			made: map[string]int64{"a": 7}, want: "shared",
		},
		{
			name: "not every node has it", nodes: "a b", entries: []string{"a 0 Virtual", "b 0 Virtual"}, shared: 7,
			made: map[string]int64{"a": 9}, want: "b shared",
		},
		{name: "on all, then on some", nodes: "a b", serves: "a", shared: 7, want: "a shared"},
		{
			name: "one has yet to see it", nodes: "a b", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual"}, want: "a b shared",
		},
		{
			name: "one that does not see it in time holds up no other", nodes: "a b", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual waiting"}, want: "a b",
		},
		{name: "a node with an own entry is unknown", nodes: "a", entries: []string{"b 0 Virtual Announced"}, want: "shared"},
		{
			name: "one that is dead need not", nodes: "a b:expired", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual"}, want: "a b",
		},
		{name: "a dead one that is to have it has no entry of its own yet", nodes: "a b:expired c", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed"}, want: "a b shared"},
		{name: "a dead one that is to have it has an entry of its own", nodes: "a b:expired c", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual"}, want: "a b"},
		{name: "those that are to have it have seen it", nodes: "a b c", serves: "a b", shared: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual observed"}, want: "a b"},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := placement.Inputs{
				Nodes:     nodes(t, row.nodes),
				Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/b"}}},
			}
			for i := range inputs.Nodes {
				n := &inputs.Nodes[i]
				n.SharedRevision = row.made[n.Name]
			}
			if row.serves != "" {
				inputs.Addresses[0].ServingNodes = map[string]bool{}
				for _, name := range strings.Fields(row.serves) {
					inputs.Addresses[0].ServingNodes[name] = true
				}
			}
			for _, s := range row.entries {
				inputs.Entries = append(inputs.Entries, entry(t, addr, s))
			}
			if row.shared > 0 {
				inputs.SharedEntries = []placement.SharedEntry{
					{LBNodeAgent: "default", Addr: addr, Spec: v1.AnnouncedAddress{Address: addr.String(), Epoch: row.shared}},
				}
			}
			result := placement.Place(inputs)
			var got []string
			for name, entries := range result.Entries {
				for range entries {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			for range result.SharedEntries["default"] {
				got = append(got, "shared")
			}
			if diff := cmp.Diff(row.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("asked for by (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHealthPort gives each node an entry of its own for an address whose traffic a port for health checks
// steers.
func TestHealthPort(t *testing.T) {
	inputs := placement.Inputs{
		Nodes: nodes(t, "a b"),
		Addresses: []placement.Address{
			{Addr: netip.MustParseAddr("172.16.0.1"), PoolType: v1.PoolTypeRemote, Mask: 32, HealthPort: 30123},
		},
	}
	result := placement.Place(inputs)
	for _, name := range []string{"a", "b"} {
		if entries := result.Entries[name]; len(entries) != 1 || entries[0].HealthCheckNodePort != 30123 ||
			len(result.SharedEntries["default"]) > 0 {
			t.Errorf("%s has %+v, all have %+v", name, entries, result.SharedEntries)
		}
	}
}

// TestReportSpread checks that many nodes do not report at once.
func TestReportSpread(t *testing.T) {
	for nodes, want := range map[int]int32{0: 0, 49: 0, 50: 1, 1000: 20, 20_000: 60} {
		got := placement.ReviseShared("default", nodes, []v1.AnnouncedAddress{{Address: "172.16.0.1"}},
			nil)["default"].ReportSpreadSeconds
		if got != want {
			t.Errorf("%d nodes spread their reports over %d s, want %d", nodes, got, want)
		}
	}
}

// TestReviseShared checks which CommonAnnouncements are written, and with which revision.
func TestReviseShared(t *testing.T) {
	entry := func(i int, epoch int64) v1.AnnouncedAddress {
		return v1.AnnouncedAddress{Address: fmt.Sprintf("172.16.0.%d", i), PrefixLength: 32, Epoch: epoch}
	}
	spec := func(revision int64, entries ...v1.AnnouncedAddress) v1.CommonAnnouncementSpec {
		return v1.CommonAnnouncementSpec{
			LBNodeAgent: "default", Revision: revision, AddressCount: int32(len(entries)), Addresses: entries,
		}
	}
	ofTwoServices := func(epoch int64) v1.AnnouncedAddress {
		e := entry(1, epoch)
		e.Services = []string{"a/b", "a/c"}
		return e
	}
	shorter := func(epoch int64) v1.AnnouncedAddress {
		e := entry(1, epoch)
		e.PrefixLength = 24
		return e
	}
	var many []v1.AnnouncedAddress
	for i := range 26 {
		many = append(many, entry(i, 1))
	}
	last := many[25]
	last.Epoch = 2
	type specs = map[string]v1.CommonAnnouncementSpec
	for _, row := range []struct {
		name   string
		wanted []v1.AnnouncedAddress
		are    specs
		want   specs
	}{
		{"nothing", nil, nil, specs{}},
		{"the first", []v1.AnnouncedAddress{entry(1, 0)}, nil, specs{"default": spec(1, entry(1, 1))}},
		{
			"as it is", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0)}, specs{"default": spec(4, entry(2, 4), entry(1, 3))},
			specs{},
		},
		{
			"one more", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0)}, specs{"default": spec(4, entry(1, 3))},
			specs{"default": spec(5, entry(1, 3), entry(2, 5))},
		},
		{
			"one fewer", []v1.AnnouncedAddress{entry(2, 0)}, specs{"default": spec(4, entry(1, 3), entry(2, 4))},
			specs{"default": spec(5, entry(2, 4))},
		},
		{"none left", nil, specs{"default": spec(4, entry(1, 3))}, specs{"default": spec(5)}},
		{
			"another Service", []v1.AnnouncedAddress{ofTwoServices(0)}, specs{"default": spec(4, entry(1, 3))},
			specs{"default": spec(5, ofTwoServices(3))},
		},
		{
			"another mask", []v1.AnnouncedAddress{shorter(0)}, specs{"default": spec(4, entry(1, 3))},
			specs{"default": spec(5, shorter(5))},
		},
		{"the highest revision counts", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0), entry(3, 0)},
			specs{"default": spec(4, entry(1, 3)), "default-x": spec(9, entry(2, 9))}, specs{
				"default": spec(10, entry(1, 3), entry(3, 10)),
			}},
		{"a further one is not needed any more", []v1.AnnouncedAddress{entry(1, 0)},
			specs{"default": spec(4, entry(1, 3)), "default-x": spec(9, entry(2, 9))}, specs{"default-x": spec(10)}},
		{
			"an empty one stays as it is", []v1.AnnouncedAddress{entry(1, 0)},
			specs{"default": spec(4, entry(1, 3)), "default-x": spec(9)}, specs{},
		},
		{"more than fit into one", many, nil, specs{"default": spec(1, many[:25]...), "default-1a0b7516": spec(2, last)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			revised, revision := placement.ReviseShared("default", 3, row.wanted, row.are), placement.HighestRevision(row.are)
			for _, name := range slices.Sorted(maps.Keys(revised)) {
				revision++
				revised[name] = placement.WithRevision(revised[name], revision)
			}
			if diff := cmp.Diff(row.want, revised, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("to be written (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExcludedNodesGetNothingNew has a node that is excluded, and whose routes are being withdrawn: it
// keeps the addresses with policy Local that it has, and gets no others.
func TestExcludedNodesGetNothingNew(t *testing.T) {
	addr := netip.MustParseAddr("198.51.100.1")
	shared := placement.SharedEntry{LBNodeAgent: "default", Addr: addr, Spec: v1.AnnouncedAddress{
		Address: addr.String(), PrefixLength: 32, Interface: "kube-lb0", Type: v1.AnnounceVirtual, ServiceGroup: "g",
		Epoch: 1,
	}}
	for _, row := range []struct {
		name, nodes string
		entries     []string
		shared      []placement.SharedEntry
		want        string // with shared entries
		wantOwn     string // the nodes with entries of their own
	}{
		{"it has none", "a b:excluded,withdrawing", nil, nil, "a Virtual", "a"},
		{
			"it has one", "a b:excluded,withdrawing", []string{"a 1 Announced Virtual", "b 1 Announced Virtual"}, nil,
			"a Virtual, b Virtual", "a b",
		},
		{
			"its routes are withdrawn", "a b:excluded", []string{"a 1 Announced Virtual", "b 1 Announced Virtual"}, nil,
			"a Virtual", "a",
		},
		{
			"all nodes had it", "a:shares b:excluded,withdrawing,shares", nil, []placement.SharedEntry{shared},
			"a Virtual, b Virtual", "a b",
		},
		{
			"all other nodes had it", "a:shares b:excluded,withdrawing", nil, []placement.SharedEntry{shared}, "a Virtual", "a",
		},
		{
			"all nodes of another LBNodeAgent had it", "a b:excluded,withdrawing,shares", nil,
			[]placement.SharedEntry{{LBNodeAgent: "other", Addr: addr, Spec: shared.Spec}}, "a Virtual", "a",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := placement.Inputs{Nodes: nodes(t, row.nodes), SharedEntries: row.shared, Addresses: []placement.Address{{
				Addr: addr, Group: "g", PoolType: v1.PoolTypeRemote, Mask: 32, ServingNodes: map[string]bool{"a": true, "b": true},
			}}}
			for _, e := range row.entries {
				in.Entries = append(in.Entries, entry(t, addr, e))
			}
			result := placement.Place(in)
			if got := show(result); got != row.want {
				t.Errorf("%s, not %s", got, row.want)
			}
			maps.DeleteFunc(result.Entries, func(_ string, entries []placement.Placed) bool { return len(entries) == 0 })
			if got := strings.Join(slices.Sorted(maps.Keys(result.Entries)), " "); got != row.wantOwn {
				t.Errorf("%s have entries of their own, not %s", got, row.wantOwn)
			}
		})
	}
}

// TestSameEntryComparesEachField checks that no field is left out, also of those that are to come.
func TestSameEntryComparesEachField(t *testing.T) {
	kind := reflect.TypeFor[v1.AnnouncedAddress]()
	for i := range kind.NumField() {
		var changed v1.AnnouncedAddress
		switch f := reflect.ValueOf(&changed).Elem().Field(i); f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		default:
			f.SetInt(1)
		}
		if placement.SameEntry(changed, v1.AnnouncedAddress{}) {
			t.Errorf("%s does not count", kind.Field(i).Name)
		}
	}
}
