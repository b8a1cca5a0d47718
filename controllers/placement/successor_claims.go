package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// ClaimPatience is for how long the manager waits, after a successor has reported that it has
// claimed an address, for the holder's agent to renew its Lease.
const ClaimPatience = 3 * time.Second

// SuccessorClaim is what the agent of a successor reports of a Local address that it has
// claimed, as the holder seemed dead.
type SuccessorClaim struct {
	Node string
	Addr netip.Addr
	// Epoch by which the node has claimed the address.
	Epoch int64
	// Message of the agent.
	Message string
	// Holder is the node whose entry reserves the epoch for the claimer. AddClaims sets it.
	Holder string
	// Age is for how long the claim has been there. It may be too short, never too long.
	// Clocks sets it.
	Age time.Duration
}

// AddClaims adds claims of successors to the inputs, after all entries. A claim counts only if
// its epoch is the one that an entry of another node reserves for the claimer: an agent can
// report any. Where a claim has been adopted, which is to say that the claimer has an entry with
// that epoch, the claim counts as that entry's until the claimer's agent reports on the entry: so
// the entry of the last holder is not the highest realised one in between. A claim for which the
// claimer has no entry is a lingering report, too.
func (inputs *Inputs) AddClaims(claims []SuccessorClaim) {
	if len(claims) == 0 {
		return
	}
	entryOf, namedBy := map[entryKey]*Entry{}, map[epochKey]string{}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		entryOf[entryKey{e.Node, e.Addr}] = e
		for _, s := range e.Spec.Successors {
			namedBy[epochKey{entryKey{s.NodeName, e.Addr}, s.Epoch}] = e.Node
		}
	}
	for _, c := range claims {
		key := entryKey{c.Node, c.Addr}
		e := entryOf[key]
		if e == nil {
			if inputs.LingeringReports == nil {
				inputs.LingeringReports = map[netip.Addr][]LingeringReport{}
			}
			inputs.LingeringReports[c.Addr] = append(inputs.LingeringReports[c.Addr], LingeringReport{Node: c.Node})
		}
		holder, isNamed := namedBy[epochKey{key, c.Epoch}]
		switch {
		case e != nil && e.Spec.Epoch == c.Epoch:
			e.ReportedState = cmp.Or(e.ReportedState, v1.StateAnnounced)
		case isNamed && e == nil:
			c.Holder = holder
			inputs.SuccessorClaims = append(inputs.SuccessorClaims, c)
		}
	}
}

// successorClaimOf returns the claim that counts for a Local address, and the holder's entry, which
// reserves the claim's epoch: of several claims the one with the highest epoch. It returns nil if there is
// none, if the manager has the address taken over from its holder by another node, or if the holder's agent is
// alive and is to hand the address over: that goes on as if there were no claim. The entry of a node that held the
// address, and has yielded or lost it, reserves epochs until another node holds the address.
func (p *placer) successorClaimOf(a *Address, elected *judgedEntry) (*SuccessorClaim, *judgedEntry) {
	claims := p.claimsByAddress[a.Addr]
	if len(claims) == 0 {
		return nil, nil
	}
	namedBy := p.holderOrReservingEntry(a)
	if namedBy == nil || elected != nil && elected != namedBy && elected.Spec.ClaimPolicy == v1.ClaimTakeover {
		return nil, nil
	}
	isLive := namedBy.node.Liveness != Expired && !namedBy.hasGivenUp()
	if isLive && reasonAgainst(namedBy.node, a, holdChecks) != "" {
		return nil, nil
	}
	for _, c := range claims {
		n := p.nodeByName[c.Node]
		if n != nil && c.Holder == namedBy.Node && reasonAgainst(n, a, successorClaimChecks) == "" {
			return c, namedBy
		}
	}
	return nil, nil
}

// hasGivenUp reports whether the node counts as one without the address: its agent reports that it does not have it,
// has failed with it, does not act, or lost the entry.
func (e *judgedEntry) hasGivenUp() bool {
	return e.hasReported() && e.ReportedState != v1.StateAnnounced || e.isBarred()
}

// holderOrReservingEntry is the entry that may reserve epochs of an address for successors: the holder's,
// whether it reserves any or not, or, while no node reports the address Announced, one that does.
func (p *placer) holderOrReservingEntry(a *Address) *judgedEntry {
	if e := p.holderOf(a); e != nil {
		return e
	}
	for _, e := range p.entriesByAddress[a.Addr] {
		if e.node != nil && len(e.Spec.Successors) > 0 {
			return e
		}
	}
	return nil
}

// phaseByClaim is the phase of an address that a successor of its holder has claimed, and the cause of TakenOver.
// No report takes an address from another node that renews its Lease and says that it announces the address:
// such a holder contests the claim. A holder that has had the time to renew, and did not, loses the address to
// the claimer, as does one that reports that it does not have the address.
func (p *placer) phaseByClaim(claim *SuccessorClaim, reservedBy *judgedEntry) (Phase, MoveCause) {
	switch {
	case reservedBy.hasGivenUp():
		return TakenOver, CauseYielded
	case reservedBy.node.Liveness == Expired && p.hasLasted(claim.Age, ClaimPatience):
		return TakenOver, CauseClaimUnanswered
	}
	return Contested, ""
}

// challengeHolder leaves an address with its holder until the manager has decided about a claim of it. If the
// holder's agent renews its Lease, the manager asks that agent, by contestedBy in the holder's entry, to ask the
// claimer's kernel. The agent then yields, or goes on to report that it announces the address: in that case the
// manager gives the holder an epoch above those of all claims, which ends them.
func (p *placer) challengeHolder(a *Address, s situation) {
	spec := s.reservedBy.Spec
	by := v1.Successor{NodeName: s.claim.Node, Epoch: s.claim.Epoch}
	isAsked := spec.ContestedBy != nil && *spec.ContestedBy == by
	switch {
	case s.reservedBy.node.Liveness == Expired: // its agent has time to renew
	case isAsked && s.reservedBy.IsObserved && s.reservedBy.ReportedState == v1.StateAnnounced:
		spec.Epoch, spec.ClaimPolicy, spec.HandingOver = p.highestEpoch(a.Addr)+1, v1.ClaimProbe, false
		spec.Successors, spec.ContestedBy = nil, nil
	default:
		spec.HandingOver = false
		// A holder with a slow Lease was told only when the claim was there that it is to renew: it is about to expire.
		isLate := p.inputs.SlowsLeases && s.reservedBy.node.Liveness != Fresh
		if spec.ContestedBy != nil || p.hasLasted(s.claim.Age, ClaimPatience) && !isLate {
			spec.ContestedBy = &by
		}
	}
	p.keepEntry(s.reservedBy.node, a, spec)
}

// adoptClaim gives an address to the node that has claimed it, with the epoch of the claim.
// Where most Leases have expired, the fault may be the API server's: then the claimer has the
// address only if no device answers for it. The entry of the last holder stays until the claim
// is stored, and changes before that: so no two leaders decide about the address at once.
func (p *placer) adoptClaim(a *Address, s situation) {
	c, last := s.claim, s.reservedBy
	claimer, holder := p.nodeByName[c.Node], last.node
	spec := p.newEntry(a, claimer)
	spec.Epoch, spec.HighestEpoch = c.Epoch, p.highestEpoch(a.Addr)
	if !p.isMassExpiry || s.cause == CauseYielded {
		spec.ClaimPolicy = v1.ClaimTakeover
	}
	why := holder.Name + " " + leaseExpired(holder, a)
	if s.cause == CauseYielded {
		why = fmt.Sprintf("%s reports it %s", holder.Name, cmp.Or(last.ReportedState, v1.StatePending))
	}
	message := fmt.Sprintf("%s, its successor, has claimed it, and %s", claimer.Name, why)
	if c.Message != "" {
		message += fmt.Sprintf(" (%s)", textlimit.Shorten(c.Message, 200))
	}
	p.noteMove(a, Move{
		Kind: Failover, Cause: s.cause, From: holder.Name, To: claimer.Name, IsNew: true, Message: message,
	})
	p.keepEntry(claimer, a, spec)
	if last.hasReported() && !last.isBarred() { // the others stay, as those of nodes that have failed
		old := withHighestEpoch(last.Spec, &spec)
		old.HandingOver = true
		p.addEntry(holder, a, old)
	}
	p.keepFailedEntries(a, claimer, &spec)
}
