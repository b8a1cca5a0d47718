package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// All Services of an external group are looked at when its ranges change, or why there are
// none, and not whenever a system that is away fails in another way.
func TestGroupChangedByItsSystem(t *testing.T) {
	group := func(reason, message string, pools ...string) *v1.ServiceGroup {
		sg := &v1.ServiceGroup{Spec: v1.ServiceGroupSpec{Netbox: &v1.NetboxPools{}}}
		sg.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReachable, Reason: reason, Message: message}}
		for _, p := range pools {
			sg.Status.Pools = append(sg.Status.Pools, v1.PoolStatus{Range: p})
		}
		return sg
	}
	differing := func(message string, pools ...string) *v1.ServiceGroup {
		sg := group(v1.ReasonReachable, "it answers", pools...)
		sg.Status.Conditions = append(sg.Status.Conditions, metav1.Condition{Type: v1.ConditionDrift, Message: message})
		return sg
	}
	for name, row := range map[string]struct {
		before, after *v1.ServiceGroup
		want          bool
	}{
		"away in another way": {
			group(v1.ReasonIPAMUnavailable, "it answers 502"), group(v1.ReasonIPAMUnavailable, "it answers 504"), false,
		},
		"refused for another reason": {
			group(v1.ReasonIPAMRefused, "no token"), group(v1.ReasonIPAMRefused, "no tenant"), true,
		},
		"back": {
			group(v1.ReasonIPAMUnavailable, "it answers 502"), group(v1.ReasonReachable, "it answers"), true,
		},
		"away, with ranges": {
			group(v1.ReasonReachable, "it answers", "a"), group(v1.ReasonIPAMUnavailable, "it answers 502", "a"), false,
		},
		"no ranges, and now a reason":   {group(v1.ReasonReachable, "it answers"), differing("no prefix has this tag"), true},
		"no ranges for another reason":  {differing("no prefix has this tag"), differing("the prefix is too large"), true},
		"ranges, and other differences": {differing("one record", "a"), differing("two records", "a"), false},
		"other ranges": {
			group(v1.ReasonReachable, "it answers", "a"), group(v1.ReasonReachable, "it answers", "b"), true,
		},
	} {
		got := specOrRangesChanged.Update(event.UpdateEvent{ObjectOld: row.before, ObjectNew: row.after})
		if got != row.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
