package plan

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// YieldedAddress says that the agent has yielded an address to another station.
type YieldedAddress struct {
	// Epoch of the entry under which the address was yielded.
	Epoch int64 `json:"epoch"`
	// MAC of that station, lower case with colons.
	MAC string `json:"mac"`
	// YieldedAlone means that the agent has yielded as nobody on the link answered the node. Its name in the
	// checkpoint stays: earlier agents have written it.
	YieldedAlone bool `json:"isAlone,omitempty"`
	// Announcement is the UID of the Announcement that has the entry; empty if it is not known.
	Announcement types.UID `json:"announcement,omitempty"`
	// Interface on whose link that station is; empty if the agent is not to claim the
	// address again.
	Interface string `json:"-"`
	// AnsweredAt is when a station was last known to have the address, and Unanswered how
	// many questions that station has left unanswered since.
	AnsweredAt time.Time `json:"-"`
	Unanswered int       `json:"-"`
	// AskedAt is when that station was asked last.
	AskedAt time.Time `json:"-"`
	// IsSilenceReported means that the worker has been woken because the station is silent.
	IsSilenceReported bool `json:"-"`
}

// IsSilent reports whether the station has stopped answering. The silence of one that a node which is
// alone does not hear has to last for longer: by then the manager has decided.
func (y YieldedAddress) IsSilent(now time.Time) bool {
	enough := silentFor
	if y.YieldedAlone {
		enough = aloneSilentFor
	}
	return y.Unanswered >= silentQuestions && now.Sub(y.AnsweredAt) >= enough
}

// answeredBy returns the YieldedAddress after a station has said that it has the address.
func (y YieldedAddress) answeredBy(mac string, at time.Time) YieldedAddress {
	y.MAC, y.AnsweredAt, y.Unanswered, y.IsSilenceReported, y.YieldedAlone = mac, at, 0, false, false
	return y
}

// covers reports whether the address was yielded under a desired entry's epoch, or a later
// one: only a higher epoch lets the node take the address over again. Epochs of an Announcement
// that the node does not have any more, or of another cluster, say nothing. The entry may have
// moved to another Announcement of the node.
func (y YieldedAddress) covers(d *Desired) bool {
	isOfNode := y.Announcement == "" || len(d.NodeAnnouncements) == 0 ||
		slices.Contains(d.NodeAnnouncements, y.Announcement)
	return isOfNode && y.Epoch >= d.Epoch
}

// Result of an address that was yielded.
func (y YieldedAddress) Result() Result {
	why := " claims the address and answers for it; this node claims it again as soon as no station answers"
	if y.YieldedAlone {
		why = " has claimed the address, and no node on the link answers this one"
	}
	return Result{
		State: purelbv1.StateYielded, Epoch: y.Epoch, MAC: y.MAC, Reason: ReasonYielded, Message: y.MAC + why,
	}
}

// yieldOf is the one rule of yields. It returns the yield that keeps a node from having a desired
// address, if there is one. If the station that has the address is silent, the agent may ask the link
// for the address, and claim it if no station answers. A decision applies the rule, and so does the
// listener before the kernel is changed, as a station may have been heard in between.
func yieldOf(
	yields map[netip.Addr]YieldedAddress, d *Desired, now time.Time,
) (y YieldedAddress, isYielded, isSilent bool) {
	y, isYielded = yields[d.Addr]
	isYielded = isYielded && y.covers(d)
	return y, isYielded, isYielded && y.IsSilent(now)
}

// respectYields applies the rule of yields to the operations. Where the kernel still has a yielded
// address, because it could not be removed, the agent removes it.
func (p *Plan) respectYields(
	yields map[netip.Addr]YieldedAddress, desired []Desired, observed Observed, now time.Time,
) {
	if len(yields) == 0 {
		return
	}
	operations := p.Operations[:0]
	for _, op := range p.Operations {
		if op.Desired != nil && op.Kind != Remove {
			y, isYielded, isSilent := yieldOf(yields, op.Desired, now)
			if isYielded && op.Kind == Add {
				p.Results[op.Desired.Addr] = y.Result()
				op.Probe, op.Announce, op.Reclaim = true, true, true
			}
			if isYielded && (op.Kind != Add || !isSilent) {
				continue
			}
		}
		operations = append(operations, op)
	}
	p.Operations = operations
	for i := range desired {
		d := &desired[i]
		if y, isYielded, _ := yieldOf(yields, d, now); isYielded && p.Results[d.Addr].State == purelbv1.StateAnnounced {
			p.Results[d.Addr] = y.Result()
			p.Operations = slices.Insert(p.Operations, 0, removalsOf(d, observed)...)
		}
	}
}

// removalsOf returns the operations that remove a desired address from its interface.
func removalsOf(d *Desired, observed Observed) []Operation {
	var removals []Operation
	for _, a := range observed.Addresses {
		if a.IsOurs && a.Interface == d.Interface && a.Prefix.Addr() == d.Addr {
			removals = append(removals, Operation{Kind: Remove, Address: a, Desired: d})
		}
	}
	return removals
}
