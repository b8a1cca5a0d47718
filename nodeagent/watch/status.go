package watch

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/condition"
)

// readyMessages of condition Ready, by reason; they get the name of the watched node.
var readyMessages = map[string]string{
	ReasonDisabled: "local.failover of the LBNodeAgent is not enabled: this node does not watch %s",
	ReasonLate:     "this node is too busy to watch %s, or loses answers",
	ReasonNoAnswer: "%s has answered neither echoes nor, if they count, ARP requests or neighbour solicitations",
	ReasonSilent:   "%s does not answer any more, and others do",
	ReasonDoubtful: "%s does not answer echoes steadily, and is watched by ARP requests or neighbour solicitations, too",
	ReasonNoWitness: "neither another node than %s nor a gateway tells whether this one is cut off: silence would mean " +
		"nothing",
	ReasonWatching: "watching %s",
}

// Status returns the status of an Announcement with standby. It equals the present one if
// nothing has changed.
func Status(ann *v1.Announcement, reason string, now metav1.Time) v1.AnnouncementStatus {
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: condition.StatusOf(reason == ReasonWatching), Reason: reason,
		ObservedGeneration: ann.Generation,
		Message:            fmt.Sprintf(readyMessages[reason], ann.Spec.Standby.Watched.NodeName), LastTransitionTime: now,
	}
	conditions := slices.Clone(ann.Status.Conditions)
	meta.SetStatusCondition(&conditions, ready) // keeps the time of the last transition
	return v1.AnnouncementStatus{ObservedGeneration: ann.Generation, Conditions: conditions}
}
