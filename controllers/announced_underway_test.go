package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

func TestIsUnderway(t *testing.T) {
	allocated := metav1.NewTime(time.Now())
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	for _, row := range []struct {
		name        string
		told        bool // that it is announced, or is not
		is          metav1.ConditionStatus
		later, want time.Duration
	}{
		{"not announced yet", false, no, time.Second, 2 * time.Second},
		{"not announced for long", false, no, 3 * time.Second, 0},
		{"announced", false, yes, time.Second, 0},
		{"told something else before", true, no, time.Second, 0},
		{"nothing to announce", false, "", time.Second, 0},
		{"the clock was set back", false, no, -time.Hour, 3 * time.Second},
	} {
		svc := &corev1.Service{Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: v1.ConditionAllocated, LastTransitionTime: allocated}}}}
		if row.told {
			svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: v1.ConditionAnnounced, Status: yes})
		}
		report := announced.Report{Condition: metav1.Condition{Status: row.is}}
		if got := isUnderway(svc, report, allocated.Add(row.later)); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}
