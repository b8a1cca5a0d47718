package placement_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// scene is what a placement of 10.0.0.1 is decided from, in the words of TestTransitions and
// TestChallenge. With the gate WireFailover, the entry of node a by epoch 1 names b and c as its
// successors; "contested" is that b contests it.
type scene struct {
	nodes     string
	entries   []string
	lingering string
	gate      bool
	claims    []string
}

func (s scene) inputs(t *testing.T) (placement.Inputs, netip.Addr) {
	t.Helper()
	inputs, addr := onLink(t, s.nodes)
	inputs.NamesSuccessors = s.gate
	for _, text := range s.entries {
		text, isContested := strings.CutSuffix(text, " contested")
		e := entry(t, addr, text)
		if s.gate && e.Node == "a" && e.Spec.Epoch == 1 {
			e.Spec.Successors, e.Spec.HighestEpoch = []v1.Successor{{NodeName: "b", Epoch: 2}, {NodeName: "c", Epoch: 3}}, 3
		}
		if isContested {
			e.Spec.ContestedBy = &v1.Successor{NodeName: "b", Epoch: 2}
		}
		inputs.Entries = append(inputs.Entries, e)
	}
	if name, isLong := strings.CutSuffix(s.lingering, ":long"); name != "" {
		l := placement.LingeringReport{Node: name}
		if isLong {
			l.Age = placement.LingeringTime
		}
		inputs.LingeringReports[addr] = []placement.LingeringReport{l}
	}
	inputs.AddClaims(claimsOf(t, addr, s.claims...))
	return inputs, addr
}

// stored is the entries of a scene in the words of show.
func stored(inputs *placement.Inputs) string {
	result := placement.Result{Entries: map[string][]placement.Placed{}}
	for _, e := range inputs.Entries {
		result.Entries[e.Node] = append(result.Entries[e.Node], placement.Placed{Addr: e.Addr, AnnouncedAddress: e.Spec})
	}
	return show(result)
}

// transition is one of a phase to another: the entries of the scene after it are those that are
// decided in the scene before it.
type transition struct {
	from          placement.Phase
	because       string
	to            placement.Phase
	before, after scene
}

var (
	claimed  = []string{"b 2"}
	adopting = []string{"b 2 aged"}
)

// transitions are those of a Local address that is in use.
var transitions = []transition{
	{placement.WaitingForFacts, "the agent has reported, or is not waited for any longer", placement.Unheld,
		scene{nodes: "a:awaited b"}, scene{nodes: "a b"}},
	{placement.WaitingForFacts, "the agent reports that it announces the address", placement.WaitingForWithdrawal,
		scene{nodes: "a:awaited b"}, scene{nodes: "a b", lingering: "a"}},
	{placement.WaitingForWithdrawal, "the node has withdrawn the address, or 10 s have passed", placement.Unheld,
		scene{nodes: "a b", lingering: "b"}, scene{nodes: "a b", lingering: "b:long"}},
	{placement.Unheld, "a node is elected", placement.Probing,
		scene{nodes: "a"}, scene{nodes: "a", entries: []string{"a 1"}}},
	{placement.Unheld, "a node whose entry was revoked announces the address", placement.Announced,
		scene{nodes: "a", entries: []string{"a 1 waiting"}}, scene{nodes: "a", entries: []string{"a 1 Announced"}}},
	{placement.Probing, "the node announces the address", placement.Announced,
		scene{nodes: "a", entries: []string{"a 1"}}, scene{nodes: "a", entries: []string{"a 1 Announced"}}},
	{placement.Probing, "the node fails, does not report within 5 s and its probes, or may not have the address",
		placement.Unheld,
		scene{nodes: "a b", entries: []string{"a 1 Pending"}}, scene{nodes: "a b", entries: []string{"a 1 Failed"}}},
	{placement.Announced, "the node is not to keep the address", placement.HandingOver,
		scene{nodes: "a b", entries: []string{"a 1 Announced"}}, scene{
			nodes: "a:excluded b", entries: []string{"a 1 Announced"},
		}},
	{placement.Announced, "the holder's Lease expires, or its Node is deleted", placement.FailingOver,
		scene{nodes: "a b", entries: []string{"a 1 Announced"}}, scene{
			nodes: "a:expired b", entries: []string{"a 1 Announced"},
		}},
	{placement.Announced, "a successor reports a claim", placement.Contested,
		scene{nodes: "a b c", gate: true, entries: []string{"a 1 Announced"}}, scene{
			nodes: "a b c", gate: true, entries: []string{"a 1 Announced"}, claims: claimed,
		}},
	{placement.Announced, "the holder reports that another station has the address", placement.Probing,
		scene{nodes: "a b", entries: []string{"a 1 Announced"}}, scene{nodes: "a b", entries: []string{"a 1 Yielded"}}},
	{placement.Announced, "the holder reports that it has failed", placement.Unheld,
		scene{nodes: "a b", entries: []string{"a 1 Announced"}}, scene{nodes: "a b", entries: []string{"a 1 Failed"}}},
	{placement.HandingOver, "the next node announces the address", placement.Announced,
		scene{nodes: "a:excluded b", entries: []string{"a 1 Announced leaving observed"}},
		scene{nodes: "a:excluded b", entries: []string{"a 1 Announced leaving observed", "b 2 Takeover Announced"}}},
	{placement.HandingOver, "the holder may keep the address, and no node was told to take it over", placement.Announced,
		scene{nodes: "a:excluded b", entries: []string{"a 1 Announced"}}, scene{
			nodes: "a b", entries: []string{"a 1 Announced leaving"},
		}},
	{placement.HandingOver, "the holder yields before the next node announces the address", placement.Probing,
		scene{nodes: "a:excluded b", entries: []string{"a 1 Announced leaving observed", "b 2 Takeover"}},
		scene{nodes: "a:excluded b", entries: []string{"a 1 Yielded leaving observed", "b 2 Takeover"}}},
	{placement.HandingOver, "the holder's Lease expires", placement.FailingOver,
		scene{nodes: "a:excluded b", entries: []string{"a 1 Announced"}}, scene{
			nodes: "a:excluded,expired b", entries: []string{"a 1 Announced leaving"},
		}},
	{placement.FailingOver, "the next node announces the address", placement.Announced,
		scene{nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Pending"}}, scene{
			nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Announced"},
		}},
	{placement.FailingOver, "the holder's agent is back, and no node was told to take the address over",
		placement.Announced,
		scene{nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Waiting"}}, scene{
			nodes: "a b", entries: []string{"a 1 Announced", "b 2 Waiting"},
		}},
	{placement.FailingOver, "the holder's agent is back, and its node is not to keep the address", placement.HandingOver,
		scene{nodes: "a:expired b", entries: []string{"a 1 Announced", "b 2 Waiting"}}, scene{
			nodes: "a:excluded b", entries: []string{"a 1 Announced", "b 2 Waiting"},
		}},
	{placement.FailingOver, "the holder's agent is back, and a node was told to take the address over",
		placement.HandingOver,
		scene{nodes: "a:expired,notready b", entries: []string{"a 1 Announced", "b 2 Waiting"}},
		scene{nodes: "a b", entries: []string{"a 1 Announced", "b 2 Takeover"}}},
	{placement.FailingOver, "a successor reports a claim", placement.Contested,
		scene{nodes: "a:expired b:late d", gate: true, entries: []string{"a 1 Announced"}},
		scene{nodes: "a:expired b:late d", gate: true, entries: []string{"a 1 Announced", "d 4"}, claims: claimed}},
	{placement.Contested, "the holder has yielded the address, or has not renewed its Lease within 3 s",
		placement.TakenOver,
		scene{nodes: "a:expired b c", gate: true, entries: []string{"a 1 Announced"}, claims: claimed},
		scene{nodes: "a:expired b c", gate: true, entries: []string{"a 1 Announced"}, claims: adopting}},
	{placement.Contested, "the holder was asked, and announces the address still: it gets an epoch above the claim's",
		placement.Announced,
		scene{nodes: "a b c", gate: true, entries: []string{"a 1 Announced observed contested"}, claims: adopting},
		scene{nodes: "a b c", gate: true, entries: []string{"a 4 Announced"}, claims: adopting}},
	{placement.Contested, "the node is not to keep the address", placement.HandingOver,
		scene{nodes: "a b c", gate: true, entries: []string{"a 1 Announced"}, claims: claimed},
		scene{nodes: "a:excluded b c", gate: true, entries: []string{"a 1 Announced"}, claims: claimed}},
	{placement.TakenOver, "the claimer has its entry", placement.Announced,
		scene{nodes: "a:expired b c", gate: true, entries: []string{"a 1 Announced"}, claims: adopting},
		scene{
			nodes: "a:expired b c", gate: true, entries: []string{"a 1 Announced leaving", "b 2 Takeover"}, claims: adopting,
		}},
}

// TestPhaseTransitions plays each transition.
func TestPhaseTransitions(t *testing.T) {
	for _, tr := range transitions {
		t.Run(fmt.Sprintf("%s to %s: %s", tr.from, tr.to, tr.because), func(t *testing.T) {
			before, addr := tr.before.inputs(t)
			after, _ := tr.after.inputs(t)
			for _, side := range []struct {
				name   string
				inputs placement.Inputs
				want   placement.Phase
			}{{"before", before, tr.from}, {"after", after, tr.to}} {
				verdict, _ := placement.ExplainAddress(side.inputs, addr)
				if verdict.Phase != side.want {
					t.Errorf("%s: %s, want %s", side.name, verdict.Phase, side.want)
				}
			}
			if diff := cmp.Diff(show(placement.Place(before)), stored(&after)); diff != "" {
				t.Errorf("what is decided before is not what stands after (-decided +stands):\n%s", diff)
			}
		})
	}
}

// TestMeanings gives each phase the meaning that stands beside it.
func TestMeanings(t *testing.T) {
	for _, p := range placement.Phases {
		if got := p.Phase.Meaning(); got != p.Meaning {
			t.Errorf("%s means %q, not %q", p.Phase, got, p.Meaning)
		}
	}
	if got := placement.Phase("Unknown").Meaning(); got != "" {
		t.Errorf("a phase that is none means %q", got)
	}
}

// TestPhaseDiagram compares the diagram in the documentation of the package with the transitions
// that TestPhaseTransitions plays.
func TestPhaseDiagram(t *testing.T) {
	var diagram strings.Builder
	isEntered := map[placement.Phase]bool{}
	for _, phase := range placement.Phases {
		leaving := slices.DeleteFunc(slices.Clone(transitions), func(tr transition) bool { return tr.from != phase.Phase })
		if len(leaving) == 0 {
			t.Errorf("%s is never left", phase.Phase)
		}
		fmt.Fprintf(&diagram, "//\t%s: %s\n", phase.Phase, phase.Meaning)
		for _, tr := range leaving {
			fmt.Fprintf(&diagram, "//\t    %s\n//\t        -> %s\n", tr.because, tr.to)
			isEntered[tr.to] = true
		}
	}
	for _, phase := range placement.Phases {
		if !isEntered[phase.Phase] && phase.Phase != placement.WaitingForFacts {
			t.Errorf("%s is never entered", phase.Phase)
		}
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "\n//\n"+diagram.String()+"//\n") {
		t.Errorf("doc.go does not have this diagram:\n%s", diagram.String())
	}
}
