// Package condition sets conditions of statuses.
package condition

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// StatusOf returns True or False.
func StatusOf(isTrue bool) metav1.ConditionStatus {
	if isTrue {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// SetReady sets the condition Ready and, if isStalled, copies it into the condition Stalled; otherwise it removes
// Stalled.
func SetReady(conditions *[]metav1.Condition, ready metav1.Condition, isStalled bool) {
	meta.SetStatusCondition(conditions, ready)
	if !isStalled {
		meta.RemoveStatusCondition(conditions, v1.ConditionStalled)
		return
	}
	ready.Type, ready.Status = v1.ConditionStalled, metav1.ConditionTrue
	meta.SetStatusCondition(conditions, ready)
}
