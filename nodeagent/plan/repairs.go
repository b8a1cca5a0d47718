package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// Additions says how often the agent has added a desired address, under one epoch and to one
// interface. Each addition but the first repairs what something else on the node has removed.
type Additions struct {
	Epoch     int64
	Interface string
	// Count is how often, each time within repairsForgottenAfter of the time before.
	Count int
	// LastAt is when the agent last added the address.
	LastAt time.Time
}

// areOf reports whether they are additions of a desired address as it is desired now, and not
// too long ago to count.
func (a Additions) areOf(d *Desired, now time.Time) bool {
	age := now.Sub(a.LastAt)
	// age < 0: the clock was set back
	return a.Epoch == d.Epoch && a.Interface == d.Interface && age >= 0 && age < repairsForgottenAfter
}

// isRemovedRepeatedly reports whether something removes the address again and again.
func (a Additions) isRemovedRepeatedly() bool { return a.Count > immediateRepairs }

// gap returns the least time between the last addition and the next.
func (a Additions) gap() time.Duration {
	if !a.isRemovedRepeatedly() {
		return 0
	}
	const most = 10 // so often doubled, initialRepairBackoff is above maxRepairBackoff, and does not overflow
	return min(initialRepairBackoff<<min(a.Count-immediateRepairs-1, most), maxRepairBackoff)
}

// paceRepairs makes an address wait that something removes again and again, and makes its Result
// say so. It remains announced meanwhile: the manager need not hear of each repair, and the
// listener goes on.
func (d *decisionBuilder) paceRepairs() {
	if d.IsNothingKnown || len(d.memory.Additions) == 0 {
		return
	}
	now := d.in.Now
	d.memory.forgetAdditions(d.desired, now)
	additions := d.memory.Additions
	d.plan.Operations = slices.DeleteFunc(d.plan.Operations, func(op Operation) bool {
		if op.Kind != Add || !d.isRepair(op) {
			return false
		}
		a := additions[op.Desired.Addr]
		wait := a.LastAt.Add(a.gap()).Sub(now)
		d.decideIn(max(wait, 0))
		return wait > 0
	})
	for addr, a := range additions {
		if result := d.plan.Results[addr]; a.isRemovedRepeatedly() && result.State == purelbv1.StateAnnounced {
			d.plan.Results[addr] = result.removedRepeatedly()
			d.decideIn(a.LastAt.Add(repairsForgottenAfter).Sub(now))
		}
	}
}

// forgetAdditions forgets those that are not of a desired address, or not any more.
func (m *Memory) forgetAdditions(desired []Desired, now time.Time) {
	isKept := func(d *Desired) bool { return m.Additions[d.Addr].areOf(d, now) }
	kept := 0
	for i := range desired {
		if isKept(&desired[i]) {
			kept++
		}
	}
	if kept == len(m.Additions) { // as a rule: what was added in a burst counts for a while
		return
	}
	additions := make(map[netip.Addr]Additions, kept)
	for i := range desired {
		if d := &desired[i]; isKept(d) {
			additions[d.Addr] = m.Additions[d.Addr]
		}
	}
	m.Additions = additions
}

// isRepair reports whether an addition puts back what the node had until now. An address for
// which the link is to be asked waits for that, and a virtual interface that is missing was
// removed with all of its addresses.
func (d *decisionBuilder) isRepair(op Operation) bool {
	if op.InPlace || op.Probe || op.Reclaim {
		return false
	}
	if op.Desired.IsLocal {
		_, isHeld := d.in.Held[op.Desired.Addr]
		return isHeld
	}
	return !d.IsVirtualMissing || op.Desired.Interface != d.VirtualToEnsure
}

// noteAdditions notes which addresses were added.
func (m *Memory) noteAdditions(operations []Operation, resultOf func(netip.Addr) Result, now time.Time) {
	isCopied := false
	for i := range operations {
		op := &operations[i]
		if op.Kind != Add || op.InPlace || op.Reclaim || resultOf(op.Desired.Addr).State != purelbv1.StateAnnounced {
			continue
		}
		if !isCopied {
			m.Additions, isCopied = maps.Clone(m.Additions), true
		}
		a := m.Additions[op.Desired.Addr]
		if !a.areOf(op.Desired, now) {
			a = Additions{Epoch: op.Desired.Epoch, Interface: op.Desired.Interface}
		}
		a.Count, a.LastAt = a.Count+1, now
		if m.Additions == nil {
			m.Additions = map[netip.Addr]Additions{}
		}
		m.Additions[op.Desired.Addr] = a
	}
}

// removedRepeatedly returns the Result of an announced address that something else on the node
// removes again and again. It says no number: each would be another report.
func (r Result) removedRepeatedly() Result {
	r.Reason = ReasonRepeatedlyRemoved
	r.Message = fmt.Sprintf(
		"something on the node removes the address from %s again and again; it is put back less and less often, after %s "+
			"at most; find out what removes it",
		r.Interface, maxRepairBackoff,
	)
	return r
}
