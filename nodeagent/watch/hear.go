package watch

import (
	"net/netip"
	"slices"
)

// Kind of a question.
type Kind int

// Kinds of questions.
const (
	// Echo is an ICMP or ICMPv6 echo request.
	Echo Kind = iota
	// Resolve is an ARP request or a neighbour solicitation.
	Resolve
)

// Answer is what a station has answered.
type Answer struct {
	Kind Kind
	// Addr is the address that was asked, or asked for.
	Addr netip.Addr
	// MAC of the station, lower case with colons.
	MAC string
	// Round is the number of the round whose echo is answered. Other answers have none.
	Round uint16
	// IsDirectAnswer means that an answer to a Resolve was for this node alone: it shows that the question
	// has arrived. What a station says to all does not.
	IsDirectAnswer bool
	// IsGateway means that the station is a default gateway, which may answer for every address as a proxy (RFC 1027).
	IsGateway bool
}

// Hear notes an answer. Its cost does not depend on how many answers come: what stations send
// unasked is noted once.
func (w *Watcher) Hear(a Answer) {
	for _, watcher := range w.successorWatchers {
		watcher.Hear(a)
	}
	if w.number == 0 {
		return
	}
	if a.Kind == Resolve {
		if known := w.addresses[a.Addr]; known != nil {
			if !a.IsGateway || w.target.hasNodeOf(a.MAC) {
				w.hearHolder(known, a.MAC)
			}
			return
		}
	}
	if watched := &w.target.Watched; watched.Addr == a.Addr && slices.Contains(watched.MACs, a.MAC) {
		w.hearWatched(a)
		return
	}
	for i := range w.target.Witnesses {
		if n := &w.target.Witnesses[i]; n.Addr == a.Addr && slices.Contains(n.MACs, a.MAC) &&
			!slices.Contains(w.target.Watched.MACs, a.MAC) {
			w.hearWitness(w.witnesses[n.Name], a)
		}
	}
	isGateway := slices.Contains(w.target.Gateways, a.Addr) && !slices.Contains(w.target.Watched.MACs, a.MAC)
	if isGateway && a.Kind == Resolve && a.IsDirectAnswer && w.areGatewaysAsked() {
		w.gatewayWitnesses.hasAnswered = true
	}
}

// hearWatched notes a sign of life of the watched node, unless it answers a question of long
// ago.
func (w *Watcher) hearWatched(a Answer) {
	switch {
	case a.Kind == Echo && w.number-a.Round <= uint16(w.settings.Misses): //nolint:gosec // at most 20
		w.watched.noteEcho()
	case a.Kind == Echo || w.settings.TrustsEchoOnly || w.watched.hasEchoed && !w.resolvesSilentNode():
		return
	case w.watched.hasEchoed:
		w.acceptLifeWithoutEcho()
	}
	w.watched.isKnown, w.watched.hasAnswered = true, true
}

// acceptLifeWithoutEcho takes an answer that is none to an echo, in the silence of the watched node, for a sign
// of life. From then on not only answers to echoes count.
func (w *Watcher) acceptLifeWithoutEcho() {
	w.watched.hasAnswered = true
	w.watched.noteAnswerWithoutEcho()
}

// hearWitness notes that a witness has answered a question of this round.
func (w *Watcher) hearWitness(witness *liveness, a Answer) {
	switch {
	case !w.areWitnessesAsked:
		return
	case a.Kind == Echo && a.Round == w.number:
		witness.noteEcho()
	case a.Kind == Resolve && a.IsDirectAnswer && !witness.hasEchoed && !w.settings.TrustsEchoOnly:
		witness.noteAnswerWithoutEcho()
	default:
		return
	}
	witness.hasAnswered = true
}

// hearHolder notes who answers for an address.
func (w *Watcher) hearHolder(known *watchedAddress, mac string) {
	switch isWatched := slices.Contains(w.target.Watched.MACs, mac); {
	case !known.isAsked:
	case !isWatched:
		known.isTaken = true
		other := w.target.otherSuccessor(known.OtherSuccessor)
		known.isSucceeded = known.isSucceeded || other != nil && slices.Contains(other.MACs, mac)
	case w.misses == 0:
		known.isHeld = true
	case !w.settings.TrustsEchoOnly:
		w.acceptLifeWithoutEcho()
	}
}
