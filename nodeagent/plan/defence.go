package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// Defence is what the listener remembers of the Local addresses that the node holds or has
// yielded, and the machine that decides what a frame makes the agent do. It reads no clock,
// sends nothing and starts nothing: the caller passes the time, and does what the methods
// return. It is not for concurrent use.
//
// It is lost with the process. The next one learns Held from its first decision, restores the
// epochs of Yields from the checkpoint, and hears the rest again. The rates start full.
type Defence struct {
	// Held are the Local addresses that the node has.
	Held map[netip.Addr]Held
	// Yields are the addresses that the agent has yielded. The checkpoint keeps their
	// epochs, MACs and Announcements, so that an agent that starts does not take them over.
	Yields map[netip.Addr]YieldedAddress
	// HeldStates say what was heard and done about each held address. To lose one is harmless:
	// whatever is heard next says it again.
	HeldStates map[netip.Addr]*HeldState
	// NodeAddresses are all addresses of the node, of which some are the node's own. They are
	// replaced with each observation of the kernel.
	NodeAddresses []Address

	// announcements, checks and logs bound how often frames make the agent announce addresses, ask single
	// stations, and log.
	announcements, checks, logs *rate.Limiter
	// repeatsDue says of claims that are to be repeated how many times they are, and repeats bounds how often.
	repeatsDue map[netip.Addr]int
	repeats    *rate.Limiter
}

// NewDefence returns the Defence of an agent that has just started.
func NewDefence() *Defence {
	limiter := func(perSecond int) *rate.Limiter { return rate.NewLimiter(rate.Limit(perSecond), perSecond) }
	return &Defence{
		Held: map[netip.Addr]Held{}, Yields: map[netip.Addr]YieldedAddress{}, HeldStates: map[netip.Addr]*HeldState{},
		announcements: limiter(announceRate), checks: limiter(checkRate), logs: limiter(logRate),
		repeatsDue: map[netip.Addr]int{}, repeats: limiter(repeatRate),
	}
}

// HeldState is what was heard and done about one held address.
type HeldState struct {
	// AskedAt is when the link, or a single station, was last asked for the address.
	AskedAt time.Time
	// AnnouncedAt is when the agent last announced the address because of what it heard.
	AnnouncedAt time.Time
	// AddedAt is when this node added the address; zero if not since the agent started.
	AddedAt time.Time
	// RepeatUntil is until when claims are repeated against a previous holder.
	RepeatUntil time.Time
	// LastAnswerByMAC says when stations last answered that began to while the agent was fresh.
	LastAnswerByMAC map[string]time.Time
	// Checks are the stations that are being asked by themselves, by MAC.
	Checks map[string]*Check
	// CheckedContestEpoch is the epoch of the last Contest that was checked.
	CheckedContestEpoch int64
	// RivalMAC is of the station that is reported to claim the address, RivalSince since when, and
	// RivalClaimedAt when it last did.
	RivalMAC                   string
	RivalSince, RivalClaimedAt time.Time
}

// SetHeld replaces what the node holds. An address that was yielded meanwhile is not held.
func (d *Defence) SetHeld(held []Held) {
	clear(d.Held)
	for _, h := range held {
		addr := h.Prefix.Addr()
		if y, isYielded := d.Yields[addr]; isYielded && y.Epoch >= h.Epoch {
			continue
		}
		d.Held[addr] = h
		if d.HeldStates[addr] == nil {
			d.HeldStates[addr] = &HeldState{}
		}
		if h.IsUndefended { // the next holder may be the previous one
			d.HeldStates[addr].RepeatUntil = time.Time{}
		}
	}
	maps.DeleteFunc(d.HeldStates, func(addr netip.Addr, _ *HeldState) bool { _, isHeld := d.Held[addr]; return !isHeld })
}

// NoteAdded notes that the node has added an address and announces it. If another node had
// the address before, that one may still be there.
func (d *Defence) NoteAdded(desired *Desired, now time.Time) {
	state := d.HeldStates[desired.Addr]
	if state == nil {
		state = &HeldState{}
		d.HeldStates[desired.Addr] = state
	}
	state.AddedAt = now
	if len(desired.PreviousMACs) > 0 {
		state.RepeatUntil = now.Add(repeatFor)
	}
}

// NoteHeldAsked notes that the link was asked for a held address.
func (d *Defence) NoteHeldAsked(addr netip.Addr, now time.Time) {
	if state := d.HeldStates[addr]; state != nil {
		state.AskedAt = now
	}
}

// AllHeld returns all held addresses.
func (d *Defence) AllHeld() []Held { return slices.Collect(maps.Values(d.Held)) }

// HeldWithPreviousHolder returns the held addresses about which the link is to be asked,
// since a previous holder may still answer for them.
func (d *Defence) HeldWithPreviousHolder(now time.Time) []Held {
	var held []Held
	for addr, h := range d.Held {
		if now.Before(d.HeldStates[addr].RepeatUntil) {
			held = append(held, h)
		}
	}
	return held
}

// ListenInterfaces returns the interfaces on which to listen: those of what is held or yielded.
func (d *Defence) ListenInterfaces() map[string]bool {
	interfaces := map[string]bool{}
	for _, h := range d.Held {
		interfaces[h.Interface] = true
	}
	for _, y := range d.Yields {
		if y.Interface != "" {
			interfaces[y.Interface] = true
		}
	}
	return interfaces
}

// IsListenedFor reports whether it matters what other stations say about an address.
func (d *Defence) IsListenedFor(addr netip.Addr) bool {
	_, isHeld := d.Held[addr]
	_, isYielded := d.Yields[addr]
	return isHeld || isYielded
}

// Sender returns the address of the node's own with which to ask the link of an interface for
// another; see Sender.
func (d *Defence) Sender(iface string, addr netip.Addr) netip.Addr {
	return Sender(d.NodeAddresses, iface, addr)
}

// Rivals returns the claims of held addresses that were heard lately.
func (d *Defence) Rivals(now time.Time) map[netip.Addr]Rival {
	rivals := map[netip.Addr]Rival{}
	for addr, state := range d.HeldStates {
		if left := RivalFor - now.Sub(state.RivalClaimedAt); !state.RivalClaimedAt.IsZero() && left > 0 {
			rivals[addr] = Rival{MAC: state.RivalMAC, Left: left}
		}
	}
	return rivals
}
