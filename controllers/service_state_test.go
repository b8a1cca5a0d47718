package controllers

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// withConditions is a Service of type LoadBalancer whose conditions Allocated, Announced, Advertised and Reachable
// have the statuses T, F, U or - (there is none, as of those that are not in statuses).
func withConditions(name, statuses string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, ResourceVersion: "1"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	types := []string{v1.ConditionAllocated, v1.ConditionAnnounced, v1.ConditionAdvertised, v1.ConditionServiceReachable}
	for i, letter := range strings.Split(statuses, "") {
		status, exists := map[string]metav1.ConditionStatus{
			"T": metav1.ConditionTrue, "F": metav1.ConditionFalse, "U": metav1.ConditionUnknown,
		}[letter]
		if exists {
			svc.Status.Conditions = append(svc.Status.Conditions, metav1.Condition{Type: types[i], Status: status})
		}
	}
	return svc
}

func TestStateOfServices(t *testing.T) {
	t.Parallel()
	x := newServiceIndex(true, time.Now)
	for statuses, want := range map[string]ServiceProgress{
		"---": "Waiting", "F--": "Waiting", "FTT": "Waiting", "T--": "NotAnnounced", "TF-": "NotAnnounced",
		"TFT": "NotAnnounced", "TT-": "Announced", "TTT": "Announced", "TTU": "Announced", "TTF": "NotAdvertised",
		"TT-F": "Unreachable", "TT-U": "Announced", "TTTT": "Announced", "TTFF": "NotAdvertised", "TF-F": "NotAnnounced",
	} {
		svc := withConditions(statuses, statuses)
		if got := progressOf(svc); got != want {
			t.Errorf("%s: %s, want %s", statuses, got, want)
		}
		x.observe(svc)
	}
	others := withConditions("others", "---")
	others.Spec.LoadBalancerClass = ptr.To("else")
	x.observe(others)
	want := map[ServiceProgress]int{
		"Waiting": 3, "NotAnnounced": 4, "NotAdvertised": 2, "Unreachable": 1, "Announced": 5,
	}
	if got := x.countProgress(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	newer := withConditions("TTT", "TTF")
	newer.ResourceVersion = "2"
	x.observe(newer)
	want["NotAdvertised"], want["Announced"] = 3, 4
	if got := x.countProgress(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	none := map[ServiceProgress]int{"Waiting": 0, "NotAnnounced": 0, "NotAdvertised": 0, "Unreachable": 0, "Announced": 0}
	if got := newServiceIndex(true, time.Now).countProgress(); !maps.Equal(got, none) {
		t.Errorf("without Services: %v", got)
	}
}
