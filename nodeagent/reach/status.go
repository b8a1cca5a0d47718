package reach

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// ReasonAsking is the reason of condition Ready of an Announcement with asking.
const ReasonAsking = "Asking"

// Status returns the status of an Announcement with asking. It equals the present one if there is
// nothing to report: the time of the last answer alone is reported once in reportInterval, of all
// addresses at once.
func (a *Asker) Status(ann *v1.Announcement, now metav1.Time) v1.AnnouncementStatus {
	asking := ann.Spec.Asking
	conditions := slices.Clone(ann.Status.Conditions)
	meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonAsking, ObservedGeneration: ann.Generation,
		Message:            fmt.Sprintf("asking for %d addresses of %s", len(asking.Addresses), asking.Holder.NodeName),
		LastTransitionTime: now,
	})
	status := v1.AnnouncementStatus{ObservedGeneration: ann.Generation, Conditions: conditions}
	current := make([]v1.Reachability, 0, len(asking.Addresses))
	isNews := len(ann.Status.Reachability) != len(asking.Addresses)
	for i := range asking.Addresses {
		entry, stored := &asking.Addresses[i], storedOf(ann, asking.Addresses[i].Address)
		r := a.reachabilityOf(string(asking.Interface), entry, &stored, now)
		isNews = isNews || r.Epoch != stored.Epoch || r.Reachable != stored.Reachable || r.Reason != stored.Reason ||
			r.MAC != stored.MAC || timeOf(r.LastReachable).Sub(timeOf(stored.LastReachable)) >= reportInterval
		current = append(current, r)
	}
	if !isNews {
		current = ann.Status.Reachability
	}
	status.Reachability = current
	for _, r := range current {
		if addr, err := netip.ParseAddr(r.Address); err == nil {
			if t := a.asked[Key{string(asking.Interface), addr}]; t != nil {
				t.reportedLastAnswer = timeOf(r.LastReachable)
			}
		}
	}
	return status
}

// reachabilityOf returns what is found out about an address, given what is stored of it.
func (a *Asker) reachabilityOf(
	iface string, entry *v1.AskedAddress, stored *v1.Reachability, now metav1.Time,
) v1.Reachability {
	r := v1.Reachability{
		Address: entry.Address, Epoch: entry.Epoch, Reachable: metav1.ConditionUnknown, Reason: v1.ReasonNotAsked,
		LastTransitionTime: now,
	}
	addr, _ := netip.ParseAddr(entry.Address) // if it is none it is not asked for
	if t := a.asked[Key{iface, addr}]; t != nil && t.Epoch == entry.Epoch {
		r.Reachable, r.Reason, r.MAC = t.finding.reachable, t.finding.reason, t.finding.mac
		if !t.finding.lastAnswer.IsZero() {
			last := metav1.NewTime(t.finding.lastAnswer.Truncate(time.Second))
			r.LastReachable = &last
		}
	}
	if stored.Address != "" && stored.Reachable == r.Reachable {
		r.LastTransitionTime = stored.LastTransitionTime
	}
	return r
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
