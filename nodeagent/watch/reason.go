package watch

// Reasons of condition Ready of an Announcement with standby: whether this node would notice
// that the watched node dies. The first one that applies counts.
const (
	// ReasonDisabled: the LBNodeAgent of this node says that it watches nobody.
	ReasonDisabled = "Disabled"
	// ReasonLate: rounds are late, as this node is too busy, or it loses answers in many; silence means nothing.
	ReasonLate = "Late"
	// ReasonNoAnswer: the watched node has not answered since the watch began.
	ReasonNoAnswer = "NoAnswer"
	// ReasonSilent: the watched node counts as dead.
	ReasonSilent = "Silent"
	// ReasonDoubtful: the watched node has ceased to answer echoes, or all but a few, and answered ARP requests or
	// neighbour solicitations. Since then it is watched by these, until it answers echoes steadily.
	ReasonDoubtful = "Doubtful"
	// ReasonNoWitness: no witness answers, so the silence of the watched node would mean nothing.
	ReasonNoWitness = "NoWitness"
	// ReasonWatching: the watched node answers, or has not been silent for long.
	ReasonWatching = "Watching"
)

// Reason returns what the last round has shown.
func (w *Watcher) Reason() string {
	switch {
	case w.isLate() || len(w.lostAt) >= lateRounds:
		return ReasonLate
	case !w.watched.isKnown:
		return ReasonNoAnswer
	case w.isSilent():
		return ReasonSilent
	case w.watched.hasCeasedToEcho:
		return ReasonDoubtful
	case w.lacksWitness():
		return ReasonNoWitness
	default:
		return ReasonWatching
	}
}
