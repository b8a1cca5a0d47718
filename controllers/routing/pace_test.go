package routing_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// paceWorld is three nodes with a session each, which is up.
type paceWorld struct {
	specs  map[string]v1.NodeRoutingSpec
	stored map[string]*v1.NodeRouting
}

func newPaceWorld() *paceWorld {
	w := &paceWorld{specs: map[string]v1.NodeRoutingSpec{}, stored: map[string]*v1.NodeRouting{}}
	for _, node := range []string{"n1", "n2", "n3"} {
		w.specs[node] = v1.NodeRoutingSpec{NodeName: node, Peers: []v1.RoutingPeer{
			{Name: "p", Address: "192.0.2.1", HoldSeconds: 9},
		}}
		w.stored[node] = &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: w.specs[node]}
		w.report(node, v1.SessionEstablished)
	}
	return w
}

// edit changes the neighbour of all nodes.
func (w *paceWorld) edit(change func(*v1.RoutingPeer)) {
	for node, spec := range w.specs {
		spec.Peers = slices.Clone(spec.Peers)
		change(&spec.Peers[0])
		w.specs[node] = spec
	}
}

// report has a node's speaker report of the session, by the NodeRouting as it is stored.
func (w *paceWorld) report(node string, state v1.SessionState) {
	w.stored[node].Status = v1.NodeRoutingStatus{
		ObservedGeneration: w.stored[node].Generation,
		Sessions:           []v1.RoutingSession{{Peer: "p", Neighbor: "192.0.2.1", State: state}},
	}
}

// write stores what is to be written, and returns the nodes of which that changes something.
func (w *paceWorld) write(specs map[string]v1.NodeRoutingSpec) []string {
	var written []string
	for _, node := range slices.Sorted(maps.Keys(specs)) {
		if !cmp.Equal(w.stored[node].Spec, specs[node]) {
			next := *w.stored[node]
			next.Spec, next.Generation = specs[node], next.Generation+1
			w.stored[node] = &next
			written = append(written, node)
		}
	}
	return written
}

// TestPace makes one edit of the neighbour of three nodes, and reconciles once.
func TestPace(t *testing.T) {
	hold := func(p *v1.RoutingPeer) { p.HoldSeconds = 90 }
	for _, row := range []struct {
		name    string
		edit    func(*paceWorld)
		want    []string
		waiting int
	}{
		{"nothing changes", func(*paceWorld) {}, nil, 0},
		{"what a session is opened with", func(w *paceWorld) { w.edit(hold) }, []string{"n1"}, 2},
		{"the name", func(w *paceWorld) { w.edit(func(p *v1.RoutingPeer) { p.Name, p.PasswordFile = "q", "" }) },
			[]string{"n1", "n2", "n3"}, 0},
		{"connectTime and BFD", func(w *paceWorld) {
			w.edit(func(p *v1.RoutingPeer) { p.ConnectSeconds, p.BFDMultiplier, p.BFDIntervalMilliseconds = 7, 3, 300 })
		}, []string{"n1", "n2", "n3"}, 0},
		{"a password is asked for", func(w *paceWorld) { w.edit(func(p *v1.RoutingPeer) { p.PasswordFile = "p" }) },
			[]string{"n1", "n2", "n3"}, 0},
		{"another neighbour", func(w *paceWorld) { w.edit(func(p *v1.RoutingPeer) { p.Address = "192.0.2.2" }) },
			[]string{"n1", "n2", "n3"}, 0},
		{"no neighbour", func(w *paceWorld) {
			for node, spec := range w.specs {
				spec.Peers = nil
				w.specs[node] = spec
			}
		}, []string{"n1", "n2", "n3"}, 0},
		{"sessions that are down", func(w *paceWorld) {
			w.report("n2", "Active")
			w.edit(hold)
		}, []string{"n1", "n2"}, 1},
		{"a node that drains", func(w *paceWorld) {
			w.edit(hold)
			for _, node := range []string{"n2", "n3"} {
				spec := w.specs[node]
				spec.DrainSince = &metav1.Time{Time: time.Unix(0, 0)}
				w.specs[node] = spec
			}
		}, []string{"n1", "n2", "n3"}, 0},
		{"a node's first NodeRouting", func(w *paceWorld) {
			w.edit(hold)
			w.stored["n2"].Spec.Peers, w.stored["n2"].Status = nil, v1.NodeRoutingStatus{}
		}, []string{"n1", "n2"}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newPaceWorld()
			row.edit(w)
			paced := routing.Pace(w.specs, w.stored, routing.Turn{}, time.Unix(1000, 0))
			if diff := cmp.Diff(row.want, w.write(paced.Specs)); diff != "" {
				t.Errorf("written (-want +got):\n%s", diff)
			}
			if got := len(paced.NodesWaiting["p"]); got != row.waiting {
				t.Errorf("%d nodes wait, not %d", got, row.waiting)
			}
		})
	}
}

// TestPaceTurns follows one edit through all nodes: whose turn it is after each thing that happens.
func TestPaceTurns(t *testing.T) {
	w := newPaceWorld()
	w.edit(func(p *v1.RoutingPeer) { p.HoldSeconds = 90 })
	turn, now := routing.Turn{}, time.Unix(1000, 0)
	for i, step := range []struct {
		what    string
		after   time.Duration
		happens func()
		turn    string
		written []string
		wait    time.Duration
	}{
		{"the edit", 0, func() {}, "n1", []string{"n1"}, 30 * time.Second},
		{"the speaker has not seen it", time.Second, func() {}, "n1", nil, 29 * time.Second},
		{"the session is opened", time.Second, func() { w.report("n1", "Active") }, "n1", nil, 28 * time.Second},
		{"the session is up", time.Second, func() { w.report("n1", v1.SessionEstablished) }, "n2", []string{"n2"},
			30 * time.Second},
		{"the session stays down", 29 * time.Second, func() { w.report("n2", "Active") }, "n2", nil, time.Second},
		{"for too long", time.Second, func() {}, "n3", []string{"n3"}, 30 * time.Second},
		{"another edit", time.Second, func() { w.edit(func(p *v1.RoutingPeer) { p.HoldSeconds = 60 }) }, "n3",
			[]string{"n2", "n3"}, 29 * time.Second}, // the session of n2 is down anyway
		{"n3 is up by that", time.Second, func() { w.report("n3", v1.SessionEstablished) }, "n1", []string{"n1"},
			30 * time.Second},
		{"n1 is deleted", time.Second, func() { delete(w.specs, "n1"); delete(w.stored, "n1") }, "", nil, 0},
		{"n2 is up", time.Second, func() { w.report("n2", v1.SessionEstablished) }, "", nil, 0},
	} {
		now = now.Add(step.after)
		step.happens()
		paced := routing.Pace(w.specs, w.stored, turn, now)
		turn = paced.Turn
		got := fmt.Sprint(turn.Node, " ", w.write(paced.Specs), " ", paced.Wait)
		if want := fmt.Sprint(step.turn, " ", step.written, " ", step.wait); got != want {
			t.Errorf("step %d, %s: got %s, want %s", i, step.what, got, want)
		}
	}
	for node, stored := range w.stored {
		if got := stored.Spec.Peers[0].HoldSeconds; got != 60 {
			t.Errorf("%s has a hold time of %d s", node, got)
		}
	}
}

// TestPaceKeepsTheRest has a node that waits for its turn: the rest of its NodeRouting does not wait.
func TestPaceKeepsTheRest(t *testing.T) {
	w := newPaceWorld()
	w.edit(func(p *v1.RoutingPeer) { p.HoldSeconds, p.Name = 90, "q" })
	spec := w.specs["n2"]
	spec.Peers = append(spec.Peers, v1.RoutingPeer{Name: "new", Address: "192.0.2.2"})
	spec.Groups = []v1.RoutingGroup{{Name: "g"}}
	w.specs["n2"] = spec
	paced := routing.Pace(w.specs, w.stored, routing.Turn{}, time.Unix(1000, 0))
	if diff := cmp.Diff(map[string][]string{"q": {"n2", "n3"}}, paced.NodesWaiting); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	got := paced.Specs["n2"]
	want := v1.NodeRoutingSpec{
		NodeName: "n2", Groups: []v1.RoutingGroup{{Name: "g"}},
		Peers: []v1.RoutingPeer{{Name: "q", Address: "192.0.2.1", HoldSeconds: 9}, {Name: "new", Address: "192.0.2.2"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("NodeRouting of n2 (-want +got):\n%s", diff)
	}
}
