package plan

import "time"

// The durations by which the agent decides, each with its reason. Those by which it sends
// and writes are in package nodeagent.
const (
	// defaultValidLifetime is the valid lifetime of a Local address: an address that no agent
	// renews any more fades from the kernel after five minutes.
	defaultValidLifetime = 300 * time.Second
	// missingObjectPatience bounds for how long the agent withdraws nothing while an Announcement is
	// missing: the manager makes it anew well before, also if another manager has to take
	// over first.
	missingObjectPatience = 15 * time.Second

	// ReprobeInterval is how long an address for which another station answers is left
	// alone before the link is asked again.
	ReprobeInterval = time.Second
	// SilenceValidFor is for how long the silence of a link proves that no station has an
	// address: long enough for an agent that waits for the API server meanwhile.
	SilenceValidFor = 10 * time.Second
	// watcherSilenceValidFor is for how long the silence that a watcher has found does: it has asked for two rounds,
	// and the node that was silent is watched as before. Who is too busy to take a claim for longer asks again, unless
	// local.probe is disabled.
	watcherSilenceValidFor = time.Second

	// ProxyRetry is how often the service proxy is asked again, and ProxyPatience for how
	// long in all before the address is announced all the same: the proxy may know of no
	// such port.
	ProxyRetry    = 50 * time.Millisecond
	ProxyPatience = 5 * time.Second

	// An address that something else on the node removes is put back at once, immediateRepairs
	// times. After that the agent waits for initialRepairBackoff since the last repair, then for twice as
	// long, and so on, for maxRepairBackoff at most: a program that removes the address whenever it
	// sees it must not make the agent work, announce and log without pause, and one that looks
	// every few seconds takes no more from the address than before.
	immediateRepairs     = 5
	initialRepairBackoff = 100 * time.Millisecond
	maxRepairBackoff     = 3 * time.Second
	// repairsForgottenAfter is for how long an address has to stay until its repairs are forgotten.
	repairsForgottenAfter = 30 * time.Second

	// defendInterval is the least time between two defences of an address (RFC 5227
	// section 2.4, DEFEND_INTERVAL).
	defendInterval = 10 * time.Second
	// repeatGap is the least time between two claims of an address against a previous holder
	// that goes on answering.
	repeatGap = time.Second
	// repeatFor is for how long claims are repeated against a previous holder: by then the
	// address has faded from its kernel, unless local.addressConfig gives it a longer lifetime. After
	// that the previous holder counts as any other station.
	repeatFor = defaultValidLifetime
	// answerWindow is for how long after a question a frame for this node alone may be the
	// answer, and multicastAnswerWindow for how long a frame for all stations may be: an
	// advertisement does not say whether it is an answer.
	answerWindow          = time.Second
	multicastAnswerWindow = 250 * time.Millisecond
	// Hesitation is the longest random wait before the agent asks a suspect: of two agents
	// that suspect each other one asks first, and the other keeps the address. So long a node
	// waits, too, that has added an address within hesitateFor before another one claims it:
	// both may have claimed it at the same time.
	Hesitation  = 100 * time.Millisecond
	hesitateFor = time.Second
	// A suspect is asked checkTries times, checkGap apart, and its answer counts until
	// CheckWindow after the last question.
	checkTries  = 3
	checkGap    = 20 * time.Millisecond
	CheckWindow = 100 * time.Millisecond
	// RivalFor is for how long a claim of another station is reported.
	RivalFor = 30 * time.Second
	// answererFor is for how long a station that answered is remembered: longer than the
	// agent waits between two questions to it. A previous holder that has been silent for
	// longer may have got the address back, and this node may be the one that does not know.
	answererFor = RepeatInterval + AskInterval

	// AskInterval is how often an agent that is not fresh asks for its own addresses, and
	// RepeatInterval how often a node that took an address over asks whether the previous
	// holder still answers.
	AskInterval    = time.Second
	RepeatInterval = 5 * time.Second
	// YieldAskInterval is how often the station to which an address was yielded is asked
	// whether it still has the address.
	YieldAskInterval = 100 * time.Millisecond
	// A station counts as silent when it has answered none of silentQuestions questions, for
	// at least silentFor. The whole link is asked then, as for any claim: with the default of
	// two probes 100 ms apart that makes 500 ms.
	silentQuestions = 2
	silentFor       = 200 * time.Millisecond
	// aloneSilentFor is how long a node that is alone on its link leaves an address which it has yielded to others,
	// at least: if the manager has not decided by then, it does not work.
	aloneSilentFor = 30 * time.Second
)

// How much frames make the agent do is bounded, whoever sends them: so many times in a
// second, for all addresses together.
const (
	// announceRate bounds announcements, by which the agent defends an address or repeats a claim.
	announceRate = 200
	// repeatRate bounds announcements to a node that was silent and answers: once in a repeatGap for each address, and
	// of that many addresses at once.
	repeatRate = 1000
	// repeatTimes is how many times each is announced so.
	repeatTimes = 2
	// checkRate bounds questions for single stations. That many addresses can be yielded at
	// once, when another node takes over all of them.
	checkRate = 1000
	// logRate bounds lines about stations that claim addresses. The statuses say all.
	logRate = 50
	// yieldAskRate bounds questions for yielded addresses. Of more addresses each is asked
	// for less often, and claimed again later.
	yieldAskRate = 1000
)

// ShorterWait returns the shorter of two waits, of which 0 means for ever.
func ShorterWait(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
