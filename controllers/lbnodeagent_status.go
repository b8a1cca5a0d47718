package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/routing"
	"github.com/purelb/purelb-operator/internal/condition"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// writeStatus writes the status of an LBNodeAgent, if it differs. While the cache has no
// DaemonSet there is nothing to say, unless the API server refuses the DaemonSet.
func (r *LBNodeAgentReconciler) writeStatus(ctx context.Context, agent *v1.LBNodeAgent, nodes agentNodes) error {
	ds := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: agent.Namespace, Name: agents.DaemonSetName(agent.Name)}
	err := r.Client.Get(ctx, key, ds)
	if err != nil && (!apierrors.IsNotFound(err) || nodes.apiRefusal == nil) {
		return client.IgnoreNotFound(err)
	}
	status := lbNodeAgentStatus(agent, ds, nodes)
	if status.Speakers, err = r.speakersText(ctx, agent); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(status, agent.Status) {
		return nil
	}
	before := meta.FindStatusCondition(agent.Status.Conditions, v1.ConditionInterfaceNotFound)
	after := meta.FindStatusCondition(status.Conditions, v1.ConditionInterfaceNotFound)
	agent.Status = status
	if err := applyStatus(ctx, r.Client, agent, ownerLBNodeAgent); err != nil {
		return err
	}
	if after != nil && (before == nil || before.Message != after.Message) {
		r.Recorder.Eventf(agent, nil, corev1.EventTypeWarning, after.Reason, "Select", "%s",
			textlimit.Shorten(after.Message, maxNote))
	}
	return nil
}

// speakersText says on how many nodes of an LBNodeAgent a speaker is ready, and on how many one is to
// run; nothing if it has no speakers.
func (r *LBNodeAgentReconciler) speakersText(ctx context.Context, agent *v1.LBNodeAgent) (string, error) {
	ds := &appsv1.DaemonSet{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: routing.SpeakerName(agent.Name)}, ds)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look up the speakers: %w", err)
	}
	return fmt.Sprintf("%d/%d", ds.Status.NumberReady, ds.Status.DesiredNumberScheduled), nil
}

// lbNodeAgentStatus is the status that an LBNodeAgent is to have, given its DaemonSet and its
// nodes.
func lbNodeAgentStatus(agent *v1.LBNodeAgent, ds *appsv1.DaemonSet, nodes agentNodes) v1.LBNodeAgentStatus {
	status := v1.LBNodeAgentStatus{
		ObservedGeneration: agent.Generation,
		DesiredNodes:       ds.Status.DesiredNumberScheduled,
		// A pod is Ready whether its agent reaches the API server or not.
		ReadyNodes: min(
			ds.Status.NumberReady, max(nodes.labelledCount-int32(len(nodes.silent)), 0), //nolint:gosec // not so many nodes
		),
		Conditions: append([]metav1.Condition(nil), agent.Status.Conditions...),
	}
	status.Nodes = fmt.Sprintf("%d/%d", status.ReadyNodes, status.DesiredNodes)
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: agent.Generation,
		Reason:  v1.ReasonProgressing,
		Message: fmt.Sprintf("%d of %d agents are ready", status.ReadyNodes, status.DesiredNodes),
	}
	isCurrent := ds.Status.ObservedGeneration >= ds.Generation && ds.Status.UpdatedNumberScheduled == status.DesiredNodes
	errs := agents.Validate(agent)
	switch {
	case len(errs) > 0:
		ready.Reason, ready.Message = v1.ReasonInvalid, textlimit.Shorten(errs.ToAggregate().Error(), maxMessage)
	case nodes.apiRefusal != nil:
		ready.Reason, ready.Message = v1.ReasonRefused,
			textlimit.Shorten("The API server refuses what the agents need: "+nodes.apiRefusal.Error(), maxMessage)
	case len(nodes.leaving) > 0:
		ready.Message = fmt.Sprintf(
			"nodes that have yet to withdraw their addresses: %d (%s)", len(nodes.leaving),
			textlimit.Shorten(strings.Join(nodes.leaving, ", "), 1024),
		)
		if len(nodes.leaving) > 1 && len(nodes.next) > 0 {
			ready.Message += "; those that go to another LBNodeAgent do so one after another"
		}
		if len(nodes.awaited) > 0 {
			ready.Message = textlimit.Shorten(
				ready.Message+"; they wait for the agents of LBNodeAgent "+strings.Join(nodes.awaited, ", "), maxMessage,
			)
		}
	case nodes.hasNoAccount && nodes.selectedCount > 0:
		ready.Reason = v1.ReasonDegraded
		ready.Message += "; the service account of the agents does not exist: no agent can start, and those that run " +
			"cannot renew their Leases"
	case !isCurrent:
		ready.Message += fmt.Sprintf("; %d run the latest specification", ds.Status.UpdatedNumberScheduled)
	case status.DesiredNodes == 0 && nodes.selectedCount > 0:
		// The DaemonSet has not seen the nodes' labels yet, or tolerates none.
		ready.Message = fmt.Sprintf("selected nodes on which no agent is to run yet: %d", nodes.selectedCount)
	case status.ReadyNodes == status.DesiredNodes:
		ready.Status, ready.Reason = metav1.ConditionTrue, v1.ReasonAccepted
		if status.DesiredNodes == 0 {
			ready.Message = "no node is selected"
		}
		ready.Message += describeTainted(agent, nodes.labelledCount-status.DesiredNodes)
	case len(nodes.silent) > 0:
		if ds.Status.NumberReady == status.DesiredNodes {
			ready.Reason = v1.ReasonDegraded
		}
		ready.Message += "; " + describeSilent(nodes.silent)
	}
	condition.SetReady(&status.Conditions, ready, len(errs) > 0)
	notFound := ""
	if len(nodes.withoutInterface) > 0 && len(errs) == 0 {
		notFound = describeWithoutInterface(agent, nodes)
	}
	setWhileTrue(&status.Conditions, agent.Generation, v1.ConditionInterfaceNotFound, v1.ReasonInterfaceNotFound, notFound)
	return status
}

// describeTainted says how many selected nodes run no agent, if there are any: only taints keep it out.
func describeTainted(agent *v1.LBNodeAgent, without int32) string {
	if without <= 0 || len(agent.Spec.Tolerations) == 0 {
		return ""
	}
	return fmt.Sprintf("; selected nodes with taints that spec.tolerations does not tolerate: %d", without)
}

// describeWithoutInterface says on which nodes an LBNodeAgent selects no interface.
func describeWithoutInterface(agent *v1.LBNodeAgent, nodes agentNodes) string {
	return fmt.Sprintf("%d of %d nodes have no interface that spec.local.localInterface, %s, or spec.local.interfaces "+
		"selects, and announce no Local address: %s; correct it, or select these nodes by another LBNodeAgent",
		len(nodes.withoutInterface), nodes.labelledCount, cmp.Or(localInterfaceOf(agent), v1.InterfaceDefault),
		listNodes(nodes.withoutInterface))
}

// localInterfaceOf returns what spec.local.localInterface says, or nothing, which stands for v1.InterfaceDefault.
func localInterfaceOf(agent *v1.LBNodeAgent) string {
	if agent.Spec.Local == nil {
		return ""
	}
	return agent.Spec.Local.LocalInterface
}

// listNodes names nodes, the first ones if they are many.
func listNodes(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", more))
	}
	return textlimit.Shorten(strings.Join(names, ", "), 1024)
}

// describeSilent says which agents do not renew their Leases, and why as far as that is known.
func describeSilent(nodes []silentNode) string {
	var names []string
	for _, n := range nodes {
		if n.isNotReady {
			n.name += " (the node is not Ready)"
		}
		names = append(names, n.name)
	}
	return "the Lease is not renewed by the agent of " + listNodes(names) + ": see the log of that agent"
}
