package placement

import (
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// entryStep is how far an agent has come with its entry for a Local address.
type entryStep int

const (
	// stepGiven is that the node was given the address, and its agent has not reported what
	// became of that.
	stepGiven entryStep = iota
	// stepWaiting is that the agent has reported why it does not announce the address: another
	// station answers for it, or the agent has yielded it.
	stepWaiting
	// stepAnnounced is that the agent announces the address.
	stepAnnounced
	// stepFailed is that the agent has failed to take the address.
	stepFailed
	// stepHandingOver is that the agent announces an address that is to be handed over.
	stepHandingOver
	// stepRevoked is that another node was elected before the agent had reported, which the
	// agent may not have observed: it may have the address yet.
	stepRevoked
	// stepDropped is that the agent does not have the address, and knows that it is not to.
	stepDropped
)

// judgedEntry is an entry of a node, and how far the node's agent has come with it.
type judgedEntry struct {
	*Entry
	node *Node // nil if nothing is known of the node
	step entryStep
	// isOverdue is that the agent has had the time to come further, if it acts at all.
	isOverdue bool
}

// judgeEntry judges an entry.
func (p *placer) judgeEntry(e *Entry) judgedEntry {
	judged := judgedEntry{Entry: e, node: p.nodeByName[e.Node], step: stepOf(e)}
	if e.Spec.Type == v1.AnnounceVirtual {
		judged.isOverdue = (judged.step != stepAnnounced || !e.IsObserved) && p.hasLasted(e.UnchangedFor, ReactionTime)
		return judged
	}
	switch judged.step {
	case stepGiven:
		patience := ReactionTime
		if judged.node != nil {
			patience += judged.node.ProbeTime
		}
		judged.isOverdue = p.hasLasted(e.UnchangedFor, patience)
	case stepHandingOver, stepRevoked:
		judged.isOverdue = p.hasLasted(e.UnchangedFor, ReactionTime)
	}
	return judged
}

func stepOf(e *Entry) entryStep {
	switch {
	case e.ReportedState == v1.StateFailed:
		return stepFailed
	case e.ReportedState == v1.StateAnnounced && e.Spec.HandingOver:
		return stepHandingOver
	case e.ReportedState == v1.StateAnnounced:
		return stepAnnounced
	case e.Spec.HandingOver && !e.hasReported() && !e.IsObserved:
		return stepRevoked
	case e.Spec.HandingOver:
		return stepDropped
	case e.hasReported():
		return stepWaiting
	}
	return stepGiven
}

// isBarred reports whether the node of an entry is not to be elected again: it has failed
// to take the address, or its agent does not act.
func (e *judgedEntry) isBarred() bool {
	return e.step == stepFailed || e.step == stepRevoked || e.step == stepGiven && e.isOverdue
}

// hasLasted reports whether something has lasted for as long as a limit. Where it has not, the
// result may differ once it has, and placement is to be done again then. Place compares no
// duration in another way, so it forgets no deadline.
func (p *placer) hasLasted(elapsed, limit time.Duration) bool {
	p.noteDeadline(limit - elapsed)
	return elapsed >= limit
}

// noteDeadline notes in how long the result may differ; what is past does not count.
func (p *placer) noteDeadline(left time.Duration) {
	if left > 0 && (p.result.NextDeadline == 0 || left < p.result.NextDeadline) {
		p.result.NextDeadline = left
	}
}
