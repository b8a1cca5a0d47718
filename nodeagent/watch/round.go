package watch

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// RoundInputs are what a round depends on besides answers.
type RoundInputs struct {
	// CanHear means that the interface has a carrier.
	CanHear bool
	// AreAnswersLost means that some of the answers were lost that came in the round that ends.
	AreAnswersLost bool
	// IsAgentFresh means that the agent renewed its Lease lately, and so knows what the watched node
	// is to have.
	IsAgentFresh bool
}

// Question is to be sent on the link.
type Question struct {
	Kind Kind
	Addr netip.Addr
	// MACs of the node that is asked, or that may have the address.
	MACs []string
	// IsForAll means that the whole link is asked, too.
	IsForAll bool
}

// Step is what to do about one node at the beginning of a round.
type Step struct {
	// Node is the name of the node that is judged: the watched one, or another successor.
	Node string
	// Round is the number that the round's echoes carry.
	Round uint16
	// Questions to send, those to the node before those to witnesses.
	Questions []Question
	// Claims are the addresses to claim, ascending, and SilentFor is for how long the node has been
	// silent then.
	Claims    []Address
	SilentFor time.Duration
	// Repeats are the addresses to announce once more if this node has claimed them: those of a node that answers, for
	// the first time or after it did not, and so may have them in its kernel. Ascending.
	Repeats []netip.Addr
}

// AdvanceRound ends a round, once all answers that came until now have been heard, and begins the
// next one. The caller calls it each Settings.Interval. The first Step is about the watched node,
// and those that follow, if any, are about other successors.
func (w *Watcher) AdvanceRound(now time.Time, inputs RoundInputs) []Step {
	step := Step{Node: w.target.Watched.Name}
	if w.number > 0 {
		step.Repeats = w.addressesToRepeat()
		w.judge(now, inputs)
		w.watchAnsweringSuccessors()
	}
	step.Claims, step.SilentFor = w.takeClaims(), now.Sub(w.answeredAt)
	w.begin(now)
	step.Round, step.Questions = w.number, w.beginQuestions(now, inputs)
	return append([]Step{step}, w.roundsOfSuccessorWatchers(now, inputs)...)
}

// addressesToRepeat returns the addresses that are to be announced once more if this node has claimed them:
// all, when the watched node answers after rounds in which it did not, be it that this node was cut
// off; and when it answers for the first time, as an earlier process may have claimed them.
func (w *Watcher) addressesToRepeat() []netip.Addr {
	if !w.watched.hasAnswered || w.watched.isAlive {
		return nil
	}
	addrs := make([]netip.Addr, 0, len(w.target.Addresses))
	for _, a := range w.target.Addresses {
		addrs = append(addrs, a.Addr)
	}
	return addrs
}

// judge draws the conclusions of the round that ends.
func (w *Watcher) judge(now time.Time, inputs RoundInputs) {
	if w.areWitnessesAsked {
		w.judgeWitnesses()
	}
	w.watched.judgeEchoes()
	if w.areGatewaysAsked() {
		w.gatewayWitnesses.judge()
	}
	if w.nodeWitnesses.unanswered >= witnessMisses {
		for _, known := range w.witnesses {
			known.hasEchoed = false
		}
	}
	isLate := now.Sub(w.roundAt) >= lateFactor*w.settings.Interval
	w.lateAt = noteRecent(w.lateAt, isLate, now)
	// Why the round is no miss, by the rules of doc.go.
	showedLife := w.watched.hasAnswered // rule 1
	hasNeverLived := !w.watched.isKnown // rule 1
	isWitnessed := w.nodeWitnesses.hasAnswered || w.gatewayWitnesses.hasAnswered
	mayBeCutOff := w.misses > 0 && !isWitnessed // rule 2
	cannotHear := !inputs.CanHear               // rule 3, as are isLate and AreAnswersLost
	w.lostAt = noteRecent(w.lostAt, inputs.AreAnswersLost, now)
	if showedLife || hasNeverLived || mayBeCutOff || isLate || cannotHear || inputs.AreAnswersLost {
		if w.misses > 0 {
			w.witnessesAskedAt = time.Time{} // what kept the watched node from answering may have kept them
		}
		w.misses = 0
	} else {
		w.misses++
	}
	w.watched.unanswered++
	if w.watched.hasAnswered {
		w.watched.unanswered, w.answeredAt = 0, w.roundAt
	}
	w.watched.isAlive = w.watched.hasAnswered || w.watched.isAlive && w.watched.unanswered < quietRounds
	for _, a := range w.addresses {
		w.judgeAddress(a, inputs.AreAnswersLost)
	}
}

// noteRecent returns the ends of the last rounds of a kind, with that of a round which ends now if it is of that kind:
// at most lateRounds of them, within lateWindow.
func noteRecent(ends []time.Time, isOfKind bool, now time.Time) []time.Time {
	ends = slices.DeleteFunc(ends, func(at time.Time) bool { return now.Sub(at) > lateWindow })
	if isOfKind {
		ends = append(ends, now)
	}
	return ends[max(0, len(ends)-lateRounds):]
}

// judgeWitnesses draws the conclusions of a round in which the nodes that are witnesses were asked. This node may
// be cut off together with some of them. So while the watched node is silent at least half of those are to answer
// that did while it was not.
func (w *Watcher) judgeWitnesses() {
	expected, answered := 0, 0
	for _, known := range w.witnesses {
		known.judgeEchoes()
		if known.isKnown && known.unanswered < witnessMisses {
			expected++
		}
		switch {
		case known.hasAnswered:
			answered++
			known.isKnown, known.unanswered = true, 0
		case w.watched.hasAnswered: // so this node is not cut off, and the witness may be dead
			known.unanswered++
		}
	}
	w.nodeWitnesses.hasAnswered = answered > 0 && (w.watched.hasAnswered || 2*answered >= expected)
	w.nodeWitnesses.judge()
}

// judgeAddress draws the conclusions for one address. That no answer was read says nothing of a round in which answers
// were lost.
func (w *Watcher) judgeAddress(a *watchedAddress, areAnswersLost bool) {
	if w.misses == 0 {
		a.quiet, a.isClaimed = 0, false
	}
	switch {
	case !a.isAsked:
	case a.isHeld:
		a.isArmed, a.unheld, a.heldAt = true, 0, w.roundAt
	case areAnswersLost:
	case w.watched.hasAnswered:
		if a.unheld++; a.unheld >= disarmMisses {
			a.isArmed = false
		}
	case a.isTaken:
		a.quiet = 0
	default:
		a.quiet++
	}
}

// takeClaims returns the addresses that are to be claimed now, each once, and watches their other successors.
func (w *Watcher) takeClaims() []Address {
	if !w.isSilent() || w.isLate() {
		return nil
	}
	var claims []Address
	for _, target := range w.target.Addresses {
		a := w.addresses[target.Addr]
		isTurn := a.Rank == 0 || w.misses >= w.settings.Misses+w.settings.secondRankRounds()
		if isTurn && a.isArmed && !a.isClaimed && a.quiet >= quietRounds && !w.isHeldByOtherSuccessor(a) {
			a.isClaimed = true
			claims = append(claims, a.Address)
			w.watchSuccessor(a.Address, false)
		}
	}
	return claims
}

// begin begins a round.
func (w *Watcher) begin(now time.Time) {
	if w.number++; w.number == 0 {
		w.number = 1
	}
	w.roundAt = now
	w.watched.hasAnswered, w.nodeWitnesses.hasAnswered, w.gatewayWitnesses.hasAnswered = false, false, false
	for _, known := range w.witnesses {
		known.hasAnswered = false
	}
	w.areWitnessesAsked = w.misses > 0 || now.Sub(w.witnessesAskedAt) >= witnessInterval
	if w.areWitnessesAsked {
		w.witnessesAskedAt = now
	}
	for _, a := range w.addresses {
		a.isAsked, a.isHeld, a.isTaken, a.isSucceeded = false, false, false, false
	}
}

// beginQuestions returns what to ask in the round that has begun, and notes for which addresses.
func (w *Watcher) beginQuestions(now time.Time, inputs RoundInputs) []Question {
	questions := w.appendNodeQuestions(nil, &w.target.Watched, !w.watched.hasEchoed || w.resolvesSilentNode())
	if w.areWitnessesAsked {
		for i := range w.target.Witnesses {
			n := &w.target.Witnesses[i]
			questions = w.appendNodeQuestions(questions, n, !w.witnesses[n.Name].hasEchoed)
		}
	}
	if w.areGatewaysAsked() {
		for _, addr := range w.target.Gateways {
			questions = append(questions, Question{Kind: Resolve, Addr: addr, IsForAll: true})
		}
	}
	if w.misses == 0 {
		w.askToArm(now, inputs)
	}
	for _, target := range w.target.Addresses {
		a := w.addresses[target.Addr]
		if w.misses > 0 {
			a.isAsked = a.isArmed && !a.isClaimed && w.isSilenceQuestionDue()
		}
		if a.isAsked {
			questions = append(questions, Question{Kind: Resolve, Addr: a.Addr, MACs: w.target.Watched.MACs, IsForAll: true})
		}
	}
	return questions
}

// askToArm notes for which addresses the link is asked in this round in order to arm them: those that were not
// asked for longest, so that each one's turn comes.
func (w *Watcher) askToArm(now time.Time, inputs RoundInputs) {
	var due []*watchedAddress
	for _, a := range w.addresses {
		if w.isArmQuestionDue(a, now, inputs) {
			due = append(due, a)
		}
	}
	slices.SortFunc(due, func(x, y *watchedAddress) int {
		return cmp.Or(x.armAskedAt.Compare(y.armAskedAt), x.Addr.Compare(y.Addr))
	})
	for _, a := range due[:min(len(due), maxArmQuestionsPerRound)] {
		a.isAsked, a.armAskedAt = true, now
	}
}

// appendNodeQuestions appends the questions to a node: an echo, and where an answer would count an ARP request
// or neighbour solicitation.
func (w *Watcher) appendNodeQuestions(questions []Question, n *Node, resolves bool) []Question {
	if !n.Addr.IsValid() {
		return questions
	}
	questions = append(questions, Question{Kind: Echo, Addr: n.Addr, MACs: n.MACs})
	if resolves && !w.settings.TrustsEchoOnly {
		questions = append(questions, Question{Kind: Resolve, Addr: n.Addr, MACs: n.MACs})
	}
	return questions
}

// resolvesSilentNode reports whether the watched node itself is asked in this round of a silence by ARP or neighbour
// discovery, too: early enough for the claim, and then for as long as it is silent. The first sign of life may be that
// answer: one to an echo may have to wait for a second until the node has found out by which MAC this one is reached.
func (w *Watcher) resolvesSilentNode() bool { return w.misses >= w.settings.Misses-quietRounds }

// isSilenceQuestionDue reports whether the link is asked for addresses in this round of a silence: early enough for the
// claim, and seldom after both successors could claim.
func (w *Watcher) isSilenceQuestionDue() bool {
	bothMayClaim := w.settings.Misses + w.settings.secondRankRounds()
	switch roundsSince := w.misses - bothMayClaim; {
	case !w.resolvesSilentNode():
		return false
	case roundsSince <= 0:
		return true
	case roundsSince < slowRounds:
		return false
	default: // quietRounds rounds, one after the other, of each slowRounds
		return roundsSince%slowRounds < quietRounds
	}
}

// isArmQuestionDue reports whether the link is to be asked whether the watched node has an address.
func (w *Watcher) isArmQuestionDue(a *watchedAddress, now time.Time, inputs RoundInputs) bool {
	gap := armInterval
	if a.unheld > 0 && a.unheld < disarmMisses {
		gap = armRetry
	}
	return (!a.isArmed || !inputs.IsAgentFresh) && now.Sub(a.armAskedAt) >= gap
}
