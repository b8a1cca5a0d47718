package placement_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// held are the inputs of addresses 10.0.0.1 and following, a number of them, all held by
// node a for long enough that successors are named.
func held(t *testing.T, ns string, count int) placement.Inputs {
	t.Helper()
	inputs := placement.Inputs{Nodes: nodes(t, ns), NamesSuccessors: true}
	for i := range count {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		inputs.Addresses = append(
			inputs.Addresses, placement.Address{Addr: addr, Group: "g", PoolType: v1.PoolTypeLocal, Services: []string{"a/b"}},
		)
		e := entry(t, addr, "a 1 Announced observed")
		e.UnchangedFor = time.Minute
		inputs.Entries = append(inputs.Entries, e)
	}
	return inputs
}

// nameSuccessors makes a stored entry name successors, a letter each, with the epochs from 2 on. Epoch 3 is the highest
// that the manager has given.
func nameSuccessors(e *placement.Entry, names string) {
	for k := range names {
		e.Spec.Successors = append(e.Spec.Successors, v1.Successor{NodeName: names[k : k+1], Epoch: int64(k + 2)})
	}
	e.Spec.HighestEpoch = 3
}

// realise makes the result what is stored: agents report what they reported before.
func realise(inputs *placement.Inputs, result *placement.Result) {
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		for _, spec := range result.Entries[e.Node] {
			if spec.Addr == e.Addr {
				e.Spec = spec.AnnouncedAddress
			}
		}
	}
}

// successorsOf is "b 2, c 3" of an address.
func successorsOf(result *placement.Result, a netip.Addr) string {
	var named []string
	for _, entries := range result.Entries {
		for _, e := range entries {
			if e.Address != a.String() {
				continue
			}
			for _, s := range e.Successors {
				named = append(named, fmt.Sprintf("%s %d", s.NodeName, s.Epoch))
			}
		}
	}
	return strings.Join(named, ", ")
}

// preferringNode has all addresses prefer one node.
func preferringNode(t *testing.T, name string) func(*placement.Inputs) {
	return func(f *placement.Inputs) {
		labelNodes(f, name+"=fast")
		preferring(t, f, "fast=1", "")
	}
}

func TestSuccessors(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	for _, row := range []struct {
		name  string
		nodes string
		// named are the successors that the stored entry names, as node and epoch.
		named  []v1.Successor
		change func(*placement.Inputs)
		want   []string // one of them
	}{
		{name: "no other node", nodes: "a", want: []string{""}},
		{name: "one other node", nodes: "a b", want: []string{"b 2"}},
		{name: "two others", nodes: "a b c", want: []string{"b 2, c 3", "c 2, b 3"}},
		{
			name:  "who does not pass the checks",
			nodes: "a b:excluded c:late d:elsewhere e:out f:shutdown g:leaving h:down i:noagent j", want: []string{"j 2"},
		},
		{name: "NotReady only if there is no other", nodes: "a b:notready c", want: []string{"c 2"}},
		{name: "NotReady, for want of others", nodes: "a b:notready", want: []string{"b 2"}},
		{
			name: "named ones stay, with their epochs", nodes: "a b c d e f",
			named: []v1.Successor{{NodeName: "f", Epoch: 7}, {NodeName: "b", Epoch: 4}}, want: []string{"f 7, b 4"},
		},
		{
			name: "named ones stay, in their order", nodes: "a b c d e f",
			named: []v1.Successor{{NodeName: "b", Epoch: 4}, {NodeName: "f", Epoch: 7}}, want: []string{"b 4, f 7"},
		},
		{
			name: "a named one that is unknown", nodes: "a c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"c 3, d 4"},
		},
		{
			name: "a named one that is late stays", nodes: "a b:late c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"b 2, c 3"},
		},
		{
			name: "the agent of a named one restarts", nodes: "a b:expired c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"b 2, c 3"},
		},
		{
			name: "the second follows the first", nodes: "a b:dead c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"c 3, d 4"},
		},
		{
			name: "one whose agent restarts is not named anew", nodes: "a b:expired c", want: []string{"c 2"},
		},
		{
			name:  "the agents of both restart, and no other node may have the address",
			nodes: "a b:expired c:expired d:excluded e:excluded",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"b 2, c 3"},
		},
		{
			name: "most agents do not renew", nodes: "a b:expired c:expired d:expired e",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"b 2, c 3"},
		},
		{
			name: "it is too early to name others", nodes: "a b:expired c:expired d",
			named:  []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			change: func(f *placement.Inputs) { f.Entries[0].UnchangedFor = 0 }, want: []string{"b 2, c 3"},
		},
		{
			name: "the agents of both restart, and others are named", nodes: "a b:expired c:expired d e f g",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			change: func(f *placement.Inputs) { // of the others two may have the address
				f.Addresses[0].ServingNodes = map[string]bool{"a": true, "b": true, "c": true, "e": true, "g": true}
			}, want: []string{"e 4, g 5", "g 4, e 5"},
		},
		{
			name: "a reserved epoch is not reserved again", nodes: "a b:expired c:expired d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"d 4"},
		},
		{
			name: "the holder itself", nodes: "a b c",
			named: []v1.Successor{{NodeName: "a", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"c 3, b 4"},
		},
		{
			name: "a preferred one comes in the place of the first", nodes: "a b:dead c d",
			named:  []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			change: preferringNode(t, "d"), want: []string{"d 4, c 3"},
		},
		{
			name: "a preferred one comes later", nodes: "a b c d",
			named:  []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			change: preferringNode(t, "d"), want: []string{"b 2, c 3"},
		},
		{
			name: "an excluded one has claimed the address by an earlier epoch", nodes: "a b:excluded c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 5}, {NodeName: "c", Epoch: 6}},
			change: func(f *placement.Inputs) {
				f.SuccessorClaims = []placement.SuccessorClaim{{Node: "b", Holder: "d", Addr: addr, Epoch: 2}}
			}, want: []string{"c 6, d 7"},
		},
		{
			name: "a holder of a moment", nodes: "a b c",
			change: func(f *placement.Inputs) { f.Entries[0].UnchangedFor = time.Second - 1 }, want: []string{""},
		},
		{
			name: "a holder of a second", nodes: "a b",
			change: func(f *placement.Inputs) { f.Entries[0].UnchangedFor = time.Second }, want: []string{"b 2"},
		},
		{
			name: "a manager of a moment keeps what is named", nodes: "a b c", named: []v1.Successor{{NodeName: "b", Epoch: 2}},
			change: func(f *placement.Inputs) { f.Entries[0].UnchangedFor = 0 }, want: []string{"b 2"},
		},
		{
			name: "an address that nobody has announced", nodes: "a b c",
			change: func(f *placement.Inputs) { f.Entries[0].ReportedState = v1.StatePending }, want: []string{""},
		},
		{
			name: "traffic stays on nodes with endpoints", nodes: "a b c d",
			change: func(f *placement.Inputs) { f.Addresses[0].ServingNodes = map[string]bool{"a": true, "d": true} },
			want:   []string{"d 2"},
		},
		{
			name: "nodes of another subnet", nodes: "a b c",
			change: func(f *placement.Inputs) {
				f.Nodes[1].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.201/32")}
			}, want: []string{"c 2"},
		},
		{
			name: "a subnet of two addresses", nodes: "a b",
			change: func(f *placement.Inputs) {
				for i := range f.Nodes {
					f.Nodes[i].Interfaces[0].Subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/31")}
				}
			}, want: []string{"b 2"},
		},
		{name: "nodes that watch nobody", nodes: "a b:disabled c d:disabled", want: []string{"c 2"}},
		{
			name: "a named one that watches nobody any more", nodes: "a b:disabled c d",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, want: []string{"c 3, d 4"},
		},
		{
			name: "a holder that has no part in it", nodes: "a:disabled b c", named: []v1.Successor{{NodeName: "b", Epoch: 2}},
			want: []string{""},
		},
		{
			name: "the gate is off", nodes: "a b c", named: []v1.Successor{{NodeName: "b", Epoch: 2}},
			change: func(f *placement.Inputs) { f.NamesSuccessors = false }, want: []string{""},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := held(t, row.nodes, 1)
			inputs.Entries[0].Spec.Successors = row.named
			for _, s := range row.named {
				inputs.Entries[0].Spec.HighestEpoch = max(inputs.Entries[0].Spec.HighestEpoch, s.Epoch)
			}
			if row.change != nil {
				row.change(&inputs)
			}
			result := placement.Place(inputs)
			if got := successorsOf(&result, addr); !slices.Contains(row.want, got) {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

// TestSuccessorsAreSpread gives the addresses of one node to at most four successors, and of
// the first rank in equal parts, also when the nodes come one after the other; and then changes
// no more.
func TestSuccessorsAreSpread(t *testing.T) {
	for _, row := range []struct{ nodes, addresses, successors, share int }{
		{3, 100, 2, 50}, {4, 100, 3, 34}, {5, 100, 4, 25}, {9, 100, 4, 25}, {9, 10, 4, 3}, {9, 4, 4, 1}, {9, 2, 4, 1}, {
			9, 1, 2, 1,
		},
	} {
		for _, oneByOne := range []bool{false, true} {
			t.Run(fmt.Sprintf("%+v, one by one: %t", row, oneByOne), func(t *testing.T) {
				var names []string
				for i := range row.nodes {
					names = append(names, string(rune('a'+i)))
				}
				inputs := held(t, strings.Join(names, " "), row.addresses)
				all := inputs.Nodes
				for i := range all {
					if oneByOne || i == len(all)-1 {
						inputs.Nodes = all[:i+1]
						for range 2 {
							result := placement.Place(inputs)
							realise(&inputs, &result)
						}
					}
				}
				result := placement.Place(inputs)
				before := slices.Clone(inputs.Entries)
				realise(&inputs, &result)
				if diff := cmp.Diff(before, inputs.Entries, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("successors change although nothing else does:\n%s", diff)
				}
				first, everybody := map[string]int{}, map[string]bool{}
				for _, e := range inputs.Entries {
					if len(e.Spec.Successors) != 2 {
						t.Fatalf("%s has %v", e.Addr, e.Spec.Successors)
					}
					first[e.Spec.Successors[0].NodeName]++
					for _, s := range e.Spec.Successors {
						everybody[s.NodeName] = true
					}
				}
				for node, n := range first {
					if n > row.share {
						t.Errorf("%s is the first successor for %d addresses, and its share is %d", node, n, row.share)
					}
				}
				if len(everybody) > row.successors || len(everybody) < min(row.successors, row.addresses) {
					t.Errorf("%d nodes are successors: %v", len(everybody), everybody)
				}
			})
		}
	}
}

// TestWatchersCoverAddresses names nodes that may take what the others may not.
func TestWatchersCoverAddresses(t *testing.T) {
	const most = 7 // addresses, and one more
	for _, row := range []struct {
		name, nodes string
		// few and many are the nodes with endpoints of the last address and of the others.
		few, many string
		// named are the successors of the others until now.
		named []v1.Successor
		// first and last are those of an address of the others and of the last one, one of them; without
		// first any two with endpoints.
		first, last []string
	}{
		{
			name: "as few for each", nodes: "a b c d e f g h i j", many: "a b c", few: "a i j",
			first: []string{"b 2, c 3", "c 2, b 3"}, last: []string{"i 2, j 3", "j 2, i 3"},
		},
		{
			name: "few for one", nodes: "a b c d e f g h i j", many: "a b c d e f g h", few: "a i j",
			last: []string{"i 2, j 3", "j 2, i 3"},
		},
		{
			name: "few for a new one", nodes: "a b c d e f g h i j", many: "a b c d e f g h", few: "a i j",
			named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			first: []string{"b 2, c 3", "c 3, b 2"}, last: []string{"i 2, j 3", "j 2, i 3"},
		},
		{
			name: "few for a new one, and a successor is late", nodes: "a b:late c d e f g h i j", many: "a b c d e f g h",
			few: "a i j", named: []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}},
			first: []string{"b 2, c 3", "c 3, b 2"}, last: []string{"i 2, j 3", "j 2, i 3"},
		},
		{
			name: "none for those that come first", nodes: "a b c", many: "a", few: "a b c", first: []string{""},
			last: []string{"b 2, c 3", "c 2, b 3"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inputs := held(t, row.nodes, most+1)
			for i := range inputs.Addresses {
				serving := row.few
				if i < most {
					serving, inputs.Entries[i].Spec.Successors = row.many, row.named
					for _, s := range row.named {
						inputs.Entries[i].Spec.HighestEpoch = max(inputs.Entries[i].Spec.HighestEpoch, s.Epoch)
					}
				}
				inputs.Addresses[i].ServingNodes = map[string]bool{}
				for _, name := range strings.Fields(serving) {
					inputs.Addresses[i].ServingNodes[name] = true
				}
			}
			result := placement.Place(inputs)
			for i := range inputs.Addresses {
				got, want := successorsOf(&result, inputs.Addresses[i].Addr), row.first
				if i == most {
					want = row.last
				}
				if want == nil && strings.Count(got, ",") == 1 || slices.Contains(want, got) {
					continue
				}
				t.Errorf("%s: %q, want %q", inputs.Addresses[i].Addr, got, want)
			}
		})
	}
}

// TestWatchersSuffice has three addresses with three successors between them, of which the third is to
// become the first one of an address: no further node is named instead, whichever ranks higher.
func TestWatchersSuffice(t *testing.T) {
	for last := byte(10); last < 30; last++ {
		inputs := held(t, "a b c d e", 3)
		addr := netip.AddrFrom4([4]byte{10, 0, 0, last})
		inputs.Addresses[2].Addr, inputs.Entries[2].Addr, inputs.Entries[2].Spec.Address = addr, addr, addr.String()
		for i, names := range []string{"bc", "cd", "bc"} {
			nameSuccessors(&inputs.Entries[i], names)
		}
		result := placement.Place(inputs)
		for i, want := range []string{"b 2, c 3", "c 2, d 3", "d 4, b 2"} {
			if got := successorsOf(&result, inputs.Addresses[i].Addr); got != want {
				t.Errorf("%s beside %s has %q, want %q", inputs.Addresses[i].Addr, addr, got, want)
			}
		}
	}
}

// TestMostNamedWatch names five nodes as successors of node a's addresses, and at most four may watch node a. The
// manager keeps the four that it has named for most addresses. It names node e no more, not even for the address that
// no other node may have.
func TestMostNamedWatch(t *testing.T) {
	named := []string{"bf", "cf", "df", "ef", "bc", "bd", "e"}
	inputs := held(t, "a b c d e f", len(named))
	for i, names := range named {
		nameSuccessors(&inputs.Entries[i], names)
	}
	last := len(named) - 1
	inputs.Addresses[last].ServingNodes = map[string]bool{"a": true, "e": true}
	result := placement.Place(inputs)
	for i, names := range named {
		got := successorsOf(&result, inputs.Addresses[i].Addr)
		if count := len(strings.Split(got, ", ")); strings.Contains(got, "e ") || (got == "") != (i == last) || count > 2 {
			t.Errorf("%s of %s has %q", inputs.Addresses[i].Addr, names, got)
		}
		for _, s := range inputs.Entries[i].Spec.Successors {
			if s.NodeName != "e" && !strings.Contains(got, fmt.Sprintf("%s %d", s.NodeName, s.Epoch)) {
				t.Errorf("%s of %s has %q, without %s", inputs.Addresses[i].Addr, names, got, s.NodeName)
			}
		}
	}
}

// TestSecondBecomesFirst has four addresses with the same two successors: of one of them the second becomes the first,
// whatever other node ranks higher for the address.
func TestSecondBecomesFirst(t *testing.T) {
	for last := range byte(20) {
		inputs := held(t, "a b c d e", 4)
		for i, host := range []byte{1, 2 + last, 100, 101} {
			addr, e := netip.AddrFrom4([4]byte{10, 0, 0, host}), &inputs.Entries[i]
			inputs.Addresses[i].Addr, e.Addr, e.Spec.Address = addr, addr, addr.String()
			nameSuccessors(e, "bc")
		}
		result := placement.Place(inputs)
		for i, want := range []string{"b 2, c 3", "c 3, b 2"} {
			if got := successorsOf(&result, inputs.Addresses[i].Addr); got != want {
				t.Errorf("%s has %q, want %q", inputs.Addresses[i].Addr, got, want)
			}
		}
	}
}

// TestEarlySpread has the addresses of a node spread over its successors also while no further ones may be named.
func TestEarlySpread(t *testing.T) {
	inputs := held(t, "a b c", 2)
	for i := range inputs.Entries {
		nameSuccessors(&inputs.Entries[i], "bc")
		inputs.Entries[i].UnchangedFor = 0
	}
	result := placement.Place(inputs)
	for i, want := range []string{"b 2, c 3", "c 3, b 2"} {
		if got := successorsOf(&result, inputs.Addresses[i].Addr); got != want {
			t.Errorf("%s has %q, want %q", inputs.Addresses[i].Addr, got, want)
		}
	}
}

// TestSuccessorsDeadline looks again when a holder has had its address for a second.
func TestSuccessorsDeadline(t *testing.T) {
	for unchanged, want := range map[time.Duration]time.Duration{
		0: time.Second, 400 * time.Millisecond: 600 * time.Millisecond, time.Second: 0, time.Hour: 0,
	} {
		for _, names := range []bool{true, false} {
			inputs := held(t, "a b", 1)
			inputs.Entries[0].UnchangedFor, inputs.NamesSuccessors = unchanged, names
			if !names {
				want = 0
			}
			if got := nextDeadline(inputs); got != want {
				t.Errorf("after %s, naming %t: %s, want %s", unchanged, names, got, want)
			}
		}
	}
}

// TestSuccessorIsReplacedLate lets the agent of a named successor not renew its Lease: for half a minute nothing is
// written, as its agent may restart, and then another node is named.
func TestSuccessorIsReplacedLate(t *testing.T) {
	addr, now := netip.MustParseAddr("10.0.0.1"), time.Unix(1000, 0)
	var clocks placement.Clocks
	for i, step := range []struct {
		after     time.Duration
		nodes     string
		want      string
		wantsNext time.Duration
	}{
		{0, "a b c d", "b 2, c 3", 0},
		{time.Second, "a b:expired c d", "b 2, c 3", placement.ReplacementPatience},
		{20 * time.Second, "a b:expired c d", "b 2, c 3", placement.ReplacementPatience - 20*time.Second},
		{time.Second, "a b c d", "b 2, c 3", 0},
		{time.Hour, "a b:late c d", "b 2, c 3", 0},
		{time.Second, "a b:expired c d", "b 2, c 3", placement.ReplacementPatience},
		{placement.ReplacementPatience - 1, "a b:expired c d", "b 2, c 3", 1},
		{1, "a b:expired c d", "c 3, d 4", 0},
		{time.Second, "a b:expired c:expired d:expired", "b 2, c 3", 0}, // most do not renew: that counts for none
		{time.Hour, "a b:expired c:expired d:expired", "b 2, c 3", 0},
		{time.Second, "a b:expired c d", "b 2, c 3", placement.ReplacementPatience},
		{time.Second, "a b c d", "b 2, c 3", 0},
		// Most are switched off.
		{
			time.Second, "a b:expired,notready c:expired,notready d:expired,notready e", "b 2, c 3", placement.NotReadyPatience,
		},
		{
			placement.NotReadyPatience, "a b:expired,notready c:expired,notready d:expired,notready e", "b 2, c 3",
			placement.ReplacementPatience - placement.NotReadyPatience,
		},
		{
			placement.ReplacementPatience - placement.NotReadyPatience,
			"a b:expired,notready c:expired,notready d:expired,notready e", "e 4", 0,
		},
	} {
		now = now.Add(step.after)
		inputs := held(t, step.nodes, 1)
		inputs.Entries[0].Spec.Successors = []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}
		inputs.Entries[0].Spec.HighestEpoch = 3
		clocks.FillDurations(&inputs, now)
		inputs.Entries[0].UnchangedFor = time.Minute
		result := placement.Place(inputs)
		if got := successorsOf(&result, addr); got != step.want || result.NextDeadline != step.wantsNext {
			t.Errorf("step %d: %q, and again in %s; want %q, and %s", i, got, result.NextDeadline, step.want, step.wantsNext)
		}
	}
	inputs := held(t, "a b:expired c d", 1)
	clocks = placement.Clocks{} // of a manager that has just become the leader
	clocks.FillDurations(&inputs, now)
	if inputs.Nodes[1].ExpiredFor != 0 || inputs.Nodes[1].IsExpiredForLong {
		t.Errorf("a new leader counts from %s", inputs.Nodes[1].ExpiredFor)
	}
}

// TestAllWatchersExpire has the Leases of all four watchers of a node expire at once, be it that the third and fourth
// are fresh: other nodes are named for the addresses that have no fresh successor, and the others keep theirs.
func TestAllWatchersExpire(t *testing.T) {
	named := [][]v1.Successor{
		{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, {{NodeName: "c", Epoch: 2}, {NodeName: "d", Epoch: 3}},
		{{NodeName: "d", Epoch: 2}, {NodeName: "e", Epoch: 3}}, {{NodeName: "e", Epoch: 2}, {NodeName: "b", Epoch: 3}},
	}
	for _, row := range []struct {
		nodes    string
		replaced []bool // by address
	}{
		{"a b:expired c:expired d:expired e:expired f g h i j", []bool{true, true, true, true}},
		{"a b:expired c:expired d e f g h i j", []bool{true, false, false, false}},
		{"a b c d e f g h i j", []bool{false, false, false, false}},
	} {
		inputs := held(t, row.nodes, len(named))
		for i := range inputs.Entries {
			inputs.Entries[i].Spec.Successors, inputs.Entries[i].Spec.HighestEpoch = named[i], 3
		}
		result := placement.Place(inputs)
		for i := range inputs.Entries {
			before := fmt.Sprintf("%s 2, %s 3", named[i][0].NodeName, named[i][1].NodeName)
			got := successorsOf(&result, inputs.Addresses[i].Addr)
			isReplaced := strings.Count(got, ",") == 1 && !strings.ContainsAny(got, "bc") && strings.Contains(got, " 4") &&
				strings.Contains(got, " 5")
			if row.replaced[i] && (!isReplaced || i == 3 && strings.Contains(got, "e ")) || !row.replaced[i] && got != before {
				t.Errorf("%s: address %d has %s, and had %s; want others %t", row.nodes, i, got, before, row.replaced[i])
			}
		}
	}
}

// TestExpiredWatchersAreReplacedInTime lets the Leases of the four nodes expire that watch node a. The third address of
// node a has no successor yet: the manager names a fifth node for it only once it may replace one of the four.
func TestExpiredWatchersAreReplacedInTime(t *testing.T) {
	inputs := held(t, "a b:expired c:expired d:expired e:expired f g h i j", 3)
	for i, names := range []string{"bc", "de"} {
		nameSuccessors(&inputs.Entries[i], names)
		inputs.Entries[i].UnchangedFor = 0
	}
	result := placement.Place(inputs)
	for i, want := range []string{"b 2, c 3", "d 2, e 3", ""} {
		if got := successorsOf(&result, inputs.Addresses[i].Addr); got != want {
			t.Errorf("%s has %q, want %q", inputs.Addresses[i].Addr, got, want)
		}
	}
}

// TestAgentRestartChangesNoSuccessor has the Lease of one node expire after the other, in clusters of all kinds: all
// addresses keep the successors that they have.
func TestAgentRestartChangesNoSuccessor(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 4))
		inputs := held(t, strings.Join(strings.Split("abcdefghijkl"[:3+rng.IntN(10)], ""), " "), 1+rng.IntN(40))
		preference := &placement.Preference{Nodes: []placement.PreferredNodes{
			{Weight: 1, Selector: labels.SelectorFromSet(labels.Set{"tier": "1"})},
		}}
		for i := range inputs.Nodes {
			inputs.Nodes[i].Labels = map[string]string{"tier": fmt.Sprint(rng.IntN(3))}
		}
		for i := range inputs.Addresses {
			a := &inputs.Addresses[i]
			if rng.IntN(2) == 0 {
				a.Preference = preference
			}
			if rng.IntN(3) == 0 {
				a.ServingNodes = map[string]bool{"a": true}
				for range 3 {
					a.ServingNodes[inputs.Nodes[rng.IntN(len(inputs.Nodes))].Name] = true
				}
			}
		}
		for range 3 {
			result := placement.Place(inputs)
			realise(&inputs, &result)
		}
		before := slices.Clone(inputs.Entries)
		for i := range inputs.Nodes[1:] {
			n := &inputs.Nodes[i+1]
			n.Liveness = []placement.Liveness{placement.Expired, placement.Late}[rng.IntN(2)]
			result := placement.Place(inputs)
			n.Liveness = placement.Fresh
			for k := range before {
				e := &before[k]
				placed := result.Entries["a"][slices.IndexFunc(
					result.Entries["a"], func(p placement.Placed) bool { return p.Addr == e.Addr },
				)]
				if !slices.Equal(e.Spec.Successors, placed.Successors) {
					t.Errorf("seed %d: while %s does not renew, %s has %v, and had %v",
						seed, n.Name, e.Addr, placed.Successors, e.Spec.Successors)
				}
			}
		}
	}
}
