package placement_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// localAddresses are addresses of one Local pool.
func localAddresses(n int) []placement.Address {
	var out []placement.Address
	addr := netip.MustParseAddr("10.0.0.10")
	for range n {
		out = append(
			out,
			placement.Address{
				Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Mask: 24, Subnet: netip.MustParsePrefix("10.0.0.0/24"),
				Services: []string{"a/b"},
			},
		)
		addr = addr.Next()
	}
	return out
}

// settledInputs returns inputs with the entries of a settled placement, as agents report them.
func settledInputs(t *testing.T, in placement.Inputs) placement.Inputs {
	t.Helper()
	result, isSettled := placement.Settle(in)
	if !isSettled {
		t.Fatal("not settled")
	}
	in.Entries = nil
	for node, entries := range result.Entries {
		for _, e := range entries {
			in.Entries = append(
				in.Entries,
				placement.Entry{
					Node: node, Addr: e.Addr, Spec: e.AnnouncedAddress, IsObserved: true, ReportedState: v1.StateAnnounced,
				},
			)
		}
	}
	return in
}

func TestSettleMovesOnlyWhatANodeLoses(t *testing.T) {
	for _, test := range []struct {
		name string
		lose func(*placement.Node)
		kind placement.MoveKind
	}{
		{"excluded", func(n *placement.Node) { n.IsExcluded = true }, placement.Handover},
		{
			"dead", func(n *placement.Node) { n.Liveness, n.IsNotReady, n.IsNotReadyForLong = placement.Expired, true, true },
			placement.Failover,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := settledInputs(t, placement.Inputs{Nodes: nodes(t, "a b c"), Addresses: localAddresses(9)})
			before := placement.Place(in)
			if len(before.Moves) > 0 {
				t.Fatalf("a settled placement moves %v", before.Moves)
			}
			test.lose(&in.Nodes[0])
			if moves := placement.Place(in).Moves; len(moves) != 3 {
				t.Fatalf("%d addresses move, not 3: %v", len(moves), moves)
			} else {
				for _, m := range moves {
					if m.Kind != test.kind {
						t.Errorf("%s, not %s", m.Kind, test.kind)
					}
				}
			}
			after, isSettled := placement.Settle(in)
			if !isSettled {
				t.Fatal("not settled")
			}
			for _, a := range in.Addresses {
				was, is := before.NodesOf(&in, a.Addr), after.NodesOf(&in, a.Addr)
				if slices.Contains(was, "a") == slices.Equal(was, is) || slices.Contains(is, "a") || len(is) != 1 {
					t.Errorf("%s was on %v and is on %v", a.Addr, was, is)
				}
			}
		})
	}
}

func TestSettleVirtual(t *testing.T) {
	address := placement.Address{
		Addr: netip.MustParseAddr("192.0.2.1"), Group: "r", PoolType: v1.PoolTypeRemote, Mask: 32,
		Subnet: netip.MustParsePrefix("192.0.2.0/24"),
	}
	restricted := address
	restricted.Addr, restricted.ServingNodes = netip.MustParseAddr("192.0.2.2"), map[string]bool{"b": true}
	in := placement.Inputs{Nodes: nodes(t, "a b c:excluded"), Addresses: []placement.Address{address, restricted}}
	result, isSettled := placement.Settle(in)
	if got := result.NodesOf(&in, address.Addr); !isSettled || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%s is on %v", address.Addr, got)
	}
	if got := result.NodesOf(&in, restricted.Addr); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%s is on %v", restricted.Addr, got)
	}
}

// TestRealise stores what a result asks for.
func TestRealise(t *testing.T) {
	addr, shared := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("172.16.0.1")
	local, virtual := v1.AnnouncedAddress{Address: addr.String(), Epoch: 3}, v1.AnnouncedAddress{Address: shared.String()}
	result := placement.Result{
		Entries:       map[string][]placement.Placed{"a": {{addr, local}}, "b": {{addr, local}}},
		SharedEntries: map[string][]placement.Placed{"default": {{shared, virtual}}},
	}
	inputs := placement.Inputs{
		Nodes:   nodes(t, "a b:expired"),
		Entries: []placement.Entry{{Node: "b", Addr: addr, Spec: local, ReportedState: v1.StateWaiting}},
	}
	entries, sharedEntries := placement.Realise(inputs, &result)
	wantEntries := []placement.Entry{
		{Node: "a", Addr: addr, Spec: local, ReportedState: v1.StateAnnounced, IsObserved: true},
		{Node: "b", Addr: addr, Spec: local, ReportedState: v1.StateWaiting},
	}
	if diff := cmp.Diff(wantEntries, entries, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	wantShared := []placement.SharedEntry{{LBNodeAgent: "default", Addr: shared, Spec: virtual}}
	if diff := cmp.Diff(wantShared, sharedEntries, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("shared entries (-want +got):\n%s", diff)
	}
}

func TestExplainAddress(t *testing.T) {
	in := settledInputs(t, placement.Inputs{Nodes: nodes(t, "a"), Addresses: localAddresses(1)})
	// Of other addresses node b has one Local one, and is to have two.
	for a, words := range map[string]string{
		"10.0.0.11": "b 1 Announced", "10.0.0.12": "b 1 Pending", "10.0.0.13": "b 1", "10.0.0.14": "b 0 Virtual Announced",
	} {
		in.Entries = append(in.Entries, entry(t, netip.MustParseAddr(a), words))
	}
	in.Nodes = nodes(t, "a b c:excluded d:notready e:expired")
	verdict, found := placement.ExplainAddress(in, in.Addresses[0].Addr)
	if !found || verdict.Type != v1.AnnounceLocal || verdict.Holder != "a" {
		t.Fatalf("%+v, %t", verdict, found)
	}
	want := []placement.NodeVerdict{
		{Node: "a", IsEligible: true},
		{Node: "b", IsEligible: true, Why: "could take it; the holder keeps it while it is eligible (this node has 1)"},
		{Node: "c", Why: "is labelled node.kubernetes.io/exclude-from-external-load-balancers"},
		{Node: "d", IsEligible: true, Why: "could take it, but is not Ready"},
		{Node: "e", Why: "has an agent that does not renew its Lease"},
	}
	if !slices.Equal(verdict.Nodes, want) {
		t.Errorf("got  %+v\nwant %+v", verdict.Nodes, want)
	}
	if _, found := placement.ExplainAddress(in, netip.MustParseAddr("10.0.0.99")); found {
		t.Error("an address of no Service is found")
	}
}
