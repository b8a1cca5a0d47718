package plan

import (
	"errors"
	"maps"
	"net/netip"
	"time"
)

// ProbeTarget is an address that the link of an interface is asked for.
type ProbeTarget struct {
	Interface string
	Addr      netip.Addr
}

// ProbeState is what is known of an address that the node is to add, and for which the link has to be asked first.
type ProbeState struct {
	// IsAsking means that the link is being asked now. Until it has answered, its last
	// answer stands.
	IsAsking bool
	// AnsweredAt is when the link last answered, by silence or otherwise; zero for never.
	AnsweredAt time.Time
	// MAC is the station that answered, lower case with colons; empty for silence.
	MAC string
	// Err says why the link could not be asked.
	Err error
}

// ProbeAnswer is what a link has answered: the ProbeState of a target.
type ProbeAnswer struct {
	Target ProbeTarget
	State  ProbeState
}

// ProbeQuestion is a question to ask of a link.
type ProbeQuestion struct {
	Target ProbeTarget
	// PreviousMACs are stations that may have the address; each is asked by itself, too.
	PreviousMACs []string
}

// isDue reports whether the link is to be asked, for the first time or again.
func (p ProbeState) isDue(now time.Time) bool {
	validFor := ReprobeInterval
	if p.MAC == "" && p.Err == nil {
		validFor = SilenceValidFor
	}
	return !p.IsAsking && (p.AnsweredAt.IsZero() || now.Sub(p.AnsweredAt) >= validFor)
}

func targetOf(d *Desired) ProbeTarget { return ProbeTarget{d.Interface, d.Addr} }

// noteAnswers puts the answers of links into the memory.
func (m *Memory) noteAnswers(answers []ProbeAnswer) {
	m.ProbeStates = maps.Clone(m.ProbeStates)
	if m.ProbeStates == nil {
		m.ProbeStates = map[ProbeTarget]ProbeState{}
	}
	for _, a := range answers {
		m.ProbeStates[a.Target] = a.State
	}
}

// addByAnswers replaces the operations that need a probe: by an Add if the link is known
// to be silent, by a Result if a station answers, and by a question if the link has not
// answered lately. The additions come last, so that no address waits for them.
func (d *decisionBuilder) addByAnswers() {
	var toProbe []Operation
	operations := d.plan.Operations[:0]
	for _, op := range d.plan.Operations {
		if op.Probe {
			toProbe = append(toProbe, op)
		} else {
			operations = append(operations, op)
		}
	}
	probes := make(map[ProbeTarget]ProbeState, len(toProbe))
	for _, op := range toProbe {
		target := targetOf(op.Desired)
		p := d.memory.ProbeStates[target]
		if p.isDue(d.in.Now) {
			p.IsAsking = true
			d.Questions = append(d.Questions, ProbeQuestion{target, op.Desired.PreviousMACs})
		}
		if add, isKept := d.mayAdd(op, p); add {
			op.Probe = false
			d.plan.Results[op.Desired.Addr] = AnnouncedResult(op.Desired)
			operations = append(operations, op)
			probes[target] = p
		} else if isKept {
			probes[target] = p
		}
	}
	for target, p := range d.memory.ProbeStates { // of no use any more, but the answer will come
		if _, isNeeded := probes[target]; !isNeeded && p.IsAsking {
			probes[target] = p
		}
	}
	d.memory.ProbeStates = probes
	d.plan.Operations = operations
}

// mayAdd reports whether an address may be added, by what is known of it, and, if not,
// whether that remains known. If the address may not be added, mayAdd notes its Result.
func (d *decisionBuilder) mayAdd(op Operation, p ProbeState) (add, isKept bool) {
	desired, addr := op.Desired, op.Desired.Addr
	yield, isYielded, _ := yieldOf(d.in.Yields, desired, d.in.Now)
	switch {
	case p.Err != nil:
		d.plan.Results[addr] = FailedResult(desired, ReasonProbeFailed, p.Err)
		d.Err = errors.Join(d.Err, p.Err)
		return false, true
	case p.IsAsking && p.MAC == "": // the Result says so already
		return false, true
	case p.MAC == "":
		return true, true
	case isYielded:
		// The next attempt asks anew. The listener, which asks that station all the time,
		// says when that is.
		yield = yield.answeredBy(p.MAC, p.AnsweredAt)
		if d.AnsweredYields == nil {
			d.AnsweredYields = map[netip.Addr]ProbeState{}
		}
		d.AnsweredYields[addr] = p
		d.plan.Results[addr] = yield.Result()
		d.decideIn(ReprobeInterval)
		return false, p.IsAsking
	}
	d.plan.Results[addr] = answeredResult(desired, p.MAC)
	d.decideIn(ReprobeInterval)
	return false, true
}

// forgetAnswersOfAdded forgets the answers for addresses that were added, so that the agent asks anew before
// it adds them again. What could not be added is tried again without asking.
func (m *Memory) forgetAnswersOfAdded(operations []Operation, result func(netip.Addr) Result) {
	m.ProbeStates = maps.Clone(m.ProbeStates)
	for _, op := range operations {
		if op.Kind == Add && !hasFailed(result(op.Desired.Addr)) {
			delete(m.ProbeStates, targetOf(op.Desired))
		}
	}
}
