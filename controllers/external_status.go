package controllers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/condition"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// withObservation returns a ServiceGroup whose status says what is known of its external
// system. What is not known since this manager leads stays as the last one wrote it.
func withObservation(sg *v1.ServiceGroup, o *ipam.Observation) *v1.ServiceGroup {
	if sg.Spec.Netbox == nil {
		sg = sg.DeepCopy()
		meta.RemoveStatusCondition(&sg.Status.Conditions, v1.ConditionReachable)
		meta.RemoveStatusCondition(&sg.Status.Conditions, v1.ConditionDrift)
		sg.Status.LastIPAMSync = nil
		return sg
	}
	if o == nil || o.Reason == "" {
		return sg
	}
	sg = sg.DeepCopy()
	meta.SetStatusCondition(&sg.Status.Conditions, metav1.Condition{
		Type: v1.ConditionReachable, Status: condition.StatusOf(o.Reason == v1.ReasonReachable),
		ObservedGeneration: sg.Generation, Reason: o.Reason, Message: textlimit.Shorten(o.Message, maxMessage),
	})
	if o.Report == nil {
		return sg
	}
	sg.Status.LastIPAMSync = &metav1.Time{Time: o.SyncedAt.Truncate(1e9)}
	sg.Status.Pools = nil
	for _, p := range o.Report.Ranges {
		sg.Status.Pools = append(
			sg.Status.Pools, v1.PoolStatus{Range: p.Addrs.String(), Subnet: p.Subnet.String(), Recorded: ptr.To(p.Recorded)},
		)
	}
	setWhileTrue(&sg.Status.Conditions, sg.Generation, v1.ConditionDrift, v1.ReasonRecordsDiffer, describeDrift(o))
	return sg
}

// maxDifferences is how many addresses the condition Drift names.
const maxDifferences = 20

// describeDrift says what of an external system is not as it ought to be, or returns an
// empty text.
func describeDrift(o *ipam.Observation) string {
	texts := slices.Clone(o.Report.Problems)
	if o.UnusedNotReleased > 0 {
		texts = append(
			texts,
			fmt.Sprintf(
				"%d records of this cluster are of addresses that no Service has: these are too many to be released without a "+
					"person having looked; delete them in NetBox",
				o.UnusedNotReleased,
			),
		)
	}
	addrs := slices.SortedFunc(maps.Keys(o.Differences), netip.Addr.Compare)
	for _, a := range addrs[:min(len(addrs), maxDifferences)] {
		texts = append(texts, a.String()+": "+o.Differences[a])
	}
	if more := len(addrs) - maxDifferences; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more addresses differ", more))
	}
	return strings.Join(texts, "; ")
}

// specOrRangesChanged lets through changes of a ServiceGroup that decisions depend on: of its
// specification, and of what its external system was seen to have.
var specOrRangesChanged = changed(func(before, after *v1.ServiceGroup) bool {
	return before.Generation != after.Generation || before.UID != after.UID ||
		after.Spec.Netbox != nil && !equality.Semantic.DeepEqual(externalInputsOf(before), externalInputsOf(after))
})

// externalInputsOf is what decisions depend on of a group's external system: its ranges or, if
// there are none, why not. In how many ways a system fails that is away is no matter of theirs.
func externalInputsOf(sg *v1.ServiceGroup) []string {
	var state []string
	for i := range sg.Status.Pools {
		state = append(state, sg.Status.Pools[i].Range+" "+sg.Status.Pools[i].Subnet)
	}
	if len(state) > 0 {
		return state
	}
	if c := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionReachable); c != nil {
		if state = append(state, c.Reason); c.Reason != v1.ReasonIPAMUnavailable {
			state = append(state, c.Message)
		}
	}
	if c := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionDrift); c != nil {
		state = append(state, c.Message)
	}
	return state
}
