package placement_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// watched are the inputs of address 10.0.0.1, which node a holds by epoch 1, and which b and c watch.
func watched(t *testing.T, ns string) placement.Inputs {
	t.Helper()
	inputs, addr := challenged(t, ns, nil)
	inputs.LocalSubnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	inputs.SlowsLeases = true
	inputs.Watches = map[placement.Watch]bool{
		{Watcher: "b", Holder: "a", Addr: addr, Epoch: 1}: true, {Watcher: "c", Holder: "a", Addr: addr, Epoch: 1}: true,
	}
	return inputs
}

// heartbeatsAfter returns how often nodes are to renew their Leases, and when that may change, after the inputs have
// been the same for a while.
func heartbeatsAfter(inputs *placement.Inputs, while time.Duration) (map[string]int32, time.Duration) {
	clocks, now := placement.Clocks{}, time.Unix(1000, 0)
	clocks.FillDurations(inputs, now)
	clocks.FillDurations(inputs, now.Add(while))
	result := placement.Place(*inputs)
	return result.HeartbeatSeconds, result.NextDeadline
}

// TestSlowLeases compares which nodes are to renew their Leases each second, when all has been as it is for long: those
// that may have to be replaced within seconds, and would not be if the Lease did not say so.
func TestSlowLeases(t *testing.T) {
	t.Parallel()
	unwatched := func(watcher string) func(*placement.Inputs) {
		return func(f *placement.Inputs) {
			delete(f.Watches, placement.Watch{Watcher: watcher, Holder: "a", Addr: f.Entries[0].Addr, Epoch: 1})
		}
	}
	ofEntry := func(change func(*placement.Entry)) func(*placement.Inputs) {
		return func(f *placement.Inputs) { change(&f.Entries[0]) }
	}
	for _, row := range []struct {
		name, nodes string
		change      func(*placement.Inputs)
		wantQuick   []string
	}{
		{name: "both successors watch", nodes: "a b c d"},
		{name: "no subnet is Local", nodes: "a b c d", change: func(f *placement.Inputs) { f.LocalSubnets = nil }},
		{
			name: "without the feature gate", nodes: "a b c d", change: func(f *placement.Inputs) { f.SlowsLeases = false },
			wantQuick: []string{"a", "b", "c", "d"},
		},
		{
			name: "with quick Leases until now, of which one is late", nodes: "a b:late c d",
			change: func(f *placement.Inputs) {
				for i := range f.Nodes {
					f.Nodes[i].HeartbeatSeconds = 1
				}
			},
		},

		// Nobody would notice that the holder is dead.
		{name: "the first successor does not watch", nodes: "a b c d", change: unwatched("b"), wantQuick: []string{"a"}},
		{name: "the second successor does not watch", nodes: "a b c d", change: unwatched("c"), wantQuick: []string{"a"}},
		{
			name: "they watch by another epoch", nodes: "a b c d",
			change:    ofEntry(func(e *placement.Entry) { e.Spec.Epoch = 0 }),
			wantQuick: []string{"a"},
		},
		{
			name: "there is one successor", nodes: "a b c d",
			change:    ofEntry(func(e *placement.Entry) { e.Spec.Successors = e.Spec.Successors[:1] }),
			wantQuick: []string{"a"},
		},
		{name: "a successor is late", nodes: "a b:late c d", wantQuick: []string{"a", "b"}},
		{name: "a successor is expired", nodes: "a b c:expired d", wantQuick: []string{"a", "c"}},
		{name: "a successor is NotReady", nodes: "a b c:notready d", wantQuick: []string{"a", "c"}},
		{name: "a successor is gone", nodes: "a b:gone c d", wantQuick: []string{"a"}},
		{name: "failover is disabled at the holder", nodes: "a:disabled b c d", wantQuick: []string{"a"}},
		{name: "another node is expired", nodes: "a b c d:expired", wantQuick: []string{"d"}},

		// The address may be about to move.
		{
			name: "the holder has yet to announce it", nodes: "a b c d", change: reports(v1.StatePending),
			wantQuick: []string{"a"},
		},
		{
			name: "it is handed over", nodes: "a b c d",
			change:    ofEntry(func(e *placement.Entry) { e.Spec.HandingOver = true }),
			wantQuick: []string{"a"},
		},
		{name: "a claim is contested", nodes: "a b c d", change: contests("b", 2, true), wantQuick: []string{"a"}},
		{name: "the holder leaves", nodes: "a:leaving b c d", wantQuick: []string{"a"}},
		{name: "the holder is out of service", nodes: "a:out b c d", wantQuick: []string{"a"}},
		{name: "the holder shuts down", nodes: "a:shutdown b c d", wantQuick: []string{"a"}},
		{name: "the holder is NotReady", nodes: "a:notready b c d", wantQuick: []string{"a"}},
		{name: "the holder is late", nodes: "a:late b c d", wantQuick: []string{"a"}},
		{
			name: "the holder is asked to hand another address over", nodes: "a b c d",
			change:    func(f *placement.Inputs) { f.Nodes[0].AddressToHandOver = netip.MustParseAddr("10.0.0.9") },
			wantQuick: []string{"a"},
		},
		{
			name: "a successor has claimed it", nodes: "a b c d",
			change: func(f *placement.Inputs) {
				f.AddClaims([]placement.SuccessorClaim{{Node: "b", Addr: f.Entries[0].Addr, Epoch: 2}})
			},
			wantQuick: []string{"a", "b"},
		},
		{
			name: "a node announces what nothing asks it for", nodes: "a b c d",
			change: func(f *placement.Inputs) {
				f.LingeringReports = map[netip.Addr][]placement.LingeringReport{
					netip.MustParseAddr("10.0.0.9"): {{Node: "d"}},
				}
			},
			wantQuick: []string{"d"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			inputs := watched(t, row.nodes)
			for i := range inputs.Nodes {
				inputs.Nodes[i].HeartbeatSeconds = 10
			}
			if row.change != nil {
				row.change(&inputs)
			}
			want := map[string]int32{}
			for i := range inputs.Nodes {
				if n := &inputs.Nodes[i]; n.LBNodeAgent != "" {
					want[n.Name] = 10
				}
			}
			for _, name := range row.wantQuick {
				want[name] = 1
			}
			got, _ := heartbeatsAfter(&inputs, time.Hour)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("heartbeats (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSlowLeasesLater checks that a node is to renew less often only after it has not been in doubt for a while, and
// that another leader, which knows of no while, leaves what is stored.
func TestSlowLeasesLater(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		stored int32
		while  time.Duration
		want   int32
		// changesIn is how long it takes until the node is to renew less often.
		changesIn time.Duration
	}{
		{0, 0, 1, placement.DoubtPatience},
		{1, 0, 1, placement.DoubtPatience},
		{1, placement.DoubtPatience - time.Second, 1, time.Second},
		{1, placement.DoubtPatience, 10, 0},
		{10, 0, 10, 0},
	} {
		inputs := watched(t, "a b c d")
		for i := range inputs.Nodes {
			inputs.Nodes[i].HeartbeatSeconds = row.stored
		}
		got, next := heartbeatsAfter(&inputs, row.while)
		if want := map[string]int32{"a": row.want, "b": row.want, "c": row.want, "d": row.want}; !cmp.Equal(want, got) {
			t.Errorf("%d s stored, after %s: %v", row.stored, row.while, got)
		}
		if row.changesIn > 0 && (next <= 0 || next > row.changesIn) {
			t.Errorf("%d s stored, after %s: looks again in %s, want %s at most", row.stored, row.while, next, row.changesIn)
		}
	}
}

// TestSlowLeasesInDoubtAgain checks that a doubt begins the while anew, and that a node of the same name as one that is
// gone is not sure at once.
func TestSlowLeasesInDoubtAgain(t *testing.T) {
	t.Parallel()
	clocks, now := placement.Clocks{}, time.Unix(1000, 0)
	look := func(ns string, after time.Duration) int32 {
		inputs := watched(t, ns)
		now = now.Add(after)
		clocks.FillDurations(&inputs, now)
		return placement.Place(inputs).HeartbeatSeconds["a"]
	}
	for i, step := range []struct {
		nodes string
		after time.Duration
		want  int32
	}{
		{"a b c d", 0, 1},
		{"a b c d", 20 * time.Second, 1},
		{"a:expired b c d", time.Second, 1},
		{"a b c d", time.Second, 1},
		{"a b c d", 29 * time.Second, 1},
		{"a b c d", time.Second, 10},
		{"b c d", time.Second, 0},
		{"a b c d", time.Second, 1},
	} {
		if got := look(step.nodes, step.after); got != step.want {
			t.Errorf("step %d: each %d s, want %d", i, got, step.want)
		}
	}
}
