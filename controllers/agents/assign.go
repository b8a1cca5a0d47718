// Package agents decides which LBNodeAgent's agent runs on a node, and as what
// DaemonSet. It is pure.
package agents

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Assign returns the name of the LBNodeAgent whose agent is to run on a node
// with the given labels, or "" for none. Of several that select the node, one
// with a selector beats one without, then the first by name wins.
// LBNodeAgents that are being deleted do not count.
func Assign(all []v1.LBNodeAgent, node map[string]string) string {
	var best *v1.LBNodeAgent
	for i := range all {
		a := &all[i]
		if !a.DeletionTimestamp.IsZero() || !labels.SelectorFromSet(a.Spec.NodeSelector).Matches(labels.Set(node)) {
			continue
		}
		if best == nil || beats(a, best) {
			best = a
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

func beats(a, b *v1.LBNodeAgent) bool {
	if specificA, specificB := len(a.Spec.NodeSelector) > 0, len(b.Spec.NodeSelector) > 0; specificA != specificB {
		return specificA
	}
	return a.Name < b.Name
}

// IsLeaving reports whether the agent that a node runs is not the one that it is
// to run. A label that names no LBNodeAgent is somebody's mistake, and not waited
// for: no agent is there to give anything up.
func IsLeaving(all []v1.LBNodeAgent, node map[string]string) bool {
	label := node[v1.LabelAgent]
	return label != Assign(all, node) && slices.ContainsFunc(all, func(a v1.LBNodeAgent) bool { return a.Name == label })
}

// Move is what is to become of a node's label.
type Move string

const (
	// Stay is that it is as it should be.
	Stay Move = "Stay"
	// Wait is that it is to change, but the agent has yet to give up what it has.
	Wait Move = "Wait"
	// Change is that it may.
	Change Move = "Change"
	// Abandon is that it changes although the agent has not given up what it has: it
	// has been silent for too long.
	Abandon Move = "Abandon"
)

// MoveOf decides about the label of a node, whose Announcements those are.
func MoveOf(all []v1.LBNodeAgent, node map[string]string, announcements []v1.Announcement, silent bool) Move {
	switch {
	case node[v1.LabelAgent] == Assign(all, node):
		return Stay
	case !IsLeaving(all, node) || hasReleased(announcements):
		return Change
	case silent:
		return Abandon
	}
	return Wait
}

// hasReleased reports whether a node's agent says that it has given up all that
// it had. Without an Announcement it has said nothing.
func hasReleased(announcements []v1.Announcement) bool {
	return len(announcements) > 0 && !slices.ContainsFunc(announcements, func(a v1.Announcement) bool {
		return !a.Spec.Leaving || a.Spec.Common || len(a.Spec.Addresses) > 0 || !GaveUp(&a)
	})
}

// GaveUp reports whether an agent says of an Announcement, as it stands, that
// the node has nothing of what it asked for.
func GaveUp(a *v1.Announcement) bool {
	return len(a.Status.Addresses) == 0 && a.Status.CommonRevision == nil && a.Status.ObservedGeneration >= a.Generation
}
