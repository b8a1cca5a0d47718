package watch

import "time"

// Durations and counts by which a Watcher decides, each with its reason.
const (
	// DefaultInterval and DefaultMisses find a dead node in half a second.
	DefaultInterval = 100 * time.Millisecond
	DefaultMisses   = 5

	// secondRankDelay is how long after the first successor the second one claims: by then it
	// has heard the first one's claim, even if that was sent late in a round.
	secondRankDelay = 200 * time.Millisecond

	// quietRounds is for how many rounds the link has to leave the questions for an address
	// unanswered before the address is claimed, or the watched node its questions before its next
	// answer makes this node repeat its claims: a question or its answer can be lost.
	quietRounds = 2
	// steadyEchoes is how many rounds in a row a node that has answered otherwise answers echoes until these alone
	// count again.
	steadyEchoes = 20
	// slowRounds is how many rounds pass between two questions for an address that was not
	// claimed when it could be, as another station answers for it.
	slowRounds = 10

	// witnessInterval is how often witnesses are asked while the watched node answers, so that
	// a watch without a witness is known before it is needed.
	witnessInterval = 5 * time.Second
	// witnessMisses is how many of these questions in a row remain unanswered until the watch
	// counts as one without a witness.
	witnessMisses = 2
	// maxGateways bounds how many gateways are asked: the whole link hears each question.
	maxGateways = 2

	// armInterval is how often the link is asked for an address that is not armed, and for each
	// address while the agent is not fresh, and armRetry how soon again after a question that
	// nobody answered.
	armInterval = 10 * time.Second
	armRetry    = time.Second
	// disarmMisses is how many of these questions in a row a living node leaves unanswered
	// until the address is disarmed.
	disarmMisses = 3
	// maxArmQuestionsPerRound bounds for how many addresses the link is asked in one round in order to arm them.
	maxArmQuestionsPerRound = 10

	// A round that takes lateFactor intervals is late, and lateRounds such rounds within
	// lateWindow end the watch until there have been fewer. As many in which answers were lost are shown.
	lateFactor = 2
	lateRounds = 3
	lateWindow = 10 * time.Second
)
