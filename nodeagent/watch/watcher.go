package watch

import (
	"net/netip"
	"slices"
	"time"
)

// Node is a node on the link.
type Node struct {
	Name string
	// Addr is an address of the node's own, in a subnet of the link. Without one the node is not
	// asked.
	Addr netip.Addr
	// MACs by which the node answers, lower case with colons.
	MACs []string
}

// Address is a Local address of the watched node, for which this node is a successor.
type Address struct {
	Addr netip.Addr
	// Rank is 0 for the first successor, and 1 for the second one.
	Rank int
	// HolderEpoch is the epoch by which the watched node holds the address, and Epoch the one
	// that is reserved for the claim of this node.
	HolderEpoch, Epoch int64
	// OtherSuccessor is the name of the other successor; empty if there is none.
	OtherSuccessor string
}

// Target is what a Watcher watches.
type Target struct {
	Watched Node
	// Witnesses are other nodes on the link, and Gateways the next hops of this node's default routes
	// there.
	Witnesses []Node
	Gateways  []netip.Addr
	// OtherSuccessors are the other successors of the addresses.
	OtherSuccessors []Node
	// Addresses, ascending.
	Addresses []Address
}

// Watcher judges one node on one link. It is not for concurrent use.
//
// It is lost with the process: the next one has to see again that the watched node answers.
type Watcher struct {
	settings Settings
	target   Target

	// number of the round that has begun, and roundAt when it did; 0 before the first one.
	number  uint16
	roundAt time.Time
	// lateAt are the ends of the last late rounds, and lostAt those of the last ones in which answers were lost: at most
	// lateRounds of each.
	lateAt, lostAt []time.Time

	// watched, and witnesses by name, are how these nodes answer.
	watched   liveness
	witnesses map[string]*liveness
	// areWitnessesAsked means that witnesses are asked in this round, and witnessesAskedAt when they
	// were asked last.
	areWitnessesAsked bool
	witnessesAskedAt  time.Time
	// nodeWitnesses and gatewayWitnesses are how the witnesses of each kind answer.
	nodeWitnesses, gatewayWitnesses witnessGroup

	// answeredAt is when the last round began in which the watched node has answered.
	answeredAt time.Time
	// misses counts the rounds in a row without a sign of life.
	misses int

	addresses map[netip.Addr]*watchedAddress
	// successorWatchers watch the other successors that have, or may have, addresses of the watched node,
	// by the name of the successor. Each lasts as long as the epoch of the watched node.
	successorWatchers map[string]*Watcher
}

// liveness is how a node answers.
type liveness struct {
	// hasEchoed means that the node has answered an echo. From then on nothing else counts, until hasCeasedToEcho.
	hasEchoed bool
	// hasCeasedToEcho means that the node has given another answer when it answered no echo. Until steadyEchoes
	// rounds in a row bring echoes again, both kinds count: a kernel that limits how many it answers lets some
	// through. hasEchoedInRound means that this round has brought one, and echoedRounds counts these rounds.
	hasCeasedToEcho, hasEchoedInRound bool
	echoedRounds                      int
	// isKnown means that an answer has come that counted, and hasAnswered that one has come
	// in this round.
	isKnown, hasAnswered bool
	// isAlive means that the watched node has answered in an earlier round, and has not left many
	// rounds unanswered since; unanswered counts these, in a row, with and without a witness. Of a witness it counts
	// those in which it was asked and the watched node has answered.
	isAlive    bool
	unanswered int
}

// noteEcho notes the answer to an echo.
func (l *liveness) noteEcho() {
	l.hasEchoedInRound = true
	l.hasEchoed = !l.hasCeasedToEcho
}

// noteAnswerWithoutEcho notes an answer that counts though it is none to an echo. It says nothing of echoes if one has
// been answered in the same round.
func (l *liveness) noteAnswerWithoutEcho() {
	if !l.hasEchoedInRound {
		l.hasEchoed, l.hasCeasedToEcho = false, true
	}
}

// judgeEchoes draws the conclusion of a round in which the node was asked.
func (l *liveness) judgeEchoes() {
	if l.echoedRounds++; !l.hasEchoedInRound {
		l.echoedRounds = 0
	}
	if l.hasCeasedToEcho && l.echoedRounds >= steadyEchoes {
		l.hasEchoed, l.hasCeasedToEcho = true, false
	}
	l.hasEchoedInRound = false
}

// witnessGroup is how the witnesses of one kind answer.
type witnessGroup struct {
	// hasAnswered means that enough of them have answered a question of this round, and unanswered
	// counts the rounds in a row in which they were asked and too few answered.
	hasAnswered bool
	unanswered  int
}

// judge draws the conclusion of a round in which the witnesses were asked.
func (w *witnessGroup) judge() {
	w.unanswered++
	if w.hasAnswered {
		w.unanswered = 0
	}
}

// watchedAddress is what is known of an address of the watched node.
type watchedAddress struct {
	Address
	// isAsked means that the link is asked for the address in this round, isHeld that the
	// watched node has answered, isTaken that another station has, and isSucceeded that this was
	// the other successor.
	isAsked, isHeld, isTaken, isSucceeded bool
	// heldAt is when the last round began in which the watched node has answered.
	heldAt time.Time
	// isArmed means that the watched node was seen to answer for the address, and isClaimed
	// that this node has claimed it since.
	isArmed, isClaimed bool
	// quiet counts the questions in a row that nobody has answered, in the silence of the
	// watched node.
	quiet int
	// armAskedAt is when the link was last asked in order to arm the address, or to see whether
	// it is still armed, and unheld how often in a row a living node has not answered.
	armAskedAt time.Time
	unheld     int
}

// New returns a Watcher that has seen nothing yet.
func New(settings Settings, target Target) *Watcher {
	w := &Watcher{
		settings: settings, witnesses: map[string]*liveness{}, addresses: map[netip.Addr]*watchedAddress{},
		successorWatchers: map[string]*Watcher{},
		gatewayWitnesses:  witnessGroup{unanswered: witnessMisses}, // not known to answer
	}
	w.SetTarget(target)
	return w
}

// SetTarget replaces what is watched. What was seen of another node, or of an address that the
// node holds under another epoch now, does not count any more.
func (w *Watcher) SetTarget(target Target) {
	before := w.target.Watched
	if before.Name != target.Watched.Name || before.Addr != target.Watched.Addr ||
		!slices.Equal(before.MACs, target.Watched.MACs) {
		w.watched, w.misses = liveness{}, 0
		clear(w.addresses)
	}
	w.target = target
	addresses := make(map[netip.Addr]*watchedAddress, len(target.Addresses))
	for _, a := range target.Addresses {
		known := w.addresses[a.Addr]
		if known == nil || known.HolderEpoch != a.HolderEpoch {
			known = &watchedAddress{}
		}
		known.Address = a
		addresses[a.Addr] = known
	}
	w.addresses = addresses
	witnesses := make(map[string]*liveness, len(target.Witnesses))
	for _, n := range target.Witnesses {
		known := w.witnesses[n.Name]
		if known == nil {
			known = &liveness{}
		}
		witnesses[n.Name] = known
	}
	w.witnesses = witnesses
	w.retargetSuccessorWatchers()
}

// needsGateways reports whether gateways are witnesses: no node can be one. A switch that is the gateway
// of all nodes answers this one also when it is cut off from the others together with that switch. So
// gateways count only where there is no other node, or where each was silent when the watched node
// answered, which shows that this node was not cut off.
func (w *Watcher) needsGateways() bool {
	if w.settings.TrustsEchoOnly {
		return false
	}
	for _, known := range w.witnesses {
		if known.unanswered < witnessMisses {
			return false
		}
	}
	return true
}

// areGatewaysAsked reports whether gateways are asked in this round.
func (w *Watcher) areGatewaysAsked() bool { return w.areWitnessesAsked && w.needsGateways() }

// lacksWitness reports whether no witness has answered lately.
func (w *Watcher) lacksWitness() bool {
	lacksGateways := !w.needsGateways() || len(w.target.Gateways) == 0 || w.gatewayWitnesses.unanswered >= witnessMisses
	return lacksGateways && (len(w.target.Witnesses) == 0 || w.nodeWitnesses.unanswered >= witnessMisses)
}

// isLate reports whether too many rounds were late.
func (w *Watcher) isLate() bool { return len(w.lateAt) >= lateRounds }

// LivingNodes are the names of the nodes that the Watcher judges, and that answer it: the watched one, and other
// successors.
func (w *Watcher) LivingNodes() []string {
	var living []string
	if w.watched.isKnown && w.watched.isAlive {
		living = append(living, w.target.Watched.Name)
	}
	for _, watcher := range w.successorWatchers {
		living = append(living, watcher.LivingNodes()...)
	}
	return living
}

// IsArmed reports whether an address is armed: it is claimed when the watched node is silent.
func (w *Watcher) IsArmed(addr netip.Addr) bool {
	a := w.addresses[addr]
	return a != nil && a.isArmed
}

// isSilent reports whether the watched node counts as dead.
func (w *Watcher) isSilent() bool { return w.misses >= w.settings.Misses }
