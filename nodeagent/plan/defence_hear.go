package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Frame is a frame in which a station says that it has an address.
type Frame struct {
	Addr netip.Addr
	// MAC at which the address is said to be, lower case with colons.
	MAC string
	// IsRequest and IsAdvertisement say what the frame is: an ARP request or a neighbour
	// advertisement. An ARP reply is neither.
	IsRequest, IsAdvertisement bool
	// IsGratuitous means that the frame is an ARP announcement or an unsolicited
	// advertisement, and IsDirect that it was for this node alone.
	IsGratuitous, IsDirect bool
}

// Reaction is what the agent does because of a frame. More than one of its parts may be set.
type Reaction struct {
	// Held is the address that the frame is about.
	Held Held
	// Announce means to announce the address once, at once.
	Announce bool
	// YieldToMAC is the MAC of the station to which to yield: the address is to be withdrawn at
	// once. Empty for no yield.
	YieldToMAC string
	// Check is a station to ask by itself, after a random wait of up to CheckWithin; nil for
	// none.
	Check       *Check
	CheckWithin time.Duration
	// NewRivalMAC is the MAC of a station that has begun to claim the address, and is to be
	// reported; empty for none. See Rival.
	NewRivalMAC string
	// IsContested means that another station claims the address: the agent is to renew its Lease, unless it just has.
	IsContested bool
	// Report means that there is something to report.
	Report bool
	// MayLog means that the rate of log lines allows another.
	MayLog bool
}

// Hear decides what a frame makes the agent do that came by an interface: as the Rules say
// if the node holds the address. If the agent has yielded the address, an answer shows that a
// station still has it.
func (d *Defence) Hear(iface string, f Frame, isFresh, isGateway bool, now time.Time) Reaction {
	h, isHeld := d.Held[f.Addr]
	if !isHeld && !isGateway {
		d.hearOfYielded(iface, f, now)
	}
	if !isHeld || h.Interface != iface {
		return Reaction{}
	}
	state := d.HeldStates[f.Addr]
	isPreviousHolder := (h.IsProvisional || now.Before(state.RepeatUntil)) && slices.Contains(h.PreviousMACs, f.MAC)
	hearing := Hearing{
		Statement: d.statementOf(iface, f, state.AskedAt, now),
		// A node that had the address answers for itself, also where it is the gateway of the others.
		IsAgentFresh: isFresh, IsUndefended: h.IsUndefended, IsGateway: isGateway && !isPreviousHolder,
		IsPreviousHolder:      isPreviousHolder,
		HasAnsweredSinceFresh: state.hasAnsweredSinceFresh(f.MAC, now), IsAsked: state.isBeingAsked(f.MAC, now),
		IsProvisional: h.IsProvisional, HasHigherEpoch: slices.Contains(h.HigherEpochMACs, f.MAC),
		HasLowerEpoch: slices.Contains(h.LowerEpochMACs, f.MAC),
	}
	verdict := Judge(hearing)
	if hearing.HasAnsweredSinceFresh || hearing.IsAgentFresh && hearing.IsPreviousHolder {
		state.rememberAnswerer(f.MAC, now)
	}
	return d.reactionTo(verdict, h, state, f.MAC, now)
}

// reactionTo turns a verdict about a station into a Reaction.
func (d *Defence) reactionTo(verdict Verdict, h Held, state *HeldState, mac string, now time.Time) Reaction {
	r := Reaction{Held: h, IsContested: verdict == Defend || verdict == CheckClaim}
	switch verdict {
	case Repeat:
		r.Announce = d.allowAnnouncement(state, repeatGap, now)
	case Defend:
		d.noteRival(&r, state, mac, now)
		r.Announce = d.allowAnnouncement(state, defendInterval, now)
	case CheckClaim:
		r.Check = d.beginCheck(h.Prefix.Addr(), state, mac, true, now)
		if now.Sub(state.AddedAt) < hesitateFor {
			r.CheckWithin = Hesitation
		}
	case Suspect:
		r.Check, r.CheckWithin = d.beginCheck(h.Prefix.Addr(), state, mac, false, now), Hesitation
	case Remember:
		state.rememberAnswerer(mac, now)
	case Yield:
		d.NoteYield(h, mac, now)
		r.YieldToMAC, r.MayLog = mac, d.logs.AllowN(now, 1)
	case Ignore:
	}
	return r
}

// statementOf returns how a station says that it has an address that was last asked for at
// askedAt.
func (d *Defence) statementOf(iface string, f Frame, askedAt, now time.Time) Statement {
	switch {
	case f.IsAdvertisement && f.IsGratuitous && now.Sub(askedAt) <= multicastAnswerWindow &&
		!d.Sender(iface, f.Addr).IsValid():
		return StatementAnswer // the answer to a question without a sender is for all stations
	case f.IsGratuitous:
		return StatementAnnouncement
	case !f.IsRequest && f.IsDirect && now.Sub(askedAt) <= answerWindow:
		return StatementAnswer
	}
	return StatementUse
}

// allowAnnouncement reports whether the agent may announce an address once more, and notes that it does.
// Two stations that both insist would never end without the least gap.
func (d *Defence) allowAnnouncement(state *HeldState, gap time.Duration, now time.Time) bool {
	if now.Sub(state.AnnouncedAt) < gap || !d.announcements.AllowN(now, 1) {
		return false
	}
	state.AnnouncedAt = now
	return true
}

// RepeatClaims returns which addresses to announce once more now, of those that the node has by a claim: addrs, which
// are those of a node that was silent and answers, and others that it was told of before. Each is announced
// repeatTimes, as a frame can be lost, those first that were not for longest. What has been announced in the last
// repeatGap waits, as does what the rate does not allow. mayLog means that the rate of log lines allows one.
func (d *Defence) RepeatClaims(addrs []netip.Addr, now time.Time) (repeated []Held, mayLog bool) {
	for _, addr := range addrs {
		d.repeatsDue[addr] = repeatTimes
	}
	var due []netip.Addr
	for addr := range d.repeatsDue {
		switch h, isHeld := d.Held[addr]; {
		case !isHeld || !h.IsProvisional:
			delete(d.repeatsDue, addr)
		case now.Sub(d.HeldStates[addr].AnnouncedAt) >= repeatGap:
			due = append(due, addr)
		}
	}
	slices.SortFunc(due, func(a, b netip.Addr) int {
		return cmp.Or(d.HeldStates[a].AnnouncedAt.Compare(d.HeldStates[b].AnnouncedAt), a.Compare(b))
	})
	for _, addr := range due {
		if !d.repeats.AllowN(now, 1) {
			break
		}
		d.HeldStates[addr].AnnouncedAt = now
		if d.repeatsDue[addr]--; d.repeatsDue[addr] == 0 {
			delete(d.repeatsDue, addr)
		}
		repeated = append(repeated, d.Held[addr])
	}
	return repeated, len(repeated) > 0 && d.logs.AllowN(now, 1)
}

// noteRival notes that a station claims a held address, and makes the reaction report a
// station that has just begun to: one station for each address, for as long as it goes on.
func (d *Defence) noteRival(r *Reaction, state *HeldState, mac string, now time.Time) {
	isFirst := state.RivalClaimedAt.IsZero() || now.Sub(state.RivalClaimedAt) > RivalFor
	if mac != state.RivalMAC && !isFirst && now.Sub(state.RivalSince) < defendInterval {
		return
	}
	if isFirst || mac != state.RivalMAC {
		state.RivalSince = now
		r.NewRivalMAC, r.MayLog = mac, d.logs.AllowN(now, 1)
	}
	state.RivalMAC, state.RivalClaimedAt = mac, now
}
