package placement_test

import (
	"net/netip"
	"slices"
	"strings"
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
	result, isSettled := placement.Predict(in)
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

func TestPredictMovesOnlyWhatANodeLoses(t *testing.T) {
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
			after, isSettled := placement.Predict(in)
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

// TestAskedHandover hands over the one address that a node is asked for, to the node that has the fewest,
// and leaves it there when nobody asks any more.
func TestAskedHandover(t *testing.T) {
	// All nine addresses are on a: b and c come later.
	in := settledInputs(t, placement.Inputs{Nodes: nodes(t, "a"), Addresses: localAddresses(9)})
	in.Nodes = nodes(t, "a b c")
	loads := func(result *placement.Result) (loads [3]int) {
		for _, a := range in.Addresses {
			for _, n := range result.NodesOf(&in, a.Addr) {
				loads[strings.Index("abc", n)]++
			}
		}
		return loads
	}
	want := [][3]int{{8, 0, 1}, {7, 1, 1}, {6, 1, 2}, {5, 2, 2}, {4, 2, 3}, {3, 3, 3}}
	for i, a := range in.Addresses[:6] {
		in.Nodes[0].AddressToHandOver = a.Addr
		first := placement.Place(in)
		m := first.Moves[a.Addr]
		if len(first.Moves) != 1 || m.Kind != placement.Handover || m.From != "a" ||
			!strings.Contains(m.Message, "a is annotated purelb.io/handover") {
			t.Fatalf("%s: %+v", a.Addr, first.Moves)
		}
		result, isSettled := placement.Predict(in)
		got := loads(&result)
		slices.Sort(got[1:]) // which of two equals it is decides the hash
		slices.Sort(want[i][1:])
		if !isSettled || got != want[i] {
			t.Fatalf("after %s: %v, not %v", a.Addr, got, want[i])
		}
		in.Entries, in.SharedEntries = placement.AssumeRealised(in, &result)
		in.Nodes[0].AddressToHandOver = netip.Addr{}
		if moves := placement.Place(in).Moves; len(moves) > 0 {
			t.Fatalf("when nobody asks any more: %+v", moves)
		}
	}
	// The node with the fewest gets it, also where another one ranks higher and has less than its share.
	for i := range 20 {
		few := placement.Inputs{Nodes: nodes(t, "a b c"), Addresses: localAddresses(26)[i : i+6]}
		for k, holder := range []string{"a", "a", "a", "b", "c", "c"} {
			few.Entries = append(few.Entries, entry(t, few.Addresses[k].Addr, holder+" 1 Announced observed"))
		}
		few.Nodes[0].AddressToHandOver = few.Addresses[0].Addr
		if m := placement.Place(few).Moves[few.Addresses[0].Addr]; m.To != "b" {
			t.Errorf("%s goes to %q", few.Addresses[0].Addr, m.To)
		}
	}
	// Who does not have the address does not take it; who is alone keeps it.
	a := in.Addresses[8].Addr
	in.Nodes[1].AddressToHandOver, in.Nodes[2].AddressToHandOver, in.Nodes[0].IsExcluded = a, a, true
	if result, _ := placement.Predict(in); !slices.Equal(result.NodesOf(&in, a), []string{"a"}) {
		t.Errorf("%s is on %v", a, result.NodesOf(&in, a))
	}
}

// TestPredictClaims predicts what a node's death leads to where nodes follow it: the first successor that may have the
// address claims it, and has it for good. Without one the manager gives it to a node.
func TestPredictClaims(t *testing.T) {
	for _, row := range []struct{ nodes, successors, want string }{
		{"a:expired b c d", "d b", "d"},
		{"a:expired b c d", "b d", "b"},
		{"a:expired b c d:expired", "d b", "b"},
		{"a:expired b c d:gone", "d b", "b"},
	} {
		in := placement.Inputs{Nodes: nodes(t, row.nodes), Addresses: localAddresses(1), NamesSuccessors: true}
		addr := in.Addresses[0].Addr
		e := entry(t, addr, "a 1 Announced observed")
		for i, name := range strings.Fields(row.successors) {
			e.Spec.Successors = append(e.Spec.Successors, v1.Successor{NodeName: name, Epoch: int64(2 + i)})
		}
		in.Entries = []placement.Entry{e}
		in.AssumeClaims("a")
		result, isSettled := placement.Predict(in)
		if got := result.NodesOf(&in, addr); !isSettled || !slices.Equal(got, []string{row.want}) {
			t.Errorf("%s, followed by %s: %v, settled %t", row.nodes, row.successors, got, isSettled)
		}
		for _, e := range placement.Place(in).Entries[row.want] {
			if s := in.Entries[0].Spec.Successors; !slices.Contains(s, v1.Successor{NodeName: row.want, Epoch: e.Epoch}) {
				t.Errorf("%s, followed by %s: epoch %d is none of %v", row.nodes, row.successors, e.Epoch, s)
			}
		}
		in.Entries[0].Spec.Successors, in.SuccessorClaims = nil, nil
		if in.AssumeClaims("a"); len(in.SuccessorClaims) > 0 {
			t.Errorf("nobody follows, and there are %v", in.SuccessorClaims)
		}
	}
}

// TestAssumeClaimsOfSome assumes claims of all addresses of a dead node, whatever comes before them.
func TestAssumeClaimsOfSome(t *testing.T) {
	in := placement.Inputs{Nodes: nodes(t, "a:expired b c"), Addresses: localAddresses(3), NamesSuccessors: true}
	for i, text := range map[int]string{1: "b 1 Announced observed", 2: "a 1 Announced observed"} { // nobody has the first
		e := entry(t, in.Addresses[i].Addr, text)
		e.Spec.Successors = []v1.Successor{{NodeName: "c", Epoch: 2}}
		in.Entries = append(in.Entries, e)
	}
	in.AssumeClaims("a")
	want := []placement.SuccessorClaim{
		{Node: "c", Addr: in.Addresses[2].Addr, Epoch: 2, Holder: "a", Age: placement.ClaimPatience},
	}
	if diff := cmp.Diff(want, in.SuccessorClaims, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodesOf finds all nodes that have entries of their own for a Virtual address, and of those that have entries for
// a Local one the one with the highest epoch.
func TestNodesOf(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	placed := func(kind v1.AnnounceType, epoch int64) []placement.Placed {
		return []placement.Placed{{Addr: addr, AnnouncedAddress: v1.AnnouncedAddress{
			Address: addr.String(), Type: kind, Epoch: epoch,
		}}}
	}
	for kind, want := range map[v1.AnnounceType][]string{v1.AnnounceVirtual: {"a", "b", "c"}, v1.AnnounceLocal: {"b"}} {
		result := placement.Result{Entries: map[string][]placement.Placed{
			"a": placed(kind, 1), "b": placed(kind, 3), "c": placed(kind, 2), "d": nil,
		}}
		if got := result.NodesOf(&placement.Inputs{}, addr); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

func TestPredictVirtual(t *testing.T) {
	address := placement.Address{
		Addr: netip.MustParseAddr("192.0.2.1"), Group: "r", PoolType: v1.PoolTypeRemote, Mask: 32,
		Subnet: netip.MustParsePrefix("192.0.2.0/24"),
	}
	restricted := address
	restricted.Addr, restricted.ServingNodes = netip.MustParseAddr("192.0.2.2"), map[string]bool{"b": true}
	in := placement.Inputs{Nodes: nodes(t, "a b c:excluded"), Addresses: []placement.Address{address, restricted}}
	result, isSettled := placement.Predict(in)
	if got := result.NodesOf(&in, address.Addr); !isSettled || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%s is on %v", address.Addr, got)
	}
	if got := result.NodesOf(&in, restricted.Addr); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%s is on %v", restricted.Addr, got)
	}
}

// TestAssumeRealised stores what a result asks for.
func TestAssumeRealised(t *testing.T) {
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
	entries, sharedEntries := placement.AssumeRealised(inputs, &result)
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
	// What is to leave its holder stays for nothing.
	for _, holder := range []string{"a:expired", "a:excluded"} {
		in.Nodes = nodes(t, holder+" b")
		verdict, _ := placement.ExplainAddress(in, in.Addresses[0].Addr)
		if why := verdict.Nodes[1].Why; why != "could take it (this node has 1)" {
			t.Errorf("%s: %s %s", holder, verdict.Phase, why)
		}
	}
	if _, found := placement.ExplainAddress(in, netip.MustParseAddr("10.0.0.99")); found {
		t.Error("an address of no Service is found")
	}
}
