package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestRollingReboot cordons and uncordons each of three nodes in turn. A cordoned node keeps no address, an
// uncordoned one gets none back, and no address moves without a cordon: the last node ends up with none.
func TestRollingReboot(t *testing.T) {
	in := placement.Inputs{Nodes: nodes(t, "a b c")}
	for i := range 12 {
		in.Addresses = append(in.Addresses, placement.Address{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Group: "g", PoolType: v1.PoolTypeLocal,
			Services: []string{fmt.Sprint("a/", i)},
		})
	}
	settle := func() map[netip.Addr]string {
		t.Helper()
		result, isSettled := placement.Predict(in)
		if !isSettled || len(result.Unplaced) > 0 {
			t.Fatalf("settled: %t, unplaced: %v", isSettled, result.Unplaced)
		}
		holders := map[netip.Addr]string{}
		for _, a := range in.Addresses {
			holders[a.Addr] = strings.Join(result.NodesOf(&in, a.Addr), " ")
		}
		in.Entries, _ = placement.AssumeRealised(in, &result)
		return holders
	}
	before := settle()
	for i := range in.Nodes {
		name := in.Nodes[i].Name
		in.Nodes[i].HandsOverAsCordoned = true
		drained := settle()
		for addr, holder := range drained {
			if holder == name || before[addr] != name && holder != before[addr] {
				t.Errorf("%s is cordoned: %s goes from %s to %s", name, addr, before[addr], holder)
			}
		}
		in.Nodes[i].HandsOverAsCordoned = false
		after := settle()
		for addr, holder := range after {
			if holder != drained[addr] {
				t.Errorf("%s is uncordoned: %s goes from %s to %s", name, addr, drained[addr], holder)
			}
		}
		before = after
	}
	for addr, holder := range before {
		if holder == "c" {
			t.Errorf("%s is on the node that was cordoned last", addr)
		}
	}
}

// TestCordonExplained asks why a cordoned node does not have an address, and why it keeps one.
func TestCordonExplained(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct{ name, nodes, want string }{
		{"another may have it", "a:cordoned b", "is unschedulable, and its LBNodeAgent has spec.onUnschedulable: HandOver"},
		{"no other may", "a:cordoned b:cordoned", ""},
	} {
		in := placement.Inputs{
			Nodes:     nodes(t, row.nodes),
			Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}}},
			Entries:   []placement.Entry{entry(t, addr, "a 1 Announced")},
		}
		verdict, _ := placement.ExplainAddress(in, addr)
		i := slices.IndexFunc(verdict.Nodes, func(n placement.NodeVerdict) bool { return n.Node == "a" })
		if got := verdict.Nodes[i].Why; got != row.want {
			t.Errorf("%s: %q, not %q", row.name, got, row.want)
		}
		if move, moves := placement.Place(in).Moves[addr]; moves != (row.want != "") ||
			moves && move.Message != "a "+row.want {
			t.Errorf("%s: %+v", row.name, move)
		}
	}
}

// TestHandoverToCordoned asks the only node that is not cordoned for its address: it goes to no cordoned node,
// from which it would come back.
func TestHandoverToCordoned(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	in := placement.Inputs{
		Nodes:     nodes(t, "a b:cordoned"),
		Addresses: []placement.Address{{Addr: addr, PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}}},
		Entries:   []placement.Entry{entry(t, addr, "a 1 Announced")},
	}
	in.Nodes[0].AddressToHandOver = addr
	if got := show(placement.Place(in)); got != "a 1 Probe" {
		t.Error(got)
	}
}
