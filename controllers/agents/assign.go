package agents

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// LBNodeAgentFor returns the name of the LBNodeAgent whose agent is to run on a node
// with the given labels, or "" for none. Of several that select the node, one
// with a selector beats one without, then the first by name wins.
// LBNodeAgents that are being deleted do not count. Agents run on Linux alone.
func LBNodeAgentFor(all []v1.LBNodeAgent, nodeLabels map[string]string) string {
	if system, isKnown := nodeLabels[corev1.LabelOSStable]; isKnown && system != linux {
		return ""
	}
	var best *v1.LBNodeAgent
	for i := range all {
		a := &all[i]
		if !a.DeletionTimestamp.IsZero() || !selects(a, nodeLabels) {
			continue
		}
		if best == nil || comesBefore(a, best) {
			best = a
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// selects reports whether an LBNodeAgent selects a node by the node's labels. One that selects the label by which the
// manager tells nodes which agent to run selects none: that label says what the manager has decided before.
func selects(a *v1.LBNodeAgent, nodeLabels map[string]string) bool {
	_, isCircular := a.Spec.NodeSelector[v1.LabelAgent]
	return !isCircular && labels.SelectorFromSet(a.Spec.NodeSelector).Matches(labels.Set(nodeLabels))
}

// linux is the operating system that agents and speakers run on, as nodes' labels have it.
const linux = "linux"

// comesBefore reports whether a applies to a node that both select.
func comesBefore(a, b *v1.LBNodeAgent) bool {
	if specificA, specificB := len(a.Spec.NodeSelector) > 0, len(b.Spec.NodeSelector) > 0; specificA != specificB {
		return specificA
	}
	return a.Name < b.Name
}

// IsOfAnother reports whether a node, by its labels, runs the agent of another LBNodeAgent
// than it is to run: it is to leave that one, when TurnsOf says so. A label that names no
// LBNodeAgent is a user's mistake, and not waited for: no agent is there to withdraw anything.
func IsOfAnother(all []v1.LBNodeAgent, nodeLabels map[string]string) bool {
	label := nodeLabels[v1.LabelAgent]
	return label != LBNodeAgentFor(all, nodeLabels) &&
		slices.ContainsFunc(all, func(a v1.LBNodeAgent) bool { return a.Name == label })
}

// LabelAction is what becomes of a node's label.
type LabelAction string

// Values of LabelAction.
const (
	// KeepLabel is that the label is as it should be.
	KeepLabel LabelAction = "Keep"
	// AwaitWithdrawal is that the label is to change, but the agent has yet to withdraw what it has.
	AwaitWithdrawal LabelAction = "Wait"
	// ChangeLabel is that the label changes now.
	ChangeLabel LabelAction = "Change"
	// ChangeLabelOfLostAgent is that the label changes although the agent has not withdrawn what it has:
	// the agent has been silent for too long.
	ChangeLabelOfLostAgent LabelAction = "Abandon"
)

// LabelActionOf decides about the label of a node, whose Announcements are given. isSilent
// is that the node's agent has not renewed its Lease for long.
func LabelActionOf(
	all []v1.LBNodeAgent, nodeLabels map[string]string, announcements []v1.Announcement, isSilent bool,
) LabelAction {
	switch {
	case nodeLabels[v1.LabelAgent] == LBNodeAgentFor(all, nodeLabels):
		return KeepLabel
	case !IsOfAnother(all, nodeLabels) || hasWithdrawnAll(announcements):
		return ChangeLabel
	case isSilent:
		return ChangeLabelOfLostAgent
	}
	return AwaitWithdrawal
}

// hasWithdrawnAll reports whether a node's agent reports that it has withdrawn all that it
// had. Without an Announcement the agent has reported nothing.
func hasWithdrawnAll(announcements []v1.Announcement) bool {
	return len(announcements) > 0 && !slices.ContainsFunc(announcements, func(a v1.Announcement) bool {
		return !a.Spec.AgentLeaving || a.Spec.IncludeCommonAnnouncements || len(a.Spec.Addresses) > 0 || !HasWithdrawn(&a)
	})
}

// HasWithdrawn reports whether an agent reports of an Announcement, as it stands, that the
// node has nothing of what it asked for.
func HasWithdrawn(a *v1.Announcement) bool {
	return len(a.Status.Addresses) == 0 && a.Status.CommonAnnouncementsRevision == nil &&
		a.Status.ObservedGeneration >= a.Generation
}
