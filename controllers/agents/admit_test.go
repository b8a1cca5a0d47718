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

// TestCheckVirtualInterface has what the webhook's table has not: changes of an LBNodeAgent for nodes n1, which
// reports eth0 and kube-lb0, and n2, which reports eth1.
func TestCheckVirtualInterface(t *testing.T) {
	named := func(virtual string, interfaces ...v1.InterfaceName) *v1.LBNodeAgent {
		return &v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{
			Local: &v1.LBNodeAgentLocal{DummyInterface: v1.InterfaceName(virtual), Interfaces: interfaces},
		}}
	}
	var nodes []corev1.Node
	var announcements []v1.Announcement
	for name, nics := range map[string][]v1.NodeInterface{
		"n1": {{Name: "eth0"}, {Name: "kube-lb0"}}, "n2": {{Name: "eth1"}},
	} {
		nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node": name}}})
		announcements = append(announcements, v1.Announcement{
			Spec: v1.AnnouncementSpec{NodeName: name}, Status: v1.AnnouncementStatus{Interfaces: nics},
		})
	}
	onOne := named("eth1")
	onOne.Spec.NodeSelector = map[string]string{"node": "n1"}
	isLocal := func(node string) string {
		return "is for Local addresses on node " + node + ": name an interface that the agents make, such as kube-lb0"
	}
	const isBoth = "is one of spec.local.interfaces: an interface is for Local addresses or for Virtual ones"
	for _, row := range []struct {
		name          string
		before, after *v1.LBNodeAgent
		want          string
	}{
		{"a new one without local", nil, &v1.LBNodeAgent{}, ""},
		{"the default, which a node reports", nil, named("kube-lb0"), ""},
		{"back to the default", named("lb0"), named(""), ""},
		{"a free name", named("kube-lb0"), named("lb0"), ""},
		{"a name of one node", named("kube-lb0"), named("eth1"), isLocal("n2")},
		{"a name of a node that is not selected", nil, onOne, ""},
		{"the name that it had", named("eth0"), named("eth0", "eth2"), ""},
		{"also for Local addresses, as it was", named("eth0", "eth0"), named("eth0", "eth0"), isBoth},
		{"the default for Local addresses", nil, named("", "eth0", "kube-lb0"), isBoth},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := ""
			for _, err := range agents.CheckVirtualInterface(row.before, row.after, nodes, announcements) {
				if got += err.Detail; err.Field != "spec.local.dummyInterface" {
					t.Errorf("field %s", err.Field)
				}
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}
