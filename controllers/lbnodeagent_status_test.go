package controllers

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestAgentStatus gives an LBNodeAgent's status for a DaemonSet of three pods and what is known
// of its nodes.
func TestAgentStatus(t *testing.T) {
	silent := func(names ...string) []silentNode {
		var nodes []silentNode
		for _, name := range names {
			nodes = append(nodes, silentNode{name: name})
		}
		return nodes
	}
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("n%02d", i))
	}
	tests := map[string]struct {
		ready, desired int32
		nodes          agentNodes
		isOld          bool
		want           string
	}{
		"all renew": {
			3, 3, agentNodes{selectedCount: 3, labelledCount: 3}, false, "3 True Accepted 3 of 3 agents are ready",
		},
		"none is wanted": {0, 0, agentNodes{}, false, "0 True Accepted no node is selected"},
		"a pod is not ready": {
			2, 3, agentNodes{selectedCount: 3, labelledCount: 3}, false, "2 False Progressing 2 of 3 agents are ready",
		},
		"one is silent": {
			3, 3, agentNodes{selectedCount: 3, labelledCount: 3, silent: silent("b")}, false,
			"2 False Degraded 2 of 3 agents are ready; the Lease is not renewed by the agent of b: see the log of that agent",
		},
		"all are silent": {
			3, 3, agentNodes{selectedCount: 3, labelledCount: 3, silent: silent("a", "b", "c")}, false,
			"0 False Degraded 0 of 3 agents are ready; the Lease is not renewed by the agent of a, b, c: see the log of that " +
				"agent",
		},
		"many are silent": {
			12, 12, agentNodes{selectedCount: 12, labelledCount: 12, silent: silent(many...)}, false,
			"0 False Degraded 0 of 12 agents are ready; the Lease is not renewed by the agent of n00, n01, n02, n03, n04, " +
				"n05, n06, n07, n08, n09, 2 more: see the log of that agent",
		},
		"silent and not ready": {
			2, 3, agentNodes{selectedCount: 3, labelledCount: 3, silent: silent("b")}, false,
			"2 False Progressing 2 of 3 agents are ready; the Lease is not renewed by the agent of b: see the log of that agent",
		},
		"on a node NotReady": {3, 3, agentNodes{selectedCount: 3, labelledCount: 3, silent: []silentNode{{"b", true}}}, false,
			"2 False Degraded 2 of 3 agents are ready; the Lease is not renewed by the agent of b (the node is not Ready): " +
				"see the log of that agent"},
		// A taint that the pods do not tolerate keeps the agent off one of four nodes.
		"a node without an agent": {
			3, 3, agentNodes{selectedCount: 4, labelledCount: 4, silent: silent("d")}, false,
			"3 True Accepted 3 of 3 agents are ready; selected nodes with taints that spec.tolerations does not tolerate: 1",
		},
		"being replaced": {
			3, 3, agentNodes{selectedCount: 3, labelledCount: 3, silent: silent("a")}, true,
			"2 False Progressing 2 of 3 agents are ready; 0 run the latest specification",
		},
		"no account": {3, 3, agentNodes{
			selectedCount: 3, labelledCount: 3, silent: silent("a", "b", "c"), hasNoAccount: true,
		}, false,
			"0 False Degraded 0 of 3 agents are ready; the service account of the agents does not exist: no agent can start, " +
				"and those that run cannot renew their Leases"},
		"nodes leave": {3, 3, agentNodes{selectedCount: 1, labelledCount: 3, leaving: []string{"b", "c"}}, false,
			"3 False Progressing nodes that have yet to withdraw their addresses: 2 (b, c)"},
		"nodes leave for others": {3, 3, agentNodes{
			selectedCount: 1, labelledCount: 3, leaving: []string{"b", "c"}, next: []string{"x"}, awaited: []string{"x on a"},
		}, false,
			"3 False Progressing nodes that have yet to withdraw their addresses: 2 (b, c); those that go to another " +
				"LBNodeAgent do so one after another; they wait for the agents of LBNodeAgent x on a"},
		"no account and no node": {0, 0, agentNodes{hasNoAccount: true}, false, "0 True Accepted no node is selected"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ds := &appsv1.DaemonSet{
				Status: appsv1.DaemonSetStatus{
					DesiredNumberScheduled: test.desired, UpdatedNumberScheduled: test.desired, NumberReady: test.ready,
				},
			}
			if test.isOld {
				ds.Status.UpdatedNumberScheduled = 0
			}
			tolerant := &v1.LBNodeAgent{Spec: v1.LBNodeAgentSpec{Tolerations: []corev1.Toleration{{Key: "gpu"}}}}
			status := lbNodeAgentStatus(tolerant, ds, test.nodes)
			c := status.Conditions[0]
			if status.Nodes != fmt.Sprintf("%d/%d", status.ReadyNodes, test.desired) {
				t.Errorf("the table shows %q", status.Nodes)
			}
			if got := fmt.Sprint(status.ReadyNodes, " ", c.Status, " ", c.Reason, " ", c.Message); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
