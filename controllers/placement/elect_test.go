package placement_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// TestShares gives the second of two addresses to the node that has none, whichever ranks
// higher for it.
func TestShares(t *testing.T) {
	for i := range 40 {
		facts, _ := onLink(t, "a b", "a 1 Announced")
		second := netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})
		facts.Addresses = append(
			facts.Addresses, placement.Address{Addr: second, Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/c"}},
		)
		result := placement.Place(facts)
		if len(result.Entries["a"]) != 1 || len(result.Entries["b"]) != 1 {
			t.Errorf("%s beside 10.0.0.1 of a: %s", second, show(result))
		}
	}
}

// TestEqualShares gives no node more new addresses than its share, however many there are.
func TestEqualShares(t *testing.T) {
	for _, ns := range []string{"a b", "a b c", "a b c d e"} {
		inputs := placement.Inputs{Nodes: nodes(t, ns)}
		for i := range 40 {
			inputs.Addresses = append(
				inputs.Addresses,
				placement.Address{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), PoolType: v1.PoolTypeLocal},
			)
			share := (len(inputs.Addresses) + len(inputs.Nodes) - 1) / len(inputs.Nodes)
			for name, entries := range placement.Place(inputs).Entries {
				if len(entries) > share {
					t.Errorf("node %s of %s has %d of %d addresses", name, ns, len(entries), len(inputs.Addresses))
				}
			}
		}
	}
}

// TestHashBelowShare gives an address to the node that ranks highest for it, as if there were no other
// address, while that node has less than its share.
func TestHashBelowShare(t *testing.T) {
	won := map[string]int{}
	for i := range 40 {
		local := func(last byte) placement.Address {
			return placement.Address{
				Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}), Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/b"},
			}
		}
		address := local(byte(10 + i))
		winner := func(inputs placement.Inputs) string {
			result := placement.Place(inputs)
			return strings.Join(result.NodesOf(&inputs, address.Addr), " ")
		}
		alone := winner(placement.Inputs{Nodes: nodes(t, "a b"), Addresses: []placement.Address{address}})
		inputs, _ := onLink(t, "a b", "a 1 Announced")
		// of which each node has three in the end
		inputs.Addresses = append(inputs.Addresses, address, local(100), local(101), local(102), local(103))
		if got := winner(inputs); got != alone {
			t.Errorf("%s goes to %s, and alone to %s", address.Addr, got, alone)
		}
		won[alone]++
	}
	if len(won) != 2 {
		t.Errorf("all addresses go to one node: %v", won)
	}
}

// TestNotChosen says why the address does not go to any of the other nodes.
func TestNotChosen(t *testing.T) {
	for _, row := range []struct {
		nodes   string
		entries []string
		want    string // with the nodes that are eligible, but for the chosen one, as *
	}{
		{
			"a b:excluded c:notready", nil,
			"b is labelled node.kubernetes.io/exclude-from-external-load-balancers, c is not Ready",
		},
		{"a:shutdown b", []string{"a 1 Announced"}, "a is shutting down"},
		{"a:shutdown b c", []string{"a 1 Announced"}, "a is shutting down, * has 0 already, or ranks lower for this one"},
	} {
		facts, addr := onLink(t, row.nodes, row.entries...)
		move := placement.Place(facts).Moves[addr]
		other := map[string]string{"b": "c", "c": "b"}[move.To]
		parts := strings.Split(strings.ReplaceAll(row.want, "*", other), ", ")
		for _, part := range parts {
			if !strings.Contains(move.NotChosen, part) {
				t.Errorf("%s: %q does not say %q", row.nodes, move.NotChosen, part)
			}
		}
	}
}

// TestSilentHolder has an address whose holder's agent does not renew its Lease, or ought to hand it over.
func TestSilentHolder(t *testing.T) {
	for _, row := range []struct {
		nodes    string
		want     string
		wantDown bool
	}{
		{"a:expired", "a", false},
		{"a:expired b:excluded", "a", false},
		{"a:expired,notready b:excluded", "a", true},
		{"a:expired b", "", false},
		{"a:excluded b:excluded", "", false},
		{"a:leaving b:excluded", "", false},
	} {
		facts, addr := onLink(t, row.nodes, "a 3 Announced")
		got := placement.Place(facts).Unplaced[addr]
		if got.SilentHolder != row.want || got.IsHolderDown != row.wantDown {
			t.Errorf("%s: %+v", row.nodes, got)
		}
	}
}

// TestSilentVirtual has Virtual addresses, on all nodes and on those with an endpoint, while agents do not renew their
// Leases.
func TestSilentVirtual(t *testing.T) {
	const silent = " has an agent that does not renew its Lease"
	shared, served := netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("172.16.0.2")
	for _, row := range []struct {
		nodes, wantShared, wantServed string
	}{
		{"a b c", "", ""},
		{"a:expired b c", "", ""},
		{"a:expired b:expired c", "", "a" + silent + "; b" + silent},
		{"a:expired,notready b:expired c", "", "a" + silent + "; b" + silent},
		{"a:expired,notready b:expired,notready c", "", "a" + silent + "; b" + silent + "; down"},
		{"a:expired b:expired c:expired", "a" + silent + "; b" + silent + "; c" + silent, "a" + silent + "; b" + silent},
		{"a:expired b:excluded c:expired", "a" + silent + "; c" + silent, "a" + silent},
		{"a:excluded b:excluded c:excluded", "", ""},
	} {
		result := placement.Place(placement.Inputs{Nodes: nodes(t, row.nodes), Addresses: []placement.Address{
			{Addr: shared, PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/b"}},
			{
				Addr: served, PoolType: v1.PoolTypeRemote, Mask: 32, Services: []string{"a/c"},
				ServingNodes: map[string]bool{"a": true, "b": true},
			},
		}})
		for addr, want := range map[netip.Addr]string{shared: row.wantShared, served: row.wantServed} {
			why := result.Silent[addr]
			got := why.Message
			if why.IsHolderDown {
				got += "; down"
			}
			if got != want || why.AreAllSilent != (want != "") {
				t.Errorf("%s: of %s: %+v, want %q", row.nodes, addr, why, want)
			}
		}
	}
}

// TestManyReasons names eight nodes and counts the others.
func TestManyReasons(t *testing.T) {
	for n, want := range map[int]string{
		8: "h is labelled node.kubernetes.io/exclude-from-external-load-balancers", 9: "and 1 more", 11: "and 3 more",
	} {
		var ns []string
		for i := range n {
			ns = append(ns, string(rune('a'+i))+":excluded")
		}
		facts, addr := onLink(t, strings.Join(ns, " "))
		why := placement.Place(facts).Unplaced[addr].Message
		if !strings.HasSuffix(why, want) || strings.Count(why, "is labelled") != 8 ||
			n == 8 && strings.Contains(why, "more") {
			t.Errorf("%d nodes: %q, want %q at the end", n, why, want)
		}
	}
}

// TestPolicyLocalIsNoReason speaks of pods only where a node lacks nothing but one.
func TestPolicyLocalIsNoReason(t *testing.T) {
	for nodes, want := range map[string]bool{"a:excluded b:excluded": false, "a:excluded b": true} {
		facts, addr := onLink(t, nodes)
		facts.Addresses[0].ServingNodes = map[string]bool{"a": true}
		why := placement.Place(facts).Unplaced[addr].Message
		if why == "" || strings.Contains(why, "policy Local needs a pod") != want {
			t.Errorf("%s: %q", nodes, why)
		}
	}
}

// TestChosenInterface takes an interface with a carrier, then the longest subnet, then the
// first name, in whatever order the node reports them.
func TestChosenInterface(t *testing.T) {
	iface := func(name, subnet string, isDown bool) placement.Interface {
		return placement.Interface{
			Name: name, MAC: "mac-" + name, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, IsDown: isDown,
		}
	}
	for _, row := range []struct {
		name       string
		interfaces []placement.Interface
		want       string
	}{
		{
			"a carrier before a longer subnet",
			[]placement.Interface{
				iface("eth0", "10.0.0.200/25", true), iface("eth1", "10.0.0.201/24", false), iface("eth2", "10.0.0.202/25", true),
			},
			"eth1",
		},
		{
			"the longest subnet",
			[]placement.Interface{
				iface("eth0", "10.0.0.200/24", false), iface("eth1", "10.0.0.201/16", false), iface("eth2", "10.0.0.100/25", false),
			},
			"eth2",
		},
		{
			"the first name",
			[]placement.Interface{
				iface("eth1", "10.0.0.200/24", false), iface("eth0", "10.0.0.201/24", false), iface("eth2", "10.0.0.202/24", false),
			},
			"eth0",
		},
	} {
		for range row.interfaces {
			row.interfaces = append(row.interfaces[1:], row.interfaces[0])
			facts, _ := onLink(t, "a")
			facts.Nodes[0].Interfaces = slices.Clone(row.interfaces)
			if entries := placement.Place(facts).Entries["a"]; len(entries) != 1 || string(entries[0].Interface) != row.want {
				t.Errorf("%s of %v: %v", row.name, row.interfaces, entries)
			}
			slices.Reverse(facts.Nodes[0].Interfaces)
			if entries := placement.Place(facts).Entries["a"]; len(entries) != 1 || string(entries[0].Interface) != row.want {
				t.Errorf("%s of %v: %v", row.name, facts.Nodes[0].Interfaces, entries)
			}
		}
	}
}

// TestDeletedNodeAmongOthers keeps the clocks of the nodes after one that is deleted.
func TestDeletedNodeAmongOthers(t *testing.T) {
	var clocks placement.Clocks
	begun := time.Unix(1000, 0)
	for _, after := range []time.Duration{0, time.Hour} {
		facts, _ := onLink(t, "a:gone b:silent")
		facts.Nodes[1].Liveness = placement.Fresh
		clocks.FillDurations(&facts, begun.Add(after))
		if got := facts.Nodes[1].AreFactsOverdue; got != (after > 0) {
			t.Errorf("after %s: overdue %t", after, got)
		}
	}
}

// TestFaultNodeClock counts for how long a Node is NotReady from when this manager first sees it
// so, because the Node's own times are of another clock. This test shows the row "its clock is wrong"
// of docs/trust.md.
func TestFaultNodeClock(t *testing.T) {
	var clocks placement.Clocks
	begun := time.Unix(1000, 0)
	for _, row := range []struct {
		at      time.Duration
		isReady bool
		isLong  bool
		next    time.Duration // when to look again
	}{
		{at: 0, next: 10 * time.Second},
		{at: 9999 * time.Millisecond, next: time.Millisecond},
		{at: 10 * time.Second, isLong: true},
		{at: time.Hour, isLong: true},
		{at: time.Hour + time.Second, isReady: true},
		{at: 2 * time.Hour, next: 10 * time.Second},
	} {
		facts, _ := onLink(t, "a")
		facts.Nodes[0].IsNotReady = !row.isReady
		clocks.FillDurations(&facts, begun.Add(row.at))
		if got, next := facts.Nodes[0].IsNotReadyForLong, nextDeadline(facts); got != row.isLong || next != row.next {
			t.Errorf("after %s: NotReady for long %t, next in %s", row.at, got, next)
		}
	}
}

// TestAwaitedFacts has nodes without an Announcement, of which some are to run an agent.
func TestAwaitedFacts(t *testing.T) {
	const patience = 30 * time.Second
	for _, row := range []struct {
		name             string
		node             string
		after            time.Duration
		awaited, overdue bool
	}{
		{"at first", "a:silent", 0, true, false},
		{"just before the end", "a:silent", patience - time.Millisecond, true, false},
		{"at the end", "a:silent", patience, false, true},
		{"it runs no agent", "a:silent,noagent", 0, false, false},
		{"it is NotReady", "a:silent,notready", 0, false, false},
	} {
		var clocks placement.Clocks
		for _, at := range []time.Duration{0, row.after} {
			facts, _ := onLink(t, row.node)
			n := &facts.Nodes[0]
			n.LacksAnnouncement = true
			clocks.FillDurations(&facts, time.Unix(1000, 0).Add(at))
			if at == row.after && (n.AreFactsAwaited != row.awaited || n.AreFactsOverdue != row.overdue) {
				t.Errorf("%s: awaited %t, overdue %t", row.name, n.AreFactsAwaited, n.AreFactsOverdue)
			}
		}
	}
}

// TestWaitForAwaitedNode waits with an address that no node reports, while a node whose
// agent is alive has yet to report: the node may hold the address.
func TestWaitForAwaitedNode(t *testing.T) {
	for _, row := range []struct {
		nodes     string
		lingering string
		want      string // the reason why the address is nowhere, or empty if it is placed
	}{
		{"a:awaited b", "", v1.ReasonWaitingForFacts},
		{"a:awaited,expired b", "", ""},
		{"a:awaited b", "b", v1.ReasonAnnouncing},
	} {
		facts, addr := onLink(t, row.nodes)
		if row.lingering != "" {
			facts.LingeringReports[addr] = []placement.LingeringReport{{Node: row.lingering}}
		}
		result := placement.Place(facts)
		if got := result.Unplaced[addr].Reason; row.want != "" && got != row.want || row.want == "" && show(result) == "" {
			t.Errorf("%s, lingering on %q: %q, %s", row.nodes, row.lingering, got, show(result))
		}
	}
}
