package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestCommon checks where a Virtual address is asked for while it changes between
// all nodes and some.
func TestCommon(t *testing.T) {
	addr := netip.MustParseAddr("172.16.0.1")
	for _, row := range []struct {
		name    string
		nodes   string
		apart   string // the nodes whose agents know nothing common
		serves  string // the nodes with endpoints; all without
		entries []string
		common  int64            // the epoch of the entry that is common now, 0 for none
		made    map[string]int64 // up to which revision nodes have made what is common
		want    string
	}{
		{name: "on all nodes", nodes: "a b", want: "common"},
		{name: "on none", nodes: "a:excluded b:noagent", want: ""},
		{name: "on some", nodes: "a b", serves: "a", want: "a"},
		{name: "an agent of an earlier version", nodes: "a b", apart: "b", want: "b common"},
		{name: "one on a node that is excluded", nodes: "a b:excluded", apart: "b", want: "common"},
		{name: "it had it by itself", nodes: "a b", entries: []string{"a 0 Virtual Announced"}, want: "a common"},
		{name: "it has seen more, but not this", nodes: "a b", entries: []string{"a 0 Virtual Announced"}, common: 7, made: map[string]int64{"a": 6}, want: "a common"},
		{name: "it has it in common", nodes: "a b", entries: []string{"a 0 Virtual Announced"}, common: 7, made: map[string]int64{"a": 7}, want: "common"},
		{name: "not every node has it", nodes: "a b", entries: []string{"a 0 Virtual", "b 0 Virtual"}, common: 7, made: map[string]int64{"a": 9}, want: "b common"},
		{name: "on all, then on some", nodes: "a b", serves: "a", common: 7, want: "a common"},
		{name: "one has yet to see it", nodes: "a b", serves: "a b", common: 7, entries: []string{"a 0 Virtual observed", "b 0 Virtual"}, want: "a b common"},
		{name: "one that is dead need not", nodes: "a b:expired", serves: "a b", common: 7, entries: []string{"a 0 Virtual observed", "b 0 Virtual"}, want: "a b"},
		{name: "those that are to have it have seen it", nodes: "a b c", serves: "a b", common: 7,
			entries: []string{"a 0 Virtual observed", "b 0 Virtual observed"}, want: "a b"},
	} {
		t.Run(row.name, func(t *testing.T) {
			facts := placement.Facts{
				Nodes:     nodes(t, row.nodes),
				Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/b"}}},
			}
			for i := range facts.Nodes {
				n := &facts.Nodes[i]
				n.CommonRevision, n.Apart = row.made[n.Name], strings.Contains(row.apart, n.Name)
			}
			if row.serves != "" {
				facts.Addresses[0].Only = map[string]bool{}
				for _, name := range strings.Fields(row.serves) {
					facts.Addresses[0].Only[name] = true
				}
			}
			for _, s := range row.entries {
				facts.Entries = append(facts.Entries, entry(t, addr, s))
			}
			if row.common > 0 {
				facts.Common = []placement.CommonEntry{{Agent: "default", Addr: addr, Spec: v1.AnnouncedAddress{Address: addr.String(), Epoch: row.common}}}
			}
			result := placement.Place(facts)
			var got []string
			for name, entries := range result.Entries {
				for range entries {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			for range result.Common["default"] {
				got = append(got, "common")
			}
			if diff := cmp.Diff(row.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("asked for by (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReportSpread checks that many nodes do not report at once.
func TestReportSpread(t *testing.T) {
	for nodes, want := range map[int]int32{0: 0, 49: 0, 50: 1, 1000: 20, 20_000: 60} {
		got := placement.Revise("default", nodes, 0, []v1.AnnouncedAddress{{Address: "172.16.0.1"}}, nil)["default"].ReportSpreadSeconds
		if got != want {
			t.Errorf("%d nodes spread their reports over %d s, want %d", nodes, got, want)
		}
	}
}

// TestRevise checks what is written of what is common, and with which revision.
func TestRevise(t *testing.T) {
	entry := func(i int, epoch int64) v1.AnnouncedAddress {
		return v1.AnnouncedAddress{Address: fmt.Sprintf("172.16.0.%d", i), PrefixLength: 32, Epoch: epoch}
	}
	spec := func(revision int64, entries ...v1.AnnouncedAddress) v1.CommonAnnouncementSpec {
		return v1.CommonAnnouncementSpec{LBNodeAgent: "default", Revision: revision, Addresses: entries}
	}
	shared := func(epoch int64) v1.AnnouncedAddress {
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
		{"as it is", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0)}, specs{"default": spec(4, entry(2, 4), entry(1, 3))}, specs{}},
		{"one more", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0)}, specs{"default": spec(4, entry(1, 3))}, specs{"default": spec(5, entry(1, 3), entry(2, 5))}},
		{"one fewer", []v1.AnnouncedAddress{entry(2, 0)}, specs{"default": spec(4, entry(1, 3), entry(2, 4))}, specs{"default": spec(5, entry(2, 4))}},
		{"none left", nil, specs{"default": spec(4, entry(1, 3))}, specs{"default": spec(5)}},
		{"another Service", []v1.AnnouncedAddress{shared(0)}, specs{"default": spec(4, entry(1, 3))}, specs{"default": spec(5, shared(3))}},
		{"another mask", []v1.AnnouncedAddress{shorter(0)}, specs{"default": spec(4, entry(1, 3))}, specs{"default": spec(5, shorter(5))}},
		{"the highest revision counts", []v1.AnnouncedAddress{entry(1, 0), entry(2, 0), entry(3, 0)},
			specs{"default": spec(4, entry(1, 3)), "default-x": spec(9, entry(2, 9))}, specs{"default": spec(10, entry(1, 3), entry(3, 10))}},
		{"a further one is not needed any more", []v1.AnnouncedAddress{entry(1, 0)},
			specs{"default": spec(4, entry(1, 3)), "default-x": spec(9, entry(2, 9))}, specs{"default-x": spec(10)}},
		{"an empty one stays as it is", []v1.AnnouncedAddress{entry(1, 0)}, specs{"default": spec(4, entry(1, 3)), "default-x": spec(9)}, specs{}},
		{"more than fit into one", many, nil, specs{"default": spec(1, many[:25]...), "default-1a0b7516": spec(2, last)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, placement.Revise("default", 3, placement.Highest(row.are), row.wanted, row.are), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("to be written (-want +got):\n%s", diff)
			}
		})
	}
}
