// Package agents decides which LBNodeAgent's agent runs on a node, and as what
// DaemonSet. It is pure.
package agents

import (
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
