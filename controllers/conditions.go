package controllers

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Bounds of texts that the manager writes into statuses, in bytes.
const (
	// maxServiceMessage is the longest message that the API server takes of a condition.
	maxServiceMessage = 32768
	// maxMessage is the longest message of a condition of PureLB's own kinds. Nobody reads
	// more, and every status carries several.
	maxMessage = 4096
	// maxRangesText is the longest text of status.ranges of a ServiceGroup, by its schema.
	maxRangesText = 1024
)

// setWhileTrue sets a condition that is only there while it is True, or removes it if message is
// empty.
func setWhileTrue(
	conditions *[]metav1.Condition, generation int64, conditionType, reason, message string,
) {
	if message == "" {
		meta.RemoveStatusCondition(conditions, conditionType)
		return
	}
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type: conditionType, Status: metav1.ConditionTrue, ObservedGeneration: generation,
		Reason: reason, Message: textlimit.Shorten(message, maxMessage),
	})
}

// conditionApplyConfiguration converts a condition for an apply.
func conditionApplyConfiguration(c *metav1.Condition) *metav1ac.ConditionApplyConfiguration {
	return metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithObservedGeneration(c.ObservedGeneration).
		WithReason(c.Reason).WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime)
}
