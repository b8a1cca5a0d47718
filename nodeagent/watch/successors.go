package watch

import (
	"maps"
	"slices"
	"time"
)

// other returns the other successor of a name, or nil.
func (t *Target) other(name string) *Node {
	for i := range t.Others {
		if t.Others[i].Name == name {
			return &t.Others[i]
		}
	}
	return nil
}

// followSuccessors follows the other successors that have answered for addresses in the round that ends,
// while the watched node has not.
func (w *Watcher) followSuccessors() {
	for _, a := range w.addresses {
		if a.isSucceeded && !a.isHeld {
			w.follow(a.Address, true)
		}
	}
}

// follow begins to watch the other successor of an address. It was seen to answer for the address, or
// may claim the address like this node, which has just claimed it.
func (w *Watcher) follow(a Address, isSeen bool) {
	other := w.target.other(a.Other)
	if other == nil {
		return
	}
	f := w.followers[a.Other]
	if f == nil {
		f = New(w.settings, w.followerTarget(*other, nil))
		// Its answer for the address is a sign of life like any other. Until it is silent no claim is
		// repeated.
		f.watched.isKnown, f.answeredAt = isSeen && !w.settings.TrustsEchoOnly, w.roundAt
		f.watched.isAlive = true
		w.followers[a.Other] = f
	}
	if f.addresses[a.Addr] == nil {
		f.SetTarget(w.followerTarget(*other, append(slices.Clone(f.target.Addresses), a)))
	}
	f.addresses[a.Addr].isArmed = isSeen
}

// isFollowed reports whether another successor has an address: its silence counts then.
func (w *Watcher) isFollowed(a *address) bool {
	f := w.followers[a.Other]
	return f != nil && f.watched.isKnown && f.addresses[a.Addr] != nil && f.addresses[a.Addr].isArmed
}

// followerTarget is what a follower watches.
func (w *Watcher) followerTarget(node Node, addresses []Address) Target {
	slices.SortFunc(addresses, func(a, b Address) int { return a.Addr.Compare(b.Addr) })
	witnesses := slices.DeleteFunc(slices.Clone(w.target.Witnesses), func(n Node) bool { return n.Name == node.Name })
	return Target{Watched: node, Witnesses: witnesses, Gateways: w.target.Gateways, Addresses: addresses}
}

// retargetFollowers makes the followers watch for those of their addresses that the watched node still
// holds under the same epoch, and ends those that have none left.
func (w *Watcher) retargetFollowers() {
	for name, f := range w.followers {
		var addresses []Address
		for _, a := range w.target.Addresses {
			if known := f.addresses[a.Addr]; a.Other == name && known != nil && known.HolderEpoch == a.HolderEpoch {
				addresses = append(addresses, a)
			}
		}
		other := w.target.other(name)
		if other == nil || len(addresses) == 0 {
			delete(w.followers, name)
			continue
		}
		f.SetTarget(w.followerTarget(*other, addresses))
	}
}

// followerRounds ends a round of each follower, and begins the next one. An address is armed with the
// node that answered for it last. No Announcement says whether another successor has an address, so for
// a follower the agent is never fresh.
func (w *Watcher) followerRounds(now time.Time, facts Facts) []Step {
	var steps []Step
	for _, name := range slices.Sorted(maps.Keys(w.followers)) {
		f := w.followers[name]
		steps = append(steps, f.Round(now, Facts{CanHear: facts.CanHear})...)
		for addr, a := range f.addresses {
			if own := w.addresses[addr]; f.watched.isKnown && a.heldAt.After(own.heldAt) {
				own.isArmed = false
			}
		}
	}
	return steps
}
