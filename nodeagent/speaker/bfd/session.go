package bfd

import (
	"net/netip"
	"time"
)

// slowInterval is the least time between packets of a session that is not Up (RFC 5880 section 6.8.3).
const slowInterval = time.Second

// Settings are those of one side of a session.
type Settings struct {
	// Interval is the time between packets that this side wants to send, and that it can receive.
	Interval time.Duration
	// Multiplier is how many packets of this side may be lost before the other side notices.
	Multiplier uint8
}

// NeighbourSettings is what the node wants of the session with one neighbour.
type NeighbourSettings struct {
	Settings
	// Source is the node's address in the session; the zero value is the one of the route.
	Source netip.Addr
}

// Session is this side's state of one session. All of it is lost with the process: the neighbour then
// hears another discriminator.
type Session struct {
	settings      Settings
	discriminator uint32
	// random returns a number from 0 to 1, by which packets are spread in time.
	random func() float64

	state      State
	diagnostic Diagnostic
	remote     remote

	// sentLimits are the limits that packets have, and usedLimits those by which this side acts: the neighbour
	// has to know of a slower pace first. isPolling is that it is being asked whether it does, and
	// pollsAgain that the limits have changed since it was asked.
	sentLimits, usedLimits limits
	isPolling, pollsAgain  bool

	// lastSentAt is when the last packet of the regular ones was sent, and spread the part of the interval
	// after which the next one is due.
	lastSentAt time.Time
	spread     float64
}

// limits are the least times between packets that a side wants to send and can receive.
type limits struct{ minTx, minRx time.Duration }

// remote is what the neighbour has said last. The zero value is a neighbour that has said nothing.
type remote struct {
	discriminator uint32
	state         State
	isOnDemand    bool
	multiplier    uint8
	limits        limits
	heardAt       time.Time
	// paces are how often it has said that it wants to send, in the last regular packet and the one before.
	paces [2]time.Duration
}

// pace returns how often the neighbour sends at least: what it says in a packet holds from the next one on.
func (r *remote) pace() time.Duration { return max(r.limits.minTx, r.paces[0], r.paces[1]) }

// Outcome is what comes of a packet, or of the time that has passed.
type Outcome struct {
	// Send is the packet to send now, if there is one.
	Send *Packet
	// HasChanged is that the session has another state now.
	HasChanged bool
	// HasFailed is that the session was Up, and the path to the neighbour is dead.
	HasFailed bool
}

// New begins a session. Discriminators are not 0, and unique in the node; random returns a number from 0
// to 1.
func New(settings Settings, discriminator uint32, random func() float64) *Session {
	// No packet has been sent for longer than any interval: the first one is due.
	s := &Session{settings: settings, discriminator: discriminator, random: random, state: Down, spread: 1}
	s.updateLimits()
	return s
}

// State returns the state.
func (s *Session) State() State { return s.state }

// Discriminator returns the number by which the neighbour knows the session.
func (s *Session) Discriminator() uint32 { return s.discriminator }

// Diagnostic returns why the session last went down.
func (s *Session) Diagnostic() Diagnostic { return s.diagnostic }

// Set changes the settings. A session that is Up stays so.
func (s *Session) Set(settings Settings) {
	s.settings = settings
	s.updateLimits()
}

// Stop ends the session, and returns the packet that says so. The session does nothing any more.
func (s *Session) Stop() Packet {
	s.state, s.diagnostic, s.isPolling = AdminDown, AdministrativelyDown, false
	return s.packet(false)
}

// Receive takes a packet of the neighbour (RFC 5880 section 6.8.6).
func (s *Session) Receive(p Packet, now time.Time) Outcome {
	if s.state == AdminDown || p.YourDiscriminator != 0 && p.YourDiscriminator != s.discriminator {
		return Outcome{}
	}
	before := s.state
	isOther := p.YourDiscriminator == 0 && p.MyDiscriminator != s.remote.discriminator
	paces := s.remote.paces
	if !p.Final { // else it only answers, at the time of a question
		paces = [2]time.Duration{p.DesiredMinTx, paces[0]}
	}
	s.remote = remote{
		discriminator: p.MyDiscriminator, state: p.State, isOnDemand: p.Demand, multiplier: p.Multiplier,
		limits: limits{p.DesiredMinTx, p.RequiredMinRx}, heardAt: now, paces: paces,
	}
	if p.Final {
		s.endPoll()
	}
	s.follow(p.State)
	o := Outcome{HasChanged: s.state != before}
	o.HasFailed = before == Up && o.HasChanged && p.State == Down && !isOther && p.Diagnostic != NeighbourSignalsDown
	switch {
	case p.Poll:
		answer := s.packet(true)
		o.Send = &answer
	case o.HasChanged:
		o.Send = s.makeRegularPacket(now)
	}
	return o
}

// follow makes the session follow the neighbour's.
func (s *Session) follow(remote State) {
	switch {
	case remote == AdminDown && s.state != Down, s.state == Up && remote == Down:
		s.goDown(NeighbourSignalsDown)
	case s.state == Down && remote == Down:
		s.state = Init
	case s.state == Down && remote == Init, s.state == Init && remote >= Init:
		s.state, s.diagnostic = Up, NoDiagnostic
		s.updateLimits()
	}
}

// Advance takes the time: a neighbour may have been silent for too long, or a packet is due.
func (s *Session) Advance(now time.Time) Outcome {
	var o Outcome
	if end := s.detectionDeadline(); !end.IsZero() && !now.Before(end) {
		s.remote = remote{}
		if s.state != Down {
			o.HasChanged, o.HasFailed = true, s.state == Up
			s.goDown(DetectionTimeExpired)
		}
	}
	if due, isDue := s.nextSendAt(); isDue && (o.HasChanged || !now.Before(due)) {
		o.Send = s.makeRegularPacket(now)
	}
	return o
}

// Deadline returns when Advance is due; zero if never.
func (s *Session) Deadline() time.Time {
	end := s.detectionDeadline()
	due, isDue := s.nextSendAt()
	if !isDue || !end.IsZero() && end.Before(due) {
		return end
	}
	return due
}

// goDown leaves Init or Up.
func (s *Session) goDown(why Diagnostic) {
	s.state, s.diagnostic = Down, why
	s.updateLimits()
}

// updateLimits sets the limits of the session's state and settings. While the session is Up, the neighbour
// is asked whether it knows them; until it says so, this side sends as often as ever, and waits as long
// (RFC 5880 section 6.8.3).
func (s *Session) updateLimits() {
	next := limits{minTx: s.settings.Interval, minRx: s.settings.Interval}
	if s.state != Up {
		next.minTx = max(next.minTx, slowInterval)
		s.sentLimits, s.usedLimits, s.isPolling, s.pollsAgain = next, next, false, false
		return
	}
	if next == s.sentLimits {
		return
	}
	s.sentLimits = next
	s.usedLimits = limits{minTx: min(s.usedLimits.minTx, next.minTx), minRx: max(s.usedLimits.minRx, next.minRx)}
	s.isPolling, s.pollsAgain = true, s.isPolling
}

// endPoll takes the neighbour's answer that it knows the limits. One to a question before the last one
// says nothing of the last limits.
func (s *Session) endPoll() {
	if s.pollsAgain {
		s.pollsAgain = false
		return
	}
	s.isPolling, s.usedLimits = false, s.sentLimits
}

// detectionDeadline returns when the neighbour has been silent for too long (RFC 5880 section 6.8.4); zero if it
// has said nothing.
func (s *Session) detectionDeadline() time.Time {
	if s.remote.heardAt.IsZero() || s.state == AdminDown {
		return time.Time{}
	}
	interval := max(s.usedLimits.minRx, s.remote.pace())
	return s.remote.heardAt.Add(time.Duration(s.remote.multiplier) * interval)
}

// nextSendAt returns when the next regular packet is due, if one is (RFC 5880 section 6.8.7).
func (s *Session) nextSendAt() (time.Time, bool) {
	hasSpoken := !s.remote.heardAt.IsZero()
	isAskedNotTo := hasSpoken && s.remote.limits.minRx == 0
	isOnDemand := s.remote.isOnDemand && s.remote.state == Up && s.state == Up && !s.isPolling
	if s.state == AdminDown || isAskedNotTo || isOnDemand {
		return time.Time{}, false
	}
	interval := max(s.usedLimits.minTx, s.remote.limits.minRx)
	return s.lastSentAt.Add(time.Duration(float64(interval) * s.spread)), true
}

// makeRegularPacket returns a regular packet, after which the next one is due in 75 to 100 % of the interval, or in 75
// to 90 % if none may be lost.
func (s *Session) makeRegularPacket(now time.Time) *Packet {
	s.lastSentAt, s.spread = now, 1-0.25*s.random()
	if s.settings.Multiplier == 1 {
		s.spread = 0.9 - 0.15*s.random()
	}
	p := s.packet(false)
	return &p
}

// packet returns what the session says. A final packet answers a poll, and asks nothing.
func (s *Session) packet(isFinal bool) Packet {
	return Packet{
		State: s.state, Diagnostic: s.diagnostic, Poll: s.isPolling && !isFinal, Final: isFinal,
		Multiplier: s.settings.Multiplier, MyDiscriminator: s.discriminator, YourDiscriminator: s.remote.discriminator,
		DesiredMinTx: s.sentLimits.minTx, RequiredMinRx: s.sentLimits.minRx,
	}
}
