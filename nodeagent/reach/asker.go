package reach

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

const (
	// askPeriod is how often an address is asked for by all of its askers together.
	askPeriod = time.Minute
	// repeatAfter is how long after silence the question is repeated: three times that is longer than
	// it takes until the addresses of a dead node have another one.
	repeatAfter = 5 * time.Second
	// unreachableInterval is how often each asker asks for an address that is unreachable.
	unreachableInterval = 20 * time.Second
	// roundsUntilUnreachable is how many silent rounds in a row have to count.
	roundsUntilUnreachable = 3
	// maxPerRound bounds for how many addresses one round asks, so that a node which is told of
	// thousands asks a second for no more than these.
	maxPerRound = 50
	// reportInterval is how old the reported time of the last answer may be.
	reportInterval = 10 * time.Minute
)

// RoundGap is the least time between the beginnings of two rounds.
const RoundGap = time.Second

// Asker is what a node has found out about addresses of others. It is lost with the process: the
// next one asks for all of them at once, and begins with what this one has reported.
type Asker struct {
	asked map[Key]*askedAddress
}

// askedAddress is an address that a node asks for.
type askedAddress struct {
	Target
	// dueAt is when to ask next.
	dueAt time.Time
	// silences counts the last rounds in a row in which the holder did not answer, and countedSilences the
	// last ones of these in a row that count.
	silences, countedSilences int
	// hasHeardHolder is that the holder has answered this node, for whatever address.
	hasHeardHolder bool
	finding        finding
	// reportedLastAnswer is the time of the last answer as it is reported.
	reportedLastAnswer time.Time
}

// finding is what a node has found out about an address.
type finding struct {
	reachable   metav1.ConditionStatus
	reason, mac string
	// lastAnswer is when the holder last answered; zero if it never did.
	lastAnswer time.Time
}

// Question is one question, to all stations on the link of an interface.
type Question struct {
	Key
	// MACs are those of the station that is expected to answer; none if any may.
	MACs []string
}

// Answer is what became of a question: a station has answered, the question was not asked, or
// answers may have been lost. The zero Answer is silence.
type Answer struct {
	MAC string
	Err error
}

// New returns an Asker that asks for nothing.
func New() *Asker { return &Asker{asked: map[Key]*askedAddress{}} }

// SetTargets replaces what is asked for. What has not changed stays as it is.
func (a *Asker) SetTargets(targets map[Key]Target, now time.Time) {
	maps.DeleteFunc(a.asked, func(key Key, _ *askedAddress) bool { _, isAsked := targets[key]; return !isAsked })
	for key, target := range targets {
		known := a.asked[key]
		if known != nil && known.Epoch == target.Epoch && known.Holder == target.Holder {
			known.Target = target
			continue
		}
		next := &askedAddress{
			Target: target, dueAt: now, finding: finding{reachable: metav1.ConditionUnknown, reason: v1.ReasonNotAsked},
			hasHeardHolder: known != nil && known.Holder == target.Holder && known.hasHeardHolder,
		}
		if s := &target.Stored; known == nil && s.Address != "" && s.Epoch == target.Epoch { // of an earlier process
			next.finding = finding{reachable: s.Reachable, reason: s.Reason, mac: s.MAC}
			if s.LastReachable != nil {
				next.finding.lastAnswer, next.reportedLastAnswer = s.LastReachable.Time, s.LastReachable.Time
				next.hasHeardHolder = true
			}
		}
		a.asked[key] = next
	}
}

// NextRoundAt returns when to begin the next round, and whether there is one.
func (a *Asker) NextRoundAt() (at time.Time, isAny bool) {
	for _, t := range a.asked {
		if !isAny || t.dueAt.Before(at) {
			at, isAny = t.dueAt, true
		}
	}
	return at, isAny
}

// BeginRound returns for which addresses the round that begins now asks, and all of its questions.
func (a *Asker) BeginRound(now time.Time) (due []Key, questions []Question) {
	for key, t := range a.asked {
		if !t.dueAt.After(now) {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(x, y Key) int { return cmp.Or(a.asked[x].dueAt.Compare(a.asked[y].dueAt), x.Compare(y)) })
	due = due[:min(len(due), maxPerRound)]
	isAsked := map[Key]bool{}
	ask := func(key Key, macs []string) {
		if key.Addr.IsValid() && !isAsked[key] {
			isAsked[key] = true
			questions = append(questions, Question{key, macs})
		}
	}
	for _, key := range due {
		ask(key, a.asked[key].HolderMACs)
	}
	for _, key := range due {
		t := a.asked[key]
		if t.silences == 0 {
			continue
		}
		ask(Key{key.Interface, t.HolderAddr}, t.HolderMACs)
		for _, addr := range t.WitnessAddrs {
			ask(Key{key.Interface, addr}, nil)
		}
	}
	return due, questions
}

// EndRound notes what became of a round that BeginRound has begun. It reports whether there is something
// to report.
func (a *Asker) EndRound(due []Key, answers map[Key]Answer, now time.Time) (isNews bool) {
	for _, key := range due {
		t := a.asked[key]
		if t == nil { // not asked for any more
			continue
		}
		before := t.finding
		answer := answers[key]
		if answer.Err == nil && answer.MAC != "" && t.isHolder(answer.MAC) {
			t.noteAnswer(key, now)
		} else {
			t.noteSilence(key, answer, answers, now)
		}
		before.lastAnswer = t.finding.lastAnswer
		isNews = isNews || before != t.finding || t.finding.lastAnswer.Sub(t.reportedLastAnswer) >= reportInterval
	}
	return isNews
}

func (a *askedAddress) isHolder(mac string) bool {
	return mac != "" && (len(a.HolderMACs) == 0 || slices.Contains(a.HolderMACs, mac))
}

func (a *askedAddress) noteAnswer(key Key, now time.Time) {
	a.silences, a.countedSilences, a.hasHeardHolder = 0, 0, true
	a.finding = finding{reachable: metav1.ConditionTrue, reason: v1.ReasonAnswered, lastAnswer: now}
	a.dueAt = a.nextTurn(key.Addr, now)
}

// noteSilence notes that the holder has not answered for the address.
func (a *askedAddress) noteSilence(key Key, answer Answer, answers map[Key]Answer, now time.Time) {
	a.silences++
	isFirst := a.silences == 1 // no other address was asked for
	reason, doesCount := v1.ReasonNoWitness, false
	switch {
	case answer.Err != nil:
		reason = v1.ReasonNotAsked
	case answer.MAC != "":
		reason, doesCount = v1.ReasonOtherStation, true
	case !isFirst && a.HolderAddr.IsValid() && a.isHolder(answers[Key{key.Interface, a.HolderAddr}].MAC):
		reason, doesCount, a.hasHeardHolder = v1.ReasonNoAnswer, true, true
	case !isFirst && slices.ContainsFunc(
		a.WitnessAddrs, func(w netip.Addr) bool { return answers[Key{key.Interface, w}].MAC != "" },
	):
		reason, doesCount = v1.ReasonHolderSilent, a.hasHeardHolder
	}
	if doesCount {
		a.countedSilences++
	} else {
		a.countedSilences = 0
	}
	a.dueAt = now.Add(repeatAfter)
	switch {
	case a.countedSilences >= roundsUntilUnreachable:
		a.finding.reachable, a.finding.reason, a.finding.mac = metav1.ConditionFalse, reason, answer.MAC
		a.dueAt = now.Add(unreachableInterval)
	case a.countedSilences == 0 && a.silences > roundsUntilUnreachable:
		a.finding.reachable, a.finding.reason, a.finding.mac = metav1.ConditionUnknown, reason, ""
		a.dueAt = a.nextTurn(key.Addr, now)
	}
}

// nextTurn returns when the node is to ask for an address next. The node's clock says when that is, but the time does
// not change with the clock: a node whose clock is set back goes on asking.
func (a *askedAddress) nextTurn(addr netip.Addr, now time.Time) time.Time {
	h := fnv.New64a()
	_, _ = h.Write(addr.AsSlice())
	cycle := time.Duration(a.Turns) * askPeriod
	turn := time.Duration(a.Turn)*askPeriod + time.Duration(h.Sum64()%uint64(askPeriod)) //nolint:gosec // below a minute
	wait := turn - now.Sub(now.Truncate(cycle))
	if wait <= 0 {
		wait += cycle
	}
	return now.Add(wait) // keeps the reading of the monotonic clock, which Truncate drops
}
