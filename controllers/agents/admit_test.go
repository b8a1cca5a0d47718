package agents_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
)

func selecting(name string, selector map[string]string) v1.LBNodeAgent {
	return v1.LBNodeAgent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.LBNodeAgentSpec{NodeSelector: selector}}
}

// TestWarnings has what the table through the API server has not: no nodes,
// many, and LBNodeAgents that go.
func TestWarnings(t *testing.T) {
	nodes := func(n int) []corev1.Node {
		var all []corev1.Node
		for i := range n {
			all = append(
				all, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{"a": "b"}}},
			)
		}
		return all
	}
	const rule = " (a selector comes before none, then the first by name)"
	going := selecting("a", nil)
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for _, row := range []struct {
		name   string
		a      v1.LBNodeAgent
		others []v1.LBNodeAgent
		nodes  int
		want   []string
	}{
		{"alone", selecting("b", nil), nil, 2, nil},
		{"no nodes", selecting("b", nil), nil, 0, []string{"spec.nodeSelector: selects none of the cluster's nodes, now"}},
		{"itself as stored", selecting("b", nil), []v1.LBNodeAgent{selecting("b", map[string]string{"a": "b"})}, 2, nil},
		{"beside one that goes", selecting("b", nil), []v1.LBNodeAgent{going}, 2, nil},
		{"five", selecting("b", nil), []v1.LBNodeAgent{selecting("a", nil)}, 5,
			[]string{"spec.nodeSelector: LBNodeAgent a comes before this one on nodes n0, n1, n2, n3, n4" + rule}},
		{"six", selecting("b", map[string]string{"a": "b"}), []v1.LBNodeAgent{selecting("a", nil)}, 6,
			[]string{"spec.nodeSelector: this LBNodeAgent comes before a on nodes n0, n1, n2, n3, n4 and 1 more" + rule}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, agents.SelectionWarnings(&row.a, row.others, nodes(row.nodes))); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestValidateEmpty accepts what the API server has filled nothing in of.
func TestValidateEmpty(t *testing.T) {
	for _, a := range []v1.LBNodeAgent{
		{},
		{Spec: v1.LBNodeAgentSpec{Local: &v1.LBNodeAgentLocal{}}},
		{
			Spec: v1.LBNodeAgentSpec{
				Local: &v1.LBNodeAgentLocal{AddressConfig: &v1.AddressConfig{LocalInterface: &v1.InterfaceAddressConfig{}}},
			},
		},
	} {
		if errs := agents.Validate(&a); len(errs) > 0 {
			t.Error(errs)
		}
	}
}

// TestWithdrawal answers to a deletion, and to changes that may be one for some addresses.
func TestWithdrawal(t *testing.T) {
	withSelector := func(selector map[string]string, subnets ...string) *v1.LBNodeAgent {
		a := &v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{NodeSelector: selector}}
		if subnets != nil {
			a.Spec.Local = &v1.LBNodeAgentLocal{Subnets: subnets}
		}
		return a
	}
	rack := map[string]string{"rack": "a"}
	logging := withSelector(rack)
	logging.Spec.LogLevel, logging.Spec.Local = "debug", &v1.LBNodeAgentLocal{LocalInterface: "en.*"}
	for _, row := range []struct {
		name          string
		before, after *v1.LBNodeAgent
		want          string
	}{
		{"a selector", withSelector(nil), withSelector(rack), "spec.nodeSelector"},
		{
			"another selector", withSelector(rack, "10.0.0.0/24"), withSelector(map[string]string{"rack": "b"}, "10.0.0.0/24"),
			"spec.nodeSelector",
		},
		{"subnets", withSelector(rack), withSelector(rack, "10.0.0.0/24"), "spec.local.subnets"},
		{"no subnets", withSelector(rack, "10.0.0.0/24"), withSelector(rack), "spec.local.subnets"},
		{"another selector and subnets", withSelector(nil), withSelector(rack, "10.0.0.0/24"), "spec"},
		{"other settings", withSelector(rack), logging, ""},
		{"a new one", nil, withSelector(rack), "spec.local.subnets"},
	} {
		got := ""
		if path := agents.StrandingField(row.before, row.after); path != nil {
			got = path.String()
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}

	const leaves = "leaves 1 address in use by 1 Service (a/b) without a node to announce them: "
	for value, isMeant := range map[string]bool{"": false, "false": false, "yes": false, "true": true} {
		a := &v1.LBNodeAgent{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.AnnotationAllowWithdrawal: value}},
		}
		warning, refusal := agents.AdmitWithdrawal(a, "1 address in use by 1 Service (a/b)")
		wantWarning, wantRefusal := leaves+"their agents withdraw them", ""
		if !isMeant {
			wantWarning, wantRefusal = "",
				leaves+"let another LBNodeAgent select nodes that can, or annotate the LBNodeAgent with "+
					"purelb.io/allow-withdrawal=true, and their agents withdraw them"
		}
		if warning != wantWarning || refusal != wantRefusal {
			t.Errorf("%q: warning %q, refusal %q", value, warning, refusal)
		}
	}
}
