package watch

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// newSucceeded is a world in which node1 has died: node3, the other successor, has claimed both of its
// addresses, and node4 is another witness.
func newSucceeded(t *testing.T, edit ...func(*Settings, *Target)) *world {
	t.Helper()
	w := newWorld(t, append(edit, func(_ *Settings, target *Target) {
		target.OtherSuccessors = slices.Clone(target.Witnesses)
		target.Witnesses = append(target.Witnesses, Node{"node4", node4Addr, []string{node4MAC}})
		for i := range target.Addresses {
			target.Addresses[i].OtherSuccessor = "node3"
		}
	})...)
	w.stations = append(w.stations, &station{mac: node4MAC, addresses: []netip.Addr{node4Addr}})
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(4)
	w.stations[1].addresses = []netip.Addr{node3Addr, first, second}
	w.mustClaim(cold)
	return w
}

// The other successor, which has claimed the addresses, dies, too.
func TestSuccessorDies(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[1].isDead = true
	if in := w.mustClaim(50, first, second); in[0] != 5 || in[1] != 7 {
		t.Errorf("claims in rounds %v, want 5 and 7", in)
	}
	if want := []string{"node3", "node3"}; !slices.Equal(w.silent, want) {
		t.Errorf("claims from %v, want %v", w.silent, want)
	}
	if want := []time.Duration{600 * time.Millisecond, 800 * time.Millisecond}; !slices.Equal(w.silentFor, want) {
		t.Errorf("node3 was silent for %v, want %v since the last round with an answer", w.silentFor, want)
	}
}

// It dies at once: as long as this node has heard it once, it counts as any other.
func TestSuccessorDiesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.OtherSuccessors = []Node{{"node3", node3Addr, []string{node3MAC}}}
		target.Witnesses = []Node{{"node4", node4Addr, []string{node4MAC}}}
		target.Addresses = []Address{{Addr: second, Rank: 1, HolderEpoch: 7, Epoch: 9, OtherSuccessor: "node3"}}
	})
	w.stations = append(w.stations, &station{mac: node4MAC, addresses: []netip.Addr{node4Addr}})
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(5)
	w.stations[1].addresses = []netip.Addr{node3Addr, second}
	w.mustClaim(1)
	w.stations[1].isDead = true
	if in := w.mustClaim(50, second); in[0] != 7 || w.silentFor[0] != 800*time.Millisecond {
		t.Errorf("claims in rounds %v after a silence of %v, want 7 and 800ms", in, w.silentFor)
	}
}

// Until then it keeps the addresses.
func TestLivingSuccessorKeepsItsAddresses(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*world){
		"nothing happens": func(*world) {},
		"four questions are lost": func(w *world) {
			w.stations[1].isDead = true
			w.mustClaim(4)
			w.stations[1].isDead = false
		},
		"this node is cut off": func(w *world) { w.isCutOff = true },
		"this node loses answers": func(w *world) {
			w.facts.CanHear, w.stations[1].isDead = false, true
		},
		"this node is cut off, and the successor dies meanwhile": func(w *world) {
			w.isCutOff = true
			w.mustClaim(cold)
			w.stations[1].isDead = true
		},
		"the successor withdraws them": func(w *world) { w.stations[1].addresses = []netip.Addr{node3Addr} },
		"node1 is back, and has nothing": func(w *world) {
			w.stations[0].isDead, w.stations[0].addresses = false, []netip.Addr{node1Addr}
		},
		"the last witness dies": func(w *world) { w.stations[1].isDead, w.stations[2].isDead = true, true },
		"the manager gave them to node1 again": func(w *world) {
			w.setTarget(func(target *Target) { target.Addresses[0].HolderEpoch, target.Addresses[1].HolderEpoch = 9, 9 })
			w.stations[1].isDead = true
		},
		"the manager names other successors": func(w *world) {
			w.setTarget(func(target *Target) { target.Addresses = nil })
			w.stations[1].isDead = true
		},
		"the manager names no other successor": func(w *world) {
			w.setTarget(func(target *Target) { target.OtherSuccessors = nil })
			w.stations[1].isDead = true
		},
		"a firewall drops echoes, of which there were": func(w *world) { w.stations[1].dropsEchoes = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSucceeded(t)
			disturb(w)
			w.mustClaim(2 * cold)
		})
	}
}

// setTarget changes what is watched.
func (w *world) setTarget(edit func(*Target)) {
	target := w.watcher.target
	target.Addresses = slices.Clone(target.Addresses)
	edit(&target)
	w.watcher.SetTarget(target)
}

// What has been seen of the other successor stays when the same is to be watched as before, and counts
// for the addresses that are left.
func TestSuccessorWatcherStays(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[1].isDead = true
	w.mustClaim(2)
	w.setTarget(func(target *Target) { target.Addresses = target.Addresses[:1] })
	if in := w.mustClaim(50, first); in[0] != 3 {
		t.Errorf("claims in rounds %v, want 3", in)
	}
}

// The other successor is watched until the watched node holds the addresses under another epoch.
func TestSuccessorWatcherEnds(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[0].isDead = false
	w.mustClaim(cold)
	w.setTarget(func(target *Target) { target.Addresses[0].HolderEpoch, target.Addresses[1].HolderEpoch = 9, 9 })
	w.stations[1].addresses = []netip.Addr{node3Addr}
	clear(w.asked)
	w.mustClaim(2 * cold)
	if got := w.asked[question{Echo, node3Addr}]; got > 2*cold/50+1 {
		t.Errorf("node3 is asked %d times, and not as a witness only", got)
	}
}

// node3 and node4, two other successors, have claimed one address each. The Watcher of node2 watches both of them until
// its target has neither address any more.
func TestAllSuccessorWatchersEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.Witnesses = append(target.Witnesses, Node{"node4", node4Addr, []string{node4MAC}})
		target.OtherSuccessors = slices.Clone(target.Witnesses)
		target.Addresses[0].OtherSuccessor, target.Addresses[1].OtherSuccessor = "node3", "node4"
	})
	w.stations = append(w.stations, &station{mac: node4MAC, addresses: []netip.Addr{node4Addr}})
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(4)
	w.stations[1].addresses, w.stations[2].addresses = []netip.Addr{node3Addr, first}, []netip.Addr{node4Addr, second}
	w.mustClaim(cold)
	if got := len(w.watcher.successorWatchers); got != 2 {
		t.Fatalf("%d other successors are watched, want 2", got)
	}
	w.setTarget(func(target *Target) { target.Addresses = nil })
	if got := len(w.watcher.successorWatchers); got != 0 {
		t.Errorf("%d other successors are still watched", got)
	}
}

// node1 comes back and has nothing, as its agent does not run: the other successor is still watched.
func TestNodeIsBackWithoutAgent(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[0].isDead, w.stations[0].addresses = false, []netip.Addr{node1Addr}
	w.mustClaim(3 * cold)
	w.stations[1].isDead = true
	w.mustClaim(50, first, second)
	w.mustBe(ReasonWatching)
}

// A Watcher that has never seen node1 finds that the other successor has the addresses.
func TestWatchesSuccessorAfterRestart(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.watcher = New(w.watcher.settings, w.watcher.target)
	w.lastRound = 0
	w.mustClaim(cold)
	w.mustBe(ReasonNoAnswer)
	w.stations[1].isDead = true
	w.mustClaim(50, first, second)
}

// The other successor had withdrawn the addresses before it died: their Services are gone.
func TestSuccessorOfWithdrawnAddressIsNotWatched(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[1].addresses = []netip.Addr{node3Addr, second}
	w.mustClaim(2 * cold)
	w.stations[1].isDead = true
	w.mustClaim(cold, second)
}

// An address that its holder answers for again is watched with the holder.
func TestHolderHasItsAddressAgain(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	w.stations[0].isDead = false
	w.stations[1].addresses = []netip.Addr{node3Addr}
	w.mustClaim(3 * cold)
	w.stations[1].isDead = true
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(50, first, second)
}

// Where only echoes count, another successor counts as dead only if it has answered one.
func TestSuccessorWatcherTrustsEchoOnly(t *testing.T) {
	t.Parallel()
	for name, dropsEchoes := range map[string]bool{"it has answered echoes": false, "it has answered none": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSucceeded(t, func(s *Settings, _ *Target) { s.TrustsEchoOnly = true })
			w.watcher = New(w.watcher.settings, w.watcher.target)
			w.lastRound = 0
			w.stations[1].dropsEchoes = dropsEchoes
			w.mustClaim(cold)
			w.stations[1].isDead = true
			if dropsEchoes {
				w.mustClaim(50)
			} else {
				w.mustClaim(50, first, second)
			}
		})
	}
}

// A forged answer in the other successor's name does not make this node forget what node1 has.
func TestForgedSuccessor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.OtherSuccessors = target.Witnesses
		target.Addresses[0].OtherSuccessor = "node3"
	})
	w.facts.IsAgentFresh = false
	for range cold {
		w.mustClaim(1)
		w.watcher.Hear(Answer{Kind: Resolve, Addr: first, MAC: node3MAC})
	}
	w.stations[0].isDead = true
	w.mustClaim(50, first, second)
}

// Who has claimed an address repeats the claim when the other successor answers, which may have claimed
// it, too.
func TestReturningSuccessor(t *testing.T) {
	t.Parallel()
	for name, isSeen := range map[string]bool{"whose claim was seen": true, "whose claim was not seen": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSucceeded(t)
			if !isSeen {
				w.stations[0].isDead = false
				w.stations[1].addresses = []netip.Addr{node3Addr}
				w.watcher = New(w.watcher.settings, w.watcher.target)
				w.lastRound = 0
				w.mustClaim(cold)
				w.stations[0].isDead = true
			}
			w.stations[1].isDead = true
			w.mustClaim(50, first, second)
			w.repeats = nil
			w.stations[1].isDead = false
			w.mustClaim(2)
			if want := []netip.Addr{first, second}; !slices.Equal(w.repeats, want) {
				t.Errorf("node2 repeats %v, want %v", w.repeats, want)
			}
		})
	}
}

// What another successor costs: an echo in each round.
func TestQuestionsToSuccessor(t *testing.T) {
	t.Parallel()
	w := newSucceeded(t)
	clear(w.asked)
	const minute = 600
	w.mustClaim(minute)
	for _, c := range []struct {
		question question
		want     int
	}{
		{question{Resolve, first}, 6},
		{question{Resolve, node3Addr}, 0},
		{question{Echo, node4Addr}, minute + minute/50},
		{question{Echo, node3Addr}, 2 * minute}, // as a witness, too
	} {
		if got := w.asked[c.question]; got != c.want {
			t.Errorf("%+v is asked %d times a minute, want %d", c.question, got, c.want)
		}
	}
}
