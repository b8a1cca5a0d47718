package announced

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How long a change of a condition has to last before it is written. What
// nodes report changes for every Service at once, and again with each session that goes up or down.
const (
	// verdictSettleTime is of the status or the reason. Each Service is written at most once in
	// that time, however fast sessions flap.
	verdictSettleTime = 5 * time.Second
	// messageSettleTime is of the message alone. While speakers are replaced, one node after the other,
	// the numbers change every few seconds and matter to nobody.
	messageSettleTime = 30 * time.Second
)

// PendingChange is a change of the condition of one Service that has yet to last long enough. The zero
// value is of a Service without one. A process that begins with it writes that much later.
type PendingChange struct {
	change string
	since  time.Time
}

// Decide decides whether a condition is to be written in place of the stored one, nil if there is
// none. If not now, wait is in how long to look again; 0 is when something changes. wanted has no
// type if the condition is to go. That an address is advertised is said at once when nothing was
// said before.
func (s PendingChange) Decide(
	stored *metav1.Condition, wanted metav1.Condition, now time.Time,
) (isDue bool, wait time.Duration, next PendingChange) {
	change, least := "", verdictSettleTime
	switch {
	case stored == nil && wanted.Type == "":
		return false, 0, PendingChange{}
	case stored == nil && wanted.Status == metav1.ConditionTrue:
		return true, 0, PendingChange{}
	case stored == nil || stored.Status != wanted.Status || stored.Reason != wanted.Reason:
		change = string(wanted.Status) + " " + wanted.Reason
	case stored.Message != wanted.Message:
		change, least = wanted.Message, messageSettleTime
	default:
		return false, 0, PendingChange{}
	}
	if s.change != change || now.Before(s.since) {
		s = PendingChange{change, now}
	}
	if wait := s.since.Add(least).Sub(now); wait > 0 {
		return false, wait, s
	}
	return true, 0, PendingChange{}
}
