package agents_test

import (
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
