package placement_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// challenged are the inputs of address 10.0.0.1, which node a holds by epoch 1; b is its first
// successor by epoch 2, and c its second one by epoch 3. Claims are "b 2", to which " aged" adds
// that the holder had the time to renew.
func challenged(
	t *testing.T, ns string, change func(*placement.Inputs), claims ...string,
) (placement.Inputs, netip.Addr) {
	t.Helper()
	inputs := held(t, ns, 1)
	e := &inputs.Entries[0]
	e.Spec.Successors, e.Spec.HighestEpoch = []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, 3
	if change != nil {
		change(&inputs)
	}
	inputs.AddClaims(claimsOf(t, e.Addr, claims...))
	return inputs, e.Addr
}

// claimsOf parses claims of an address, as in challenged.
func claimsOf(t *testing.T, addr netip.Addr, claims ...string) (parsed []placement.SuccessorClaim) {
	t.Helper()
	for _, text := range claims {
		text, isAged := strings.CutSuffix(text, " aged")
		c := placement.SuccessorClaim{Addr: addr}
		if _, err := fmt.Sscan(text, &c.Node, &c.Epoch); err != nil {
			t.Fatal(err)
		}
		if isAged {
			c.Age = placement.ClaimPatience
		}
		parsed = append(parsed, c)
	}
	return parsed
}

// showClaims is the entries of a result with successors and who contests them.
func showClaims(r *placement.Result) string {
	var out []string
	for name, entries := range r.Entries {
		for _, e := range entries {
			s := fmt.Sprintf("%s %d %s", name, e.Epoch, e.ClaimPolicy)
			if e.HandingOver {
				s += " leaving"
			}
			if by := e.ContestedBy; by != nil {
				s += fmt.Sprintf(" contested by %s %d", by.NodeName, by.Epoch)
			}
			for _, n := range e.Successors {
				s += fmt.Sprintf(" then %s %d", n.NodeName, n.Epoch)
			}
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// reports has the holder's agent report a state.
func reports(s v1.AddressState) func(*placement.Inputs) {
	return func(f *placement.Inputs) { f.Entries[0].ReportedState = s }
}

// contests has the holder's entry contested by a successor, which its agent may have observed.
func contests(by string, epoch int64, isObserved bool) func(*placement.Inputs) {
	return func(f *placement.Inputs) {
		f.Entries[0].Spec.ContestedBy, f.Entries[0].IsObserved = &v1.Successor{NodeName: by, Epoch: epoch}, isObserved
	}
}

// alsoHas adds an entry, in the words of entry.
func alsoHas(t *testing.T, text string) func(*placement.Inputs) {
	return func(f *placement.Inputs) { f.Entries = append(f.Entries, entry(t, f.Entries[0].Addr, text)) }
}

func all(changes ...func(*placement.Inputs)) func(*placement.Inputs) {
	return func(f *placement.Inputs) {
		for _, change := range changes {
			change(f)
		}
	}
}

// TestChallenge compares what becomes of an address that a successor has claimed.
func TestChallenge(t *testing.T) {
	justNow := func(f *placement.Inputs) { f.Entries[0].UnchangedFor = 0 }
	leaving := func(f *placement.Inputs) { f.Entries[0].Spec.HandingOver = true }
	const same, adopted = "a 1 Probe then b 2 then c 3", "a 1 Probe leaving then b 2 then c 3, b 2 Takeover"
	for _, row := range []struct {
		name, nodes string
		change      func(*placement.Inputs)
		claims      []string
		want        string
	}{
		{name: "no claim", nodes: "a b c d", want: same},

		// The holder's agent renews.
		{name: "the holder has time to renew", nodes: "a b c d", claims: []string{"b 2"}, want: same},
		{
			name: "the holder has renewed: it is to ask", nodes: "a b c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "the holder is late: it is to ask", nodes: "a:late b c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "the holder is late, and was just told to renew each second", nodes: "a:late b c d",
			change: func(f *placement.Inputs) { f.SlowsLeases = true }, claims: []string{"b 2 aged"}, want: same,
		},
		{
			name: "the holder has renewed, as it was told to", nodes: "a b c d",
			change: func(f *placement.Inputs) { f.SlowsLeases = true }, claims: []string{"b 2 aged"},
			want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "a NotReady holder renews", nodes: "a:notready b c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "the holder has not observed it", nodes: "a b c d", change: contests("b", 2, false),
			claims: []string{"b 2 aged"}, want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "the holder still has it", nodes: "a b c d", change: contests("b", 2, true), claims: []string{"b 2 aged"},
			want: "a 4 Probe",
		},
		{
			name: "the holder has asked another", nodes: "a b c d", change: contests("b", 2, true),
			claims: []string{"b 2 aged", "c 3"}, want: "a 1 Probe contested by c 3 then b 2 then c 3",
		},
		{
			name: "the holder has yielded it", nodes: "a b c d", change: reports(v1.StateYielded), claims: []string{"b 2"},
			want: adopted,
		},
		{
			name: "the holder has asked, and yielded it", nodes: "a b c d",
			change: all(contests("b", 2, true), reports(v1.StateYielded)), claims: []string{"b 2"},
			want: "a 1 Probe leaving contested by b 2 then b 2 then c 3, b 2 Takeover",
		},
		{
			name: "the holder has rebooted and met the claimer", nodes: "a b c d", change: reports(v1.StateConflict),
			claims: []string{"b 2"}, want: adopted,
		},
		{
			name: "the holder has rebooted and waits for the claimer", nodes: "a b c d", change: reports(v1.StateWaiting),
			claims: []string{"b 2"}, want: adopted,
		},
		{
			name: "the holder's kernel refuses it", nodes: "a b c d", change: reports(v1.StateFailed), claims: []string{"b 2"},
			want: "a 1 Probe then b 2 then c 3, b 2 Takeover",
		},
		{
			name: "the holder has rebooted and has yet to ask", nodes: "a b c d", change: all(reports(v1.StatePending), justNow),
			claims: []string{"b 2"}, want: same,
		},
		{
			name: "the holder has rebooted and does not ask", nodes: "a b c d", change: reports(v1.StatePending),
			claims: []string{"b 2"}, want: adopted,
		},
		{
			name: "the holder has yielded it, and nobody has reported a claim yet", nodes: "a b c d",
			change: reports(v1.StateYielded), want: same,
		},
		{name: "the claim is no more", nodes: "a b c d", change: contests("b", 2, true), want: same},
		{
			name: "the holder is to hand it over", nodes: "a:excluded b c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe leaving then b 2 then c 3",
		},

		// The holder's agent does not.
		{name: "the holder's Lease had expired before", nodes: "a:expired b c d", claims: []string{"b 2"}, want: same},
		{name: "the holder is dead", nodes: "a:expired b c d", claims: []string{"b 2 aged"}, want: adopted},
		{
			name: "the holder is dead, asked or not", nodes: "a:expired b c d", change: contests("b", 2, false),
			claims: []string{"b 2 aged"}, want: "a 1 Probe leaving contested by b 2 then b 2 then c 3, b 2 Takeover",
		},
		{name: "its Node is deleted", nodes: "a:gone b c d", claims: []string{"b 2 aged"}, want: adopted},
		{
			name: "it was to be handed over", nodes: "a:expired,excluded b c d", change: leaving, claims: []string{"b 2 aged"},
			want: adopted,
		},
		{
			name: "most Leases have expired", nodes: "a:expired b c:expired d:expired", claims: []string{"b 2 aged"},
			want: "a 1 Probe leaving then b 2 then c 3, b 2 Probe",
		},
		{
			name: "most Leases have expired, but it has yielded", nodes: "a:expired b c:expired d:expired",
			change: reports(v1.StateYielded), claims: []string{"b 2"}, want: adopted,
		},

		// Two claims.
		{
			name: "the higher epoch counts", nodes: "a:expired b c d", claims: []string{"b 2 aged", "c 3 aged"},
			want: "a 1 Probe leaving then b 2 then c 3, c 3 Takeover",
		},
		{
			name: "the one that is left counts", nodes: "a:expired b c:expired d e", claims: []string{"b 2 aged", "c 3 aged"},
			want: adopted,
		},

		// Which claims count.
		{
			name: "a claimer that is to hand its addresses over", nodes: "a b:excluded c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe contested by b 2 then b 2 then c 3",
		},
		{
			name: "such a claimer of a dead node's address", nodes: "a:expired b:excluded c d", claims: []string{"b 2 aged"},
			want: adopted,
		},
		{
			name: "before the manager decides", nodes: "a:expired b:excluded c d", claims: []string{"b 2"}, want: same,
		},
		{
			name: "one that watches nobody any more", nodes: "a:expired b:disabled c d", claims: []string{"b 2 aged"},
			want: adopted,
		},
		{
			name: "another one that is to hand its addresses over", nodes: "a:expired b c:excluded d",
			claims: []string{"b 2 aged"}, want: "a 1 Probe leaving then b 2, b 2 Takeover",
		},
		{
			name: "a claimer that is out of service", nodes: "a b:out c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe then c 3 then d 4",
		},
		{
			name: "a claimer without a carrier", nodes: "a b:down c d", claims: []string{"b 2 aged"},
			want: "a 1 Probe then c 3 then d 4",
		},
		{name: "a claimer whose interfaces are unknown", nodes: "a b:silent c d", claims: []string{"b 2 aged"}, want: same},
		{
			name: "the gate is off", nodes: "a b c d", change: func(f *placement.Inputs) { f.NamesSuccessors = false },
			claims: []string{"b 2 aged"}, want: "a 1 Probe",
		},

		// Elections.
		{
			name: "a candidate that waits loses to the claimer", nodes: "a:expired b c d",
			change: alsoHas(t, "d 4 Waiting observed"), claims: []string{"b 2 aged"},
			want: adopted,
		},
		{
			name: "a candidate that waits for a holder that has yielded loses, too", nodes: "a b c d",
			change: all(reports(v1.StateYielded), alsoHas(t, "d 4 Waiting observed")),
			claims: []string{"b 2"}, want: adopted,
		},
		{
			name: "a candidate that has not reported is revoked", nodes: "a:expired b c d", change: alsoHas(t, "d 4 Pending"),
			claims: []string{"b 2 aged"},
			want:   adopted + ", d 4 Probe leaving",
		},
		{
			name: "a candidate that has it is the holder", nodes: "a:expired b c d", change: alsoHas(t, "d 4 Announced"),
			claims: []string{"b 2 aged"}, want: "d 4 Probe",
		},
		{
			name: "a handover goes on", nodes: "a:excluded b c d", change: all(leaving, alsoHas(t, "d 4 Takeover")),
			claims: []string{"b 2 aged"},
			want:   "a 1 Probe leaving then b 2 then c 3, d 4 Takeover",
		},
		{
			name: "a handover goes on although the holder dies", nodes: "a:expired,excluded b c d",
			change: all(leaving, alsoHas(t, "d 4 Takeover")), claims: []string{"b 2 aged"},
			want: "a 1 Probe leaving then b 2 then c 3, d 4 Takeover",
		},
		{
			name: "unless its claimant fails", nodes: "a:expired,excluded b c d",
			change: all(leaving, alsoHas(t, "d 4 Takeover Failed")), claims: []string{"b 2 aged"},
			want: "a 1 Probe leaving then b 2 then c 3, b 2 Takeover, d 4 Takeover",
		},

		// After the adoption.
		{
			name: "the adopted claim is the holder before its agent says so again", nodes: "a:expired b c d",
			change: all(leaving, alsoHas(t, "b 2 Takeover")),
			claims: []string{"b 2 aged"}, want: "b 2 Takeover",
		},
		{
			name: "unless the agent says otherwise", nodes: "a:expired b c d",
			change: all(leaving, alsoHas(t, "b 2 Takeover Pending")),
			claims: []string{"b 2 aged"}, want: "a 1 Probe leaving then b 2 then c 3, b 2 Takeover",
		},
		{
			name: "the old holder comes back", nodes: "a b c d", change: all(leaving, alsoHas(t, "b 2 Takeover Announced")),
			claims: []string{"c 3 aged"}, want: "b 2 Takeover",
		},
		{
			name: "another claim than the adopted one", nodes: "a:expired b c d",
			change: all(leaving, alsoHas(t, "b 2 Takeover")), claims: []string{"b 2 aged", "c 3 aged"}, want: "b 2 Takeover",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs, _ := challenged(t, row.nodes, row.change, row.claims...)
			result := placement.Place(inputs)
			if diff := cmp.Diff(row.want, showClaims(&result)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAttackClaims has nodes report claims by epochs that are not reserved for them: they change
// nothing, whether the holder's agent renews or not. This test shows the row "claim addresses of a
// node that it is not to follow (`WireFailover`)" of docs/trust.md.
func TestAttackClaims(t *testing.T) {
	for _, claims := range [][]string{
		{"d 2 aged"}, {"c 2 aged"}, {"b 3 aged"}, {"b 4 aged"}, {"b 0 aged"}, {"d 0 aged"}, {"a 2 aged"}, {
			"b 1152921504606846976 aged", "d 9 aged",
		},
	} {
		for _, ns := range []string{"a b c d", "a:expired b c d", "a:expired,notready b c d"} {
			for _, state := range []v1.AddressState{v1.StateAnnounced, v1.StateYielded} {
				with, _ := challenged(t, ns, reports(state), claims...)
				without, _ := challenged(t, ns, reports(state))
				with.LingeringReports = nil
				got, want := placement.Place(with), placement.Place(without)
				if diff := cmp.Diff(showClaims(&want), showClaims(&got)); diff != "" {
					t.Errorf("%v of %s, which is %s (-without +with):\n%s", claims, ns, state, diff)
				}
			}
		}
	}
}

// TestAdoption follows an address from the claim until its new holder has successors.
func TestAdoption(t *testing.T) {
	inputs, addr := challenged(t, "a:expired b c d e", nil, "b 2 aged")
	inputs.SuccessorClaims[0].Message = "no answer\nfor 0.5 s"
	result := placement.Place(inputs)
	got := result.Entries["b"][0].AnnouncedAddress
	want := entry(t, addr, "b 2 Takeover").Spec
	want.HighestEpoch, want.PreviousMACs = 3, []string{"mac-a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the claimer's entry (-want +got):\n%s", diff)
	}
	if !placement.ReassignedAddresses(&inputs, &result)[addr] {
		t.Error("the claimer's entry is not written after that of the last holder")
	}
	move := placement.Move{
		Kind: placement.Failover, Cause: placement.CauseClaimUnanswered, From: "a", To: "b", IsNew: true,
		Message: "b, its successor, has claimed it, and a has an agent that does not renew its Lease (no answer for 0.5 " +
			"s)",
		NotChosen: result.Moves[addr].NotChosen,
	}
	if diff := cmp.Diff(move, result.Moves[addr]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	realise(&inputs, &result)
	inputs.Entries = append(
		inputs.Entries,
		placement.Entry{Node: "b", Addr: addr, Spec: got, ReportedState: v1.StateAnnounced, UnchangedFor: time.Minute},
	)
	inputs.SuccessorClaims, inputs.Nodes[0].Liveness = nil, placement.Fresh // the old holder is back
	result = placement.Place(inputs)
	if got, want := showClaims(&result),
		[]string{"b 2 Takeover then", "4 then", "5"}; !slices.ContainsFunc([]string{got}, func(s string) bool {
		return strings.HasPrefix(s, want[0]) && strings.Contains(s, want[1]) && strings.HasSuffix(s, want[2]) &&
			!strings.Contains(s, ",")
	}) {
		t.Errorf("%s: the new holder is not to have further successors by epochs 4 and 5", got)
	}
}

// TestAdoptionByCordonedNode follows an address that a node has claimed which is to hand its addresses over: it is
// that node's at first, and then another one's.
func TestAdoptionByCordonedNode(t *testing.T) {
	for _, claimer := range []string{"b:cordoned", "b:excluded", "b:shutdown"} {
		inputs, addr := challenged(t, "a:expired "+claimer+" c d e", nil, "b 2 aged")
		result := placement.Place(inputs)
		adopted := result.Entries["b"][0].AnnouncedAddress
		realise(&inputs, &result)
		inputs.Entries = append(inputs.Entries,
			placement.Entry{Node: "b", Addr: addr, Spec: adopted, ReportedState: v1.StateAnnounced, UnchangedFor: time.Minute})
		inputs.SuccessorClaims = nil
		result = placement.Place(inputs)
		if move := result.Moves[addr]; move.Kind != placement.Handover || move.From != "b" || move.To == "" {
			t.Errorf("%s: %+v, want a handover from b", claimer, move)
		}
		if entries := result.Entries["b"]; len(entries) != 1 || !entries[0].HandingOver {
			t.Errorf("%s: %+v, want the claimer to keep the address until another node has it", claimer, entries)
		}
	}
}

// TestClaimMoves compares causes and messages of moves.
func TestClaimMoves(t *testing.T) {
	inputs, addr := challenged(t, "a b c d", reports(v1.StateYielded), "b 2")
	got := placement.Place(inputs).Moves[addr]
	if want := "b, its successor, has claimed it, and a reports it Yielded"; got.Message != want ||
		got.Cause != placement.CauseYielded {
		t.Errorf("%+v", got)
	}
	for _, claim := range []string{"b 2", "b 2 aged"} {
		inputs, addr = challenged(t, "a b c d", nil, claim)
		if move, moves := placement.Place(inputs).Moves[addr]; moves {
			t.Errorf("%s: %+v, although nothing is decided", claim, move)
		}
	}
}

// TestClaimMACs has another node than the claimer elected, as the claimer's Lease has expired:
// it knows the claimer's MAC address, as well as that of the last holder.
func TestClaimMACs(t *testing.T) {
	inputs, _ := challenged(t, "a:expired b:expired c:excluded d e f", nil, "b 2 aged")
	result := placement.Place(inputs)
	for node, entries := range result.Entries {
		if node != "a" && len(entries) > 0 {
			if diff := cmp.Diff([]string{"mac-a", "mac-b"}, entries[0].PreviousMACs); diff != "" {
				t.Errorf("%s (-want +got):\n%s", node, diff)
			}
			return
		}
	}
	t.Errorf("nobody is elected: %s", showClaims(&result))
}

// TestStandbysOfYieldedHolder checks that successors are told of an address until another node
// holds it: they would withdraw it at once.
func TestStandbysOfYieldedHolder(t *testing.T) {
	for _, state := range []v1.AddressState{v1.StateAnnounced, v1.StateYielded, v1.StateConflict, v1.StatePending, ""} {
		inputs, _ := challenged(t, "a b c d", reports(state), "b 2")
		var watchers []string
		for _, plan := range placement.PlanStandbys(inputs) {
			watchers = append(watchers, plan.Watcher)
		}
		if want := []string{"b", "c"}; !slices.Equal(watchers, want) {
			t.Errorf("%s: %v, want %v", state, watchers, want)
		}
	}
	inputs, _ := challenged(t, "a b c d", alsoHas(t, "b 2 Takeover"), "b 2")
	if plans := placement.PlanStandbys(inputs); len(plans) > 0 {
		t.Errorf("after the adoption: %+v", plans)
	}
}

// TestClaimClocks plays claims against the clocks of two managers.
func TestClaimClocks(t *testing.T) {
	const none = time.Duration(0)
	var clocks placement.Clocks
	now := time.Unix(1000, 0)
	look := func(after time.Duration, claims ...string) (age, wait, next time.Duration) {
		now = now.Add(after)
		inputs, _ := challenged(t, "a b c d", nil, claims...)
		clocks.FillDurations(&inputs, now)
		inputs.Entries[0].UnchangedFor = time.Hour
		for _, c := range inputs.SuccessorClaims {
			age = c.Age
		}
		for i := range inputs.Nodes {
			if n := &inputs.Nodes[i]; n.Name == "a" {
				wait = n.SuccessorWait
			} else if n.SuccessorWait != 0 {
				t.Errorf("%s waits %s", n.Name, n.SuccessorWait)
			}
		}
		return age, wait, nextDeadline(inputs)
	}
	for i, row := range []struct {
		after           time.Duration
		claim           string
		age, wait, next time.Duration
	}{
		{0, "", none, none, none},
		{time.Second, "b 2", none, 10 * time.Second, 3 * time.Second},
		{time.Second, "b 2", time.Second, 10 * time.Second, 2 * time.Second},
		{2 * time.Second, "b 2", 3 * time.Second, 10 * time.Second, 7 * time.Second}, // a lingering report
		{time.Second, "c 3", none, 10 * time.Second, 3 * time.Second},
		{4 * time.Second, "", none, 6 * time.Second, 6 * time.Second},
		{6 * time.Second, "", none, none, none},
		{time.Second, "b 2", none, 20 * time.Second, 3 * time.Second},
		{20 * time.Second, "", none, none, none},
		{time.Second, "b 2", none, 40 * time.Second, 3 * time.Second},
		{41 * time.Second, "b 2", 41 * time.Second, 80 * time.Second, none},
		{81 * time.Second, "b 2", 122 * time.Second, 160 * time.Second, none},
		{161 * time.Second, "b 2", 283 * time.Second, 5 * time.Minute, none},
		{301 * time.Second, "b 2", 584 * time.Second, 5 * time.Minute, none},
		{601 * time.Second, "b 2", 1185 * time.Second, 10 * time.Second, none},
		{time.Second, "d 9", none, 9 * time.Second, 9 * time.Second},
		{time.Hour, "", none, none, none},
		{time.Second, "b 2", none, 10 * time.Second, 3 * time.Second},
		{310 * time.Second, "", none, none, none},
		{0, "b 2", none, 20 * time.Second, 3 * time.Second}, // five minutes after the wait that one counts still
	} {
		var claims []string
		if row.claim != "" {
			claims = append(claims, row.claim)
		}
		if age, wait, next := look(row.after, claims...); age != row.age || wait != row.wait || next != row.next {
			t.Errorf("row %d: age %s, wait %s, next %s; want %s, %s, %s", i, age, wait, next, row.age, row.wait, row.next)
		}
	}
	clocks = placement.Clocks{} // of a manager that has just become the leader
	if age, wait, _ := look(time.Hour, "b 2"); age != 0 || wait != 10*time.Second {
		t.Errorf("a new leader: age %s, wait %s", age, wait)
	}
}

// TestReservationsWait names no further successors of a node of which some have claimed
// addresses, and keeps those that are named.
func TestReservationsWait(t *testing.T) {
	inputs, _ := challenged(t, "a b:excluded c d", nil)
	inputs.Nodes[0].SuccessorWait = time.Nanosecond
	result := placement.Place(inputs)
	if got, want := showClaims(&result), "a 1 Probe then c 3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	inputs.Nodes[0].SuccessorWait = 0
	result = placement.Place(inputs)
	if got, want := showClaims(&result), "a 1 Probe then c 3 then d 4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// While the manager may reserve no epoch for another node, it keeps both named successors of each address, also one
// whose place it gives to node d afterwards.
func TestNamedSuccessorsStayMeanwhile(t *testing.T) {
	inputs := held(t, "a b c", 5)
	for range 2 {
		result := placement.Place(inputs)
		realise(&inputs, &result)
	}
	inputs.Nodes = append(inputs.Nodes, healthy("d"))
	inputs.Nodes[0].SuccessorWait = time.Nanosecond
	for round := range 2 {
		result := placement.Place(inputs)
		if got := len(result.Entries["a"]); got != 5 {
			t.Fatalf("round %d: node a has %d entries, want 5", round, got)
		}
		for _, e := range result.Entries["a"] {
			if v1.ReservedEpochOf(e.Successors, "b") == 0 || v1.ReservedEpochOf(e.Successors, "c") == 0 {
				t.Errorf("round %d: successors of %s are %v, want b and c", round, e.Addr, e.Successors)
			}
		}
		realise(&inputs, &result)
	}
	inputs.Nodes[0].SuccessorWait = 0
	isNamed := func(e placement.Placed) bool { return v1.ReservedEpochOf(e.Successors, "d") != 0 }
	if result := placement.Place(inputs); !slices.ContainsFunc(result.Entries["a"], isNamed) {
		t.Errorf("d is no successor afterwards: %v", result.Entries["a"])
	}
}

// TestDescribeSuccessors compares what a holder is told of the nodes that may claim its
// addresses.
func TestDescribeSuccessors(t *testing.T) {
	second := func(i int) placement.Interface {
		return placement.Interface{
			Name: "eth1", MAC: fmt.Sprintf("mac-1-%d", i),
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(200 + i)}), 24)},
		}
	}
	for _, row := range []struct {
		name, nodes string
		change      func(*placement.Inputs)
		claims      []string
		want        []v1.StandbyNode
	}{
		{name: "both successors", nodes: "a b c", want: []v1.StandbyNode{reached("b"), reached("c")}},
		{name: "the gate is off", nodes: "a b c", change: func(f *placement.Inputs) { f.NamesSuccessors = false }},
		{
			name: "who contests, too", nodes: "a b c", claims: []string{"b 2 aged"},
			want: []v1.StandbyNode{reached("b"), reached("c")},
		},
		{
			name: "the holder's interfaces are unknown", nodes: "a:silent b c",
			want: []v1.StandbyNode{{NodeName: "b", MACs: []string{"mac-b"}}, {NodeName: "c", MACs: []string{"mac-c"}}},
		},
		{
			name: "who contests is gone, and another one claims", nodes: "a:expired c d e f", change: contests("b", 2, false),
			claims: []string{"c 3"}, want: []v1.StandbyNode{reached("c")},
		},
		{
			name: "the MAC addresses on the link come first", nodes: "a b",
			change: func(f *placement.Inputs) {
				f.Nodes[1].Interfaces = []placement.Interface{
					{Name: "eth0", MAC: "mac-elsewhere", Subnets: []netip.Prefix{netip.MustParsePrefix("10.9.9.9/24")}},
					{Name: "eth1", MAC: "mac-on-link", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.201/24")}},
					{Name: "eth2", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.221/24")}},
				}
			},
			want: []v1.StandbyNode{
				{NodeName: "b", Addresses: []string{"10.0.0.201", "10.0.0.221"}, MACs: []string{"mac-on-link", "mac-elsewhere"}},
			},
		},
		{
			name: "by two links", nodes: "a b",
			change: func(f *placement.Inputs) {
				for i := range f.Nodes {
					f.Nodes[i].Interfaces = append(f.Nodes[i].Interfaces, second(i))
				}
				addr := netip.MustParseAddr("10.1.0.1")
				f.Addresses = append(
					f.Addresses, placement.Address{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}},
				)
				e := entry(t, addr, "a 1 Announced observed")
				e.Spec.Interface, e.UnchangedFor = "eth1", time.Minute
				f.Entries = append(f.Entries, e)
			},
			want: []v1.StandbyNode{
				{NodeName: "b", Addresses: []string{"10.0.0.201", "10.1.0.201"}, MACs: []string{"mac-b", "mac-1-1"}},
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs, _ := challenged(t, row.nodes, row.change, row.claims...)
			if diff := cmp.Diff(row.want, placement.Place(inputs).Successors["a"]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestManySuccessors has the addresses of a node on five links, with four successors each: the node is
// told of as many as an Announcement may describe.
func TestManySuccessors(t *testing.T) {
	inputs := placement.Inputs{NamesSuccessors: true}
	addNode := func(name string) *placement.Node {
		n := healthy("a")
		n.Name, n.Interfaces = name, nil
		inputs.Nodes = append(inputs.Nodes, n)
		return &inputs.Nodes[len(inputs.Nodes)-1]
	}
	iface := func(link, host int) placement.Interface {
		return placement.Interface{
			Name:    fmt.Sprintf("eth%d", link),
			Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(link), 0, byte(host)}), 24)},
		}
	}
	holder := addNode("a")
	for link := range 5 {
		holder.Interfaces = append(holder.Interfaces, iface(link, 200))
	}
	var want []string
	for link := range 5 {
		for i := range 4 {
			name := fmt.Sprintf("b-%d-%d", link, i)
			want = append(want, name)
			addNode(name).Interfaces = []placement.Interface{iface(link, 201+i)}
			addr := netip.AddrFrom4([4]byte{10, byte(link), 0, byte(1 + i)})
			inputs.Addresses = append(inputs.Addresses, placement.Address{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal})
			e := entry(t, addr, "a 1 Announced observed")
			e.UnchangedFor = time.Minute
			inputs.Entries = append(inputs.Entries, e)
		}
	}
	var got []string
	for _, n := range placement.Place(inputs).Successors["a"] {
		got = append(got, n.NodeName)
	}
	if diff := cmp.Diff(want[:v1.MaxSuccessorsPerNode], got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// The last one claims an address: the holder is told of it in place of another one.
	result := placement.Place(inputs)
	realise(&inputs, &result)
	last := want[len(want)-1]
	for _, e := range result.Entries["a"] {
		if epoch := v1.ReservedEpochOf(e.Successors, last); epoch != 0 {
			inputs.AddClaims([]placement.SuccessorClaim{{
				Addr: e.Addr, Node: last, Epoch: epoch, Age: placement.ClaimPatience,
			}})
			break
		}
	}
	got = nil
	for _, n := range placement.Place(inputs).Successors["a"] {
		got = append(got, n.NodeName)
	}
	if diff := cmp.Diff(append(want[:v1.MaxSuccessorsPerNode-1:v1.MaxSuccessorsPerNode-1], last), got); diff != "" {
		t.Errorf("of who claims (-want +got):\n%s", diff)
	}
}
