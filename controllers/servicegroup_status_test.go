package controllers

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// TestSubnetNotFoundWhileANodeJoins shows what a group says of its subnet before and while a node has yet to report its
// interfaces, and after: a condition that is there stays meanwhile, and none comes.
func TestSubnetNotFoundWhileANodeJoins(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                    string
		isStored, isMissing     bool
		areFactsComplete, wants bool
	}{
		{"missing", false, true, true, true}, {"found", true, false, true, false},
		{"missing as it seems", false, true, false, false}, {"missing, and a node joins", true, true, false, true},
		{"found, and a node joins", true, false, false, false},
	} {
		inputs := &groupInputs{
			verdict: &allocation.Verdict{Reason: v1.ReasonInvalid}, areFactsComplete: row.areFactsComplete,
		}
		if row.isMissing {
			inputs.subnetsNotFound = []netip.Prefix{netip.MustParsePrefix("10.70.0.0/24")}
		}
		sg := &v1.ServiceGroup{}
		if row.isStored {
			setWhileTrue(&sg.Status.Conditions, 0, v1.ConditionSubnetNotFound, v1.ReasonSubnetNotFound, "no node is in it")
		}
		status := groupStatus(sg, inputs)
		if got := meta.IsStatusConditionTrue(status.Conditions, v1.ConditionSubnetNotFound); got != row.wants {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}

// TestGroupsFollowReadiness checks which changes of a Node's readiness wake the ServiceGroups.
func TestGroupsFollowReadiness(t *testing.T) {
	t.Parallel()
	r := &ServiceGroupReconciler{IPAM: &ExternalIPAM{}}
	watches := slices.DeleteFunc(r.Component().Watches, func(w Watch) bool {
		_, isOfNodes := w.Object.(*corev1.Node)
		return !isOfNodes
	})
	if len(watches) != 1 {
		t.Fatalf("%d watches of Nodes", len(watches))
	}
	nodeWith := func(ready corev1.ConditionStatus, reason string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, Reason: reason},
		}}}
	}
	for _, row := range []struct {
		before, after *corev1.Node
		want          bool
	}{
		{nodeWith("False", ""), nodeWith("True", ""), true}, {nodeWith("True", ""), nodeWith("Unknown", ""), true},
		{&corev1.Node{}, nodeWith("True", ""), true}, {nodeWith("True", "a"), nodeWith("True", "b"), false},
	} {
		if got := watches[0].Changed.Update(event.UpdateEvent{ObjectOld: row.before, ObjectNew: row.after}); got != row.want {
			t.Errorf("from %v to %v: %t", row.before.Status.Conditions, row.after.Status.Conditions, got)
		}
	}
}

// TestStatusOfGroupOutOfScope has groups outside of the manager's namespace. One of NetBox has ranges in its status, as
// from a manager of that namespace, and none of them counts.
func TestStatusOfGroupOutOfScope(t *testing.T) {
	t.Parallel()
	r := &ServiceGroupReconciler{Namespace: "purelb-system"}
	local := oneAddress("a", "10.0.0.1")
	netbox := &v1.ServiceGroup{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	netbox.Spec.Netbox = &v1.NetboxPools{URL: "https://netbox.example", Tenant: "lab"}
	netbox.Spec.Netbox.TokenSecretRef.Name, netbox.Spec.Netbox.TokenSecretRef.Key = "netbox", "token"
	netbox.Status.Pools = []v1.PoolStatus{{Range: "10.0.0.0-10.0.0.255", Subnet: "10.0.0.0/24"}}
	for name, sg := range map[string]*v1.ServiceGroup{"local": local, "netbox": netbox} {
		sg.Namespace = "elsewhere"
		inputs, err := r.gather(t.Context(), sg)
		if err != nil {
			t.Fatal(err)
		}
		status := groupStatus(inputs.group, inputs)
		ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1.ReasonOutOfScope {
			t.Errorf("%s: condition Ready is %v", name, ready)
		}
		if len(status.Pools) > 0 || status.AvailableIPv4 > 0 {
			t.Errorf("%s: %v, %d available", name, status.Pools, status.AvailableIPv4)
		}
	}
}
