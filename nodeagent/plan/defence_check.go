package plan

import (
	"maps"
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/internal/order"
)

const (
	// MaxAnswerers bounds how many stations that answer for an address are remembered.
	MaxAnswerers = 16
	// MaxChecks bounds how many stations are asked by themselves at a time, for one address.
	MaxChecks = 4
)

// Check is a station that is asked by itself whether it has a held address. The agent yields
// to the station when its kernel answers.
type Check struct {
	Addr netip.Addr
	// MAC of the station, lower case with colons.
	MAC string
	// IsClaimant means that the station has claimed the address. If it does not answer for
	// the address, it is reported.
	IsClaimant bool

	state   *HeldState
	begunAt time.Time
	// contestEpoch is that of the Contest that is being checked; 0 for none.
	contestEpoch int64
	askedAt      time.Time // last; zero for not yet
	tries        int
}

// isOver reports whether an answer of the station counts no more.
func (c *Check) isOver(now time.Time) bool {
	last := c.begunAt.Add(Hesitation)
	if !c.askedAt.IsZero() {
		last = c.askedAt
	}
	return now.Sub(last) > CheckWindow
}

// beginCheck returns the Check of a station that is to be asked by itself; nil if it is being
// asked already, too many stations are, or the rate of such questions allows no other.
func (d *Defence) beginCheck(addr netip.Addr, state *HeldState, mac string, isClaimant bool, now time.Time) *Check {
	maps.DeleteFunc(state.Checks, func(_ string, c *Check) bool { return c.isOver(now) })
	if _, isBegun := state.Checks[mac]; isBegun || len(state.Checks) >= MaxChecks {
		return nil
	}
	if !d.checks.AllowN(now, 1) {
		return nil
	}
	c := state.addCheck(addr, mac, now)
	c.IsClaimant = isClaimant
	return c
}

// addCheck adds a Check, in the place of one of the same station that is under way.
func (s *HeldState) addCheck(addr netip.Addr, mac string, now time.Time) *Check {
	if s.Checks == nil {
		s.Checks = map[string]*Check{}
	}
	c := &Check{Addr: addr, MAC: mac, state: s, begunAt: now}
	s.Checks[mac] = c
	return c
}

// Contest is the claim of a held address by another node that the manager asks this one to check:
// it asks that node, and yields the address if that node answers, or if no node on the link answers it.
type Contest struct {
	// Epoch of the claim, and MAC by which the other node is asked; both are zero for no Contest.
	Epoch int64
	MAC   string
	// NodeAddrs are addresses of the nodes that may claim addresses of this one, that node among them: they
	// answer a node that is not cut off the link.
	NodeAddrs []netip.Addr
}

// BeginContestChecks begins to check the Contests that are not checked yet. The manager's word
// needs no bound.
func (d *Defence) BeginContestChecks(now time.Time) []Reaction {
	var begun []Reaction
	for addr, h := range order.ByKey(d.Held, netip.Addr.Compare) {
		state, contest := d.HeldStates[addr], h.Contest
		if contest.MAC == "" || state.CheckedContestEpoch >= contest.Epoch {
			continue
		}
		if c := state.Checks[contest.MAC]; c != nil && c.contestEpoch >= contest.Epoch && !c.isOver(now) {
			continue
		}
		c := state.addCheck(addr, contest.MAC, now)
		c.contestEpoch = contest.Epoch
		begun = append(begun, Reaction{Held: h, Check: c})
	}
	return begun
}

// CheckedContestEpochs returns the epochs of the Contests that were checked, by address.
func (d *Defence) CheckedContestEpochs() map[netip.Addr]int64 {
	checked := map[netip.Addr]int64{}
	for addr, state := range d.HeldStates {
		if state.CheckedContestEpoch > 0 {
			checked[addr] = state.CheckedContestEpoch
		}
	}
	return checked
}

// CheckStep is what to do for a Check now.
type CheckStep struct {
	// Ask means to ask the station now.
	Ask bool
	// Next is in how long the next step is; 0 means that the Check is over.
	Next time.Duration
	// Reaction is what follows from a Check that is over.
	Reaction Reaction
	// AloneProbeAddrs are addresses of nodes to ask now whether this node is alone on its link: the station
	// that the Contest is about has not answered. EndContest is to be told.
	AloneProbeAddrs []netip.Addr
}

// AdvanceCheck takes the next step of a Check, and returns what to do for it. A Check ends early when its
// address is not held any more. The agent yields when Hear is told of an answer, not here.
func (d *Defence) AdvanceCheck(c *Check, now time.Time) CheckStep {
	state := c.state
	if d.HeldStates[c.Addr] != state {
		return CheckStep{}
	}
	if c.tries == checkTries {
		step := CheckStep{Reaction: Reaction{Held: d.Held[c.Addr]}}
		if c.contestEpoch > 0 && len(step.Reaction.Held.Contest.NodeAddrs) > 0 {
			return CheckStep{AloneProbeAddrs: step.Reaction.Held.Contest.NodeAddrs}
		}
		state.endCheck(c)
		if c.contestEpoch > 0 {
			state.CheckedContestEpoch, step.Reaction.Report = c.contestEpoch, true
		}
		if c.IsClaimant {
			d.noteRival(&step.Reaction, state, c.MAC, now)
		}
		return step
	}
	step := CheckStep{Ask: c.tries == 0 || d.checks.AllowN(now, 1), Next: checkGap}
	c.askedAt, state.AskedAt = now, now
	if c.tries++; c.tries == checkTries {
		step.Next = CheckWindow
	}
	return step
}

// EndContest returns what follows from a Contest whose claimer has not answered. A node that is
// alone, as nobody on the link answers it, yields the address: it is cut off, and the claimer is
// not, or it would have claimed nothing.
func (d *Defence) EndContest(c *Check, isAlone bool, now time.Time) Reaction {
	state := c.state
	h, isHeld := d.Held[c.Addr]
	if !isHeld || d.HeldStates[c.Addr] != state {
		return Reaction{}
	}
	state.endCheck(c)
	if !isAlone {
		state.CheckedContestEpoch = c.contestEpoch
		return Reaction{Held: h, Report: true}
	}
	d.NoteYield(h, c.MAC, now)
	y := d.Yields[c.Addr]
	y.YieldedAlone = true
	d.Yields[c.Addr] = y
	return Reaction{Held: h, YieldToMAC: c.MAC, MayLog: true}
}

// endCheck forgets a Check.
func (s *HeldState) endCheck(c *Check) {
	if s.Checks[c.MAC] == c {
		delete(s.Checks, c.MAC)
	}
}

// isBeingAsked reports whether a station was asked by itself a moment ago.
func (s *HeldState) isBeingAsked(mac string, now time.Time) bool {
	c := s.Checks[mac]
	return c != nil && !c.askedAt.IsZero() && !c.isOver(now)
}

// hasAnsweredSinceFresh reports whether a station answered while the agent was fresh, and has gone on
// answering since.
func (s *HeldState) hasAnsweredSinceFresh(mac string, now time.Time) bool {
	last, isKnown := s.LastAnswerByMAC[mac]
	return isKnown && now.Sub(last) <= answererFor
}

// rememberAnswerer notes that a station has answered while the agent was fresh, or goes on
// answering.
func (s *HeldState) rememberAnswerer(mac string, now time.Time) {
	if s.LastAnswerByMAC == nil {
		s.LastAnswerByMAC = map[string]time.Time{}
	}
	maps.DeleteFunc(s.LastAnswerByMAC, func(_ string, last time.Time) bool { return now.Sub(last) > answererFor })
	if _, isKnown := s.LastAnswerByMAC[mac]; isKnown || len(s.LastAnswerByMAC) < MaxAnswerers {
		s.LastAnswerByMAC[mac] = now
	}
}
