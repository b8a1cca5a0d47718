package agents_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

// TestLabelActionOf has a node whose label says a, and which is to run b.
func TestLabelActionOf(t *testing.T) {
	all := []v1.LBNodeAgent{selecting("a", map[string]string{"a": "yes"}), selecting("b", nil)}
	node := map[string]string{v1.LabelAgent: "a"}
	announcement := func(change func(*v1.Announcement)) v1.Announcement {
		a := v1.Announcement{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1.AnnouncementSpec{AgentLeaving: true}}
		a.Status.ObservedGeneration = 2
		change(&a)
		return a
	}
	withdrawn := announcement(func(*v1.Announcement) {})
	for _, row := range []struct {
		name   string
		node   map[string]string
		has    []v1.Announcement
		silent bool
		want   agents.LabelAction
	}{
		{"the agent that it is to run", map[string]string{v1.LabelAgent: "b"}, nil, false, agents.KeepLabel},
		{"no label yet", nil, nil, false, agents.ChangeLabel},
		{"a label of no LBNodeAgent", map[string]string{v1.LabelAgent: "c"}, nil, false, agents.ChangeLabel},
		{"no Announcement, so no report", node, nil, false, agents.AwaitWithdrawal},
		{"all withdrawn", node, []v1.Announcement{withdrawn, withdrawn}, false, agents.ChangeLabel},
		{
			"not told to leave", node, []v1.Announcement{announcement(func(a *v1.Announcement) { a.Spec.AgentLeaving = false })},
			false, agents.AwaitWithdrawal,
		},
		{
			"to announce the shared entries", node,
			[]v1.Announcement{announcement(func(a *v1.Announcement) { a.Spec.IncludeCommonAnnouncements = true })}, false,
			agents.AwaitWithdrawal,
		},
		{"to announce an address", node, []v1.Announcement{announcement(func(a *v1.Announcement) {
			a.Spec.Addresses = []v1.AnnouncedAddress{{Address: "10.0.0.1"}}
		})}, false, agents.AwaitWithdrawal},
		{"a second Announcement with an address", node, []v1.Announcement{withdrawn, announcement(func(a *v1.Announcement) {
			a.Spec.Addresses = []v1.AnnouncedAddress{{Address: "10.0.0.1"}}
		})}, false, agents.AwaitWithdrawal},
		{"an address reported", node, []v1.Announcement{announcement(func(a *v1.Announcement) {
			a.Status.Addresses = []v1.AddressStatus{{Address: "10.0.0.1"}}
		})}, false, agents.AwaitWithdrawal},
		{"the shared entries reported", node, []v1.Announcement{announcement(func(a *v1.Announcement) {
			a.Status.CommonAnnouncementsRevision = ptr.To[int64](0)
		})}, false, agents.AwaitWithdrawal},
		{
			"a report of an earlier generation", node,
			[]v1.Announcement{announcement(func(a *v1.Announcement) { a.Status.ObservedGeneration = 1 })}, false,
			agents.AwaitWithdrawal,
		},
		{"silent", node, nil, true, agents.ChangeLabelOfLostAgent},
		{"silent, and all withdrawn before", node, []v1.Announcement{withdrawn}, true, agents.ChangeLabel},
	} {
		if got := agents.LabelActionOf(all, row.node, row.has, row.silent); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// TestWarningsOfMixedNodes has nodes of which some are not selected, or selected by no
// other.
func TestWarningsOfMixedNodes(t *testing.T) {
	labelled := func(name string, labels map[string]string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	nodes := []corev1.Node{
		labelled("n1", nil), labelled("n2", map[string]string{"mine": "yes"}),
		labelled("n3", map[string]string{"mine": "yes", "other": "yes"}),
	}
	for _, row := range []struct {
		other string
		want  string
	}{
		{
			"a",
			"spec.nodeSelector: LBNodeAgent a comes before this one on node n3 (a selector comes before none, then the first " +
				"by name)",
		},
		{
			"c",
			"spec.nodeSelector: this LBNodeAgent comes before c on node n3 (a selector comes before none, then the first by " +
				"name)",
		},
	} {
		mine := selecting("b", map[string]string{"mine": "yes"})
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}} {
			var ordered []corev1.Node
			for _, i := range order {
				ordered = append(ordered, nodes[i])
			}
			got := agents.SelectionWarnings(
				&mine, []v1.LBNodeAgent{selecting(row.other, map[string]string{"other": "yes"})}, ordered,
			)
			if diff := cmp.Diff([]string{row.want}, got); diff != "" {
				t.Errorf("beside %s (-want +got):\n%s", row.other, diff)
			}
		}
	}
}

// TestTurnsOf has nodes that are to go from LBNodeAgent a to b. They are written as "name: label state", where
// a node without a state runs an agent that works.
func TestTurnsOf(t *testing.T) {
	going := []v1.LBNodeAgent{selecting("a", nil), selecting("b", map[string]string{"rack": "1"})}
	deleted := []v1.LBNodeAgent{selecting("a", nil), selecting("b", nil)}
	deleted[0].DeletionTimestamp = ptr.To(metav1.Now())
	alone := deleted[:1]
	hold := func(n int) []string {
		var nodes []string
		for i := range n {
			nodes = append(nodes, fmt.Sprintf("m%02d: b", i))
		}
		return nodes
	}
	for _, row := range []struct {
		name  string
		all   []v1.LBNodeAgent
		nodes []string
		want  string // the nodes that leave, and behind a / those that are awaited
	}{
		{"nobody goes", []v1.LBNodeAgent{selecting("a", nil)}, []string{"n1: a", "n2: a"}, ""},
		{"no agent has ever run there", going, []string{"n1: b never", "n2: a"}, "n2"},
		{"the first by name", going, []string{"n3: a", "n1: a", "n2: a"}, "n1"},
		{"one has been told", going, []string{"n1: a", "n2: a told"}, "n2"},
		{"one has no new agent yet", going, []string{"n1: b new", "n2: a"}, "/ n1"},
		{"the new agent has yet to report", going, []string{"n1: b unreported", "n2: a"}, "/ n1"},
		{"the new agent does not renew its Lease", going, []string{"n1: b silent", "n2: a"}, "/ n1"},
		{"the new agent works", going, []string{"n1: b", "n2: a", "n3: a"}, "n2"},
		{"a node without an agent is new", going, []string{"n1: ", "n2: a"}, "n2"},
		{"the new agent's node is not Ready", going, []string{"n1: b unready", "n2: a", "n3: a"}, "n2"},
		{"those that are not Ready stay, and hold nobody up", going, []string{"n1: a unready", "n2: a unready", "n3: a"},
			"n3"},
		{"no node is Ready", going, []string{"n1: a unready", "n2: a unready"}, ""},
		{"one that is told and not Ready holds nobody up", going, []string{"n1: a", "n2: a told unready"}, "n1 n2"},
		{"deleted, and another takes over", deleted, []string{"n1: a", "n2: a"}, "n1"},
		{"deleted, and no other takes over", alone, []string{"n1: a", "n2: a"}, "n1 n2"},
		{"one in nine is missing", going, append(hold(9), "n0: b silent", "n1: a"), "/ n0"},
		{"one in ten is missing", going, append(hold(10), "n0: b silent", "n1: a", "n2: a"), "n1"},
		{"one is missing, and nobody waits", going, []string{"n0: b silent", "n1: b"}, ""},
		{"one is missing, and one is on its way", going, []string{"n0: b silent", "n1: a told", "n2: a"}, "n1"},
		{"two at a time", going, append(hold(10), "n1: a", "n2: a", "n3: a"), "n1 n2"},
	} {
		var members []agents.Member
		for _, text := range row.nodes {
			name, rest, _ := strings.Cut(text, ": ")
			label, state, _ := strings.Cut(rest, " ")
			m := agents.Member{
				Name: name, Labels: map[string]string{"rack": "1"}, IsReady: !strings.Contains(state, "unready"),
				IsAlive: !strings.Contains(state, "silent"),
			}
			if label != "" {
				m.Labels[v1.LabelAgent] = label
				m.Announcement = &v1.Announcement{
					ObjectMeta: metav1.ObjectMeta{Generation: 2},
					Spec:       v1.AnnouncementSpec{LBNodeAgent: label, AgentLeaving: strings.Contains(state, "told")},
					Status:     v1.AnnouncementStatus{ObservedGeneration: 2},
				}
			}
			switch state {
			case "new":
				m.Announcement.Spec.LBNodeAgent = "a"
			case "unreported":
				m.Announcement.Status.ObservedGeneration = 1
			case "never":
				m.Announcement.Status.ObservedGeneration = 0
			}
			members = append(members, m)
		}
		turns := agents.TurnsOf(row.all, members)
		got := strings.Join(slices.Sorted(maps.Keys(turns.Leaving)), " ")
		for _, names := range turns.Awaited {
			got = strings.TrimSpace(got + " / " + strings.Join(names, " "))
		}
		if got != row.want {
			t.Errorf("%s: %q leave, want %q", row.name, got, row.want)
		}
	}
}
