package watch

import (
	"maps"
	"slices"
	"time"
)

// otherSuccessor returns the other successor of a name, or nil.
func (t *Target) otherSuccessor(name string) *Node {
	for i := range t.OtherSuccessors {
		if t.OtherSuccessors[i].Name == name {
			return &t.OtherSuccessors[i]
		}
	}
	return nil
}

// hasNodeOf reports whether an Ethernet address is of one of the nodes.
func (t *Target) hasNodeOf(mac string) bool {
	for _, n := range slices.Concat([]Node{t.Watched}, t.Witnesses, t.OtherSuccessors) {
		if slices.Contains(n.MACs, mac) {
			return true
		}
	}
	return false
}

// watchAnsweringSuccessors watches the other successors that have answered for addresses in the round that
// ends, while the watched node has not.
func (w *Watcher) watchAnsweringSuccessors() {
	for _, a := range w.addresses {
		if a.isSucceeded && !a.isHeld {
			w.watchSuccessor(a.Address, true)
		}
	}
}

// watchSuccessor begins to watch the other successor of an address. It was seen to answer for the address, or
// may claim the address like this node, which has just claimed it.
func (w *Watcher) watchSuccessor(a Address, isSeen bool) {
	other := w.target.otherSuccessor(a.OtherSuccessor)
	if other == nil {
		return
	}
	watcher := w.successorWatchers[a.OtherSuccessor]
	if watcher == nil {
		watcher = New(w.settings, w.successorTarget(*other, nil))
		// Its answer for the address is a sign of life like any other. Until it is silent no claim is
		// repeated.
		watcher.watched.isKnown, watcher.answeredAt = isSeen && !w.settings.TrustsEchoOnly, w.roundAt
		watcher.watched.isAlive = true
		w.successorWatchers[a.OtherSuccessor] = watcher
	}
	if watcher.addresses[a.Addr] == nil {
		watcher.SetTarget(w.successorTarget(*other, append(slices.Clone(watcher.target.Addresses), a)))
	}
	watcher.addresses[a.Addr].isArmed = isSeen
}

// isHeldByOtherSuccessor reports whether another successor has an address: its silence counts then.
func (w *Watcher) isHeldByOtherSuccessor(a *watchedAddress) bool {
	watcher := w.successorWatchers[a.OtherSuccessor]
	return watcher != nil && watcher.watched.isKnown && watcher.IsArmed(a.Addr)
}

// successorTarget is what the Watcher of another successor watches.
func (w *Watcher) successorTarget(node Node, addresses []Address) Target {
	slices.SortFunc(addresses, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	witnesses := slices.DeleteFunc(slices.Clone(w.target.Witnesses), func(n Node) bool { return n.Name == node.Name })
	return Target{Watched: node, Witnesses: witnesses, Gateways: w.target.Gateways, Addresses: addresses}
}

// retargetSuccessorWatchers makes the Watchers of other successors watch for those of their addresses that
// the watched node still holds under the same epoch, and ends those that have none left.
func (w *Watcher) retargetSuccessorWatchers() {
	for name, watcher := range w.successorWatchers {
		var addresses []Address
		for _, a := range w.target.Addresses {
			known := watcher.addresses[a.Addr]
			if a.OtherSuccessor == name && known != nil && known.HolderEpoch == a.HolderEpoch {
				addresses = append(addresses, a)
			}
		}
		other := w.target.otherSuccessor(name)
		if other == nil || len(addresses) == 0 {
			delete(w.successorWatchers, name)
			continue
		}
		watcher.SetTarget(w.successorTarget(*other, addresses))
	}
}

// roundsOfSuccessorWatchers ends a round of the Watcher of each other successor, and begins the next one. An
// address is armed with the node that answered for it last. No Announcement says whether another successor
// has an address, so for its Watcher the agent is never fresh.
func (w *Watcher) roundsOfSuccessorWatchers(now time.Time, inputs RoundInputs) []Step {
	inputs.IsAgentFresh = false
	var steps []Step
	for _, name := range slices.Sorted(maps.Keys(w.successorWatchers)) {
		watcher := w.successorWatchers[name]
		steps = append(steps, watcher.AdvanceRound(now, inputs)...)
		for addr, a := range watcher.addresses {
			if own := w.addresses[addr]; watcher.watched.isKnown && a.heldAt.After(own.heldAt) {
				own.isArmed = false
			}
		}
	}
	return steps
}
