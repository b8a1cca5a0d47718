package watch

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestDeadNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustBe(ReasonNoAnswer)
	w.mustClaim(cold)
	w.mustBe(ReasonWatching)
	w.stations[0].isDead = true
	// The first question that remains unanswered is that of round 0, so five misses end with the
	// beginning of round 5; the second successor waits for two rounds more.
	if in := w.mustClaim(50, first, second); in[0] != 5 || in[1] != 7 {
		t.Errorf("claims in rounds %v, want 5 and 7", in)
	}
	if want := []time.Duration{600 * time.Millisecond, 800 * time.Millisecond}; !slices.Equal(w.silentFor, want) {
		t.Errorf("node1 was silent for %v, want %v since the last round with an answer", w.silentFor, want)
	}
	w.mustBe(ReasonSilent)
	w.stations[0].isDead = false
	w.mustClaim(50)
	w.mustBe(ReasonWatching)
}

func TestClaimCarriesEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	w.stations[0].isDead = true
	claims, _ := w.run(20)
	if len(claims) != 2 || claims[0].Epoch != 8 || claims[1].Epoch != 9 {
		t.Errorf("claims %+v, want those with epochs 8 and 9", claims)
	}
}

func TestFewMisses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *Settings, _ *Target) { s.Misses, s.Interval = 3, 50*time.Millisecond })
	w.mustClaim(3 * cold)
	w.stations[0].isDead = true
	if in := w.mustClaim(50, first, second); in[0] != 3 || in[1] != 7 {
		t.Errorf("claims in rounds %v, want 3 and 200 ms later, in 7", in)
	}
}

func TestLivingNodeKeepsItsAddresses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disturb func(*world)
		during  string // while it lasts
	}{
		"four questions are lost": {func(w *world) {
			w.stations[0].isDead = true
			w.mustClaim(4)
			w.stations[0].isDead = false
		}, ReasonWatching},
		"this node is cut off": {func(w *world) { w.isCutOff = true }, ReasonNoWitness},
		"the only witness dies": {func(w *world) {
			w.stations[1].isDead = true
		}, ReasonNoWitness},
		"this node has no carrier": {
			func(w *world) { w.isCutOff, w.facts.CanHear = true, false }, ReasonNoWitness,
		},
		"a firewall drops echoes to the node": {func(w *world) { w.stations[0].dropsEchoes = true }, ReasonDoubtful},
		"a firewall drops echoes to all nodes": {
			func(w *world) { w.stations[0].dropsEchoes, w.stations[1].dropsEchoes = true, true }, ReasonDoubtful,
		},
		"its answers come three rounds late": {func(w *world) { w.stations[0].echoDelay = 3 }, ReasonWatching},
		"the Service of an address goes": {
			func(w *world) { w.stations[0].addresses = []netip.Addr{node1Addr, second} }, ReasonWatching,
		},
		"another node answers for an address too": {
			func(w *world) { w.stations[1].addresses = []netip.Addr{node3Addr, first} }, ReasonWatching,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustClaim(cold)
			c.disturb(w)
			w.mustClaim(200)
			w.mustBe(c.during)
		})
	}
}

func TestDeadNodeBehindFirewall(t *testing.T) {
	t.Parallel()
	t.Run("since ever", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.stations[0].dropsEchoes, w.stations[1].dropsEchoes = true, true
		w.mustClaim(cold)
		w.mustBe(ReasonWatching)
		w.stations[0].isDead = true
		w.mustClaim(20, first, second)
	})
	t.Run("since a while", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.mustClaim(cold)
		w.stations[0].dropsEchoes = true
		w.mustClaim(cold)
		w.mustBe(ReasonDoubtful)
		w.stations[0].isDead = true
		w.mustClaim(20, first, second)
	})
	t.Run("which was there for a while", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.mustClaim(cold)
		w.stations[0].dropsEchoes = true
		w.mustClaim(cold)
		w.stations[0].dropsEchoes = false
		w.mustClaim(cold)
		w.mustBe(ReasonWatching)
	})
}

// A kernel that limits how many echoes it answers does not make the reason change again and again.
func TestFewEchoesAreAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		few  []int // stations
		want []string
	}{
		"by the watched node": {[]int{0}, []string{ReasonWatching, ReasonDoubtful}},
		"by the witness":      {[]int{1}, []string{ReasonWatching, ReasonNoWitness, ReasonWatching}},
		"by both":             {[]int{0, 1}, []string{ReasonWatching, ReasonNoWitness, ReasonWatching, ReasonDoubtful}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustClaim(cold)
			reasons := []string{w.watcher.Reason()}
			run := func(rounds, echoesOneOf int) {
				for _, i := range c.few {
					w.stations[i].echoesOneOf = echoesOneOf
				}
				for range rounds {
					w.mustClaim(1)
					reasons = append(reasons, w.watcher.Reason())
				}
			}
			run(60*50, 7) // the witness is asked each 50 rounds
			if reasons = slices.Compact(reasons); !slices.Equal(reasons, c.want) {
				t.Errorf("reasons %v, want %v", reasons, c.want)
			}
			run(steadyEchoes+20*50+50, 0)
			w.mustBe(ReasonWatching)
			w.stations[0].isDead = true
			w.mustClaim(20, first, second)
		})
	}
}

// Echoes alone count again after twenty rounds in a row that brought some.
func TestSteadyEchoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	w.stations[0].dropsEchoes = true
	w.mustClaim(cold)
	w.mustBe(ReasonDoubtful)
	w.stations[0].dropsEchoes = false
	w.mustClaim(steadyEchoes)
	w.mustBe(ReasonDoubtful)
	w.mustClaim(1) // ends the twentieth of them
	w.mustBe(ReasonWatching)
}

func TestFabricAnswersForTheDead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trustsEchoOnly bool
		claims         []netip.Addr
		state          string
	}{
		"every answer counts": {false, nil, ReasonDoubtful},
		"echoes alone count":  {true, []netip.Addr{first, second}, ReasonSilent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(s *Settings, _ *Target) { s.TrustsEchoOnly = c.trustsEchoOnly })
			w.isProxied = true
			w.mustClaim(cold)
			w.stations[0].isDead = true
			w.mustClaim(cold, c.claims...)
			w.mustBe(c.state)
		})
	}
}

func TestWatcherIsCutOffWithinSilence(t *testing.T) {
	t.Parallel()
	for after := range 5 {
		w := newWorld(t)
		w.mustClaim(cold)
		w.stations[0].isDead = true
		w.mustClaim(after)
		w.isCutOff = true
		w.mustClaim(50)
		w.isCutOff = false
		w.mustClaim(50, first, second)
	}
}

// The link is cut in two, with some of the witnesses on this side: the watched node lives, unless most of those
// that have answered until now go on to.
func TestCutOffWithSomeWitnesses(t *testing.T) {
	t.Parallel()
	both := []netip.Addr{first, second}
	for name, c := range map[string]struct {
		witnesses, gone int
		goneBefore      bool // so long before the watched node that they do not count any more
		claims          []netip.Addr
		reason          string
	}{
		"one of one is gone":                {1, 1, false, nil, ReasonNoWitness},
		"one of two is gone":                {2, 1, false, both, ReasonSilent},
		"two of two are gone":               {2, 2, false, nil, ReasonNoWitness},
		"one of three is gone":              {3, 1, false, both, ReasonSilent},
		"two of three are gone":             {3, 2, false, nil, ReasonNoWitness},
		"two of three were gone before":     {3, 2, true, both, ReasonSilent},
		"all of three were gone before":     {3, 3, true, nil, ReasonNoWitness},
		"one of two was gone before":        {2, 1, true, both, ReasonSilent},
		"nobody is gone but the other node": {3, 0, false, both, ReasonSilent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(_ *Settings, target *Target) {
				for _, n := range []Node{{"node4", node4Addr, []string{node4MAC}}, {"node5", node5Addr, []string{node5MAC}}} {
					if len(target.Witnesses) < c.witnesses {
						target.Witnesses = append(target.Witnesses, n)
					}
				}
			})
			w.stations = append(w.stations,
				&station{mac: node4MAC, addresses: []netip.Addr{node4Addr}},
				&station{mac: node5MAC, addresses: []netip.Addr{node5Addr}})
			w.mustClaim(cold)
			for _, s := range w.stations[1 : 1+c.gone] {
				s.isDead = true
			}
			if c.goneBefore {
				w.mustClaim(cold)
			}
			w.stations[0].isDead = true
			w.mustClaim(cold, c.claims...)
			w.mustBe(c.reason)
			for _, s := range w.stations[1:] {
				s.isDead = false
			}
			w.mustClaim(cold, both[len(c.claims):]...)
		})
	}
}

// The link is cut in two again and again, for a few rounds each time, and the gateway is on this side, as is one of
// three witnesses: the witnesses have answered in between, so the gateway is none.
func TestCutOffAgainBesideGateway(t *testing.T) {
	t.Parallel()
	for _, rounds := range []int{4, 5, 6, 7, 20} {
		for _, between := range []int{1, 2, 3, 10} {
			w := newWorld(t, func(_ *Settings, target *Target) {
				target.Witnesses = append(target.Witnesses,
					Node{"node4", node4Addr, []string{node4MAC}}, Node{"node5", node5Addr, []string{node5MAC}})
				target.Gateways = []netip.Addr{gatewayAddr}
			})
			w.stations = append(w.stations,
				&station{mac: node4MAC, addresses: []netip.Addr{node4Addr}},
				&station{mac: node5MAC, addresses: []netip.Addr{node5Addr}},
				&station{mac: gatewayMAC, addresses: []netip.Addr{gatewayAddr}, isGateway: true})
			w.mustClaim(cold)
			for range 6 {
				for _, isDead := range []bool{true, false} {
					for _, s := range w.stations[:3] {
						s.isDead = isDead
					}
					if isDead {
						w.mustClaim(rounds)
					} else {
						w.mustClaim(between)
					}
				}
				if between > 2 {
					w.mustBe(ReasonWatching) // and not NoWitness
				}
			}
		}
	}
}

// A witness that is dead makes no gap in a watch whose other witnesses live.
func TestWitnessesDie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.Witnesses = append(target.Witnesses,
			Node{"node4", node4Addr, []string{node4MAC}}, Node{"node5", node5Addr, []string{node5MAC}})
	})
	w.stations = append(w.stations,
		&station{mac: node4MAC, addresses: []netip.Addr{node4Addr}},
		&station{mac: node5MAC, addresses: []netip.Addr{node5Addr}})
	w.mustClaim(cold)
	w.stations[1].isDead, w.stations[2].isDead = true, true
	for range 2 * cold {
		w.mustClaim(1)
		w.mustBe(ReasonWatching)
	}
}

func TestNobodyHasSeenIt(t *testing.T) {
	t.Parallel()
	t.Run("the node", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.stations[0].isDead = true
		w.mustClaim(cold)
		w.mustBe(ReasonNoAnswer)
	})
	t.Run("an address", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.stations[0].addresses = []netip.Addr{node1Addr, second}
		w.mustClaim(cold)
		w.stations[0].isDead = true
		w.mustClaim(cold, second)
	})
	t.Run("an address since it has another epoch", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.mustClaim(cold)
		w.stations[0].isDead = true
		target := w.watcher.target
		target.Addresses = []Address{
			{Addr: first, HolderEpoch: 9, Epoch: 10}, {Addr: second, Rank: 1, HolderEpoch: 7, Epoch: 9},
		}
		w.watcher.SetTarget(target)
		w.mustClaim(cold, second)
	})
	for name, change := range map[string]func(*Node){
		"a node of another name":          func(n *Node) { n.Name = "node4" },
		"a node that has another address": func(n *Node) { n.Addr = netip.MustParseAddr("192.0.2.14") },
		"a node that has another MAC":     func(n *Node) { n.MACs = []string{node4MAC} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustClaim(cold)
			w.stations[0].isDead = true
			target := w.watcher.target
			change(&target.Watched)
			w.watcher.SetTarget(target)
			w.mustClaim(cold)
			w.mustBe(ReasonNoAnswer)
		})
	}
}

// While its agent is not fresh, what was deleted meanwhile is not raised from the dead; while
// it is fresh, its Announcements say what there is.
func TestDeletedAddressIsDisarmed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		isFresh bool
		claims  []netip.Addr
	}{
		"fresh":     {true, []netip.Addr{first, second}},
		"not fresh": {false, []netip.Addr{second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustClaim(cold)
			w.facts.IsAgentFresh = c.isFresh
			w.stations[0].addresses = []netip.Addr{node1Addr, second}
			w.mustClaim(2 * cold)
			w.stations[0].isDead = true
			w.mustClaim(cold, c.claims...)
		})
	}
}

func TestTakenAddressIsNotClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	w.stations[0].isDead = true
	stranger := &station{mac: strangerMAC, addresses: []netip.Addr{first}}
	w.stations = append(w.stations, stranger)
	w.mustClaim(cold, second)
	stranger.isDead = true
	w.mustClaim(3*slowRounds, first)
}

// Rounds that are late say nothing, as answers may not have been read in time.
func TestLateRounds(t *testing.T) {
	t.Parallel()
	few := newWorld(t)
	few.mustClaim(5)
	for range lateRounds - 1 {
		few.round(lateFactor * DefaultInterval)
	}
	few.mustClaim(5)
	few.mustBe(ReasonWatching)

	for rounds, want := range map[int]string{96: ReasonLate, 97: ReasonWatching} {
		longAgo := newWorld(t)
		longAgo.mustClaim(cold)
		longAgo.round(lateFactor * DefaultInterval)
		longAgo.mustClaim(rounds) // with the two late ones ten seconds, and a round more
		longAgo.round(lateFactor * DefaultInterval)
		longAgo.round(lateFactor * DefaultInterval)
		longAgo.mustClaim(1)
		longAgo.mustBe(want)
	}

	w := newWorld(t)
	w.mustClaim(cold)
	w.stations[0].isDead = true
	for range 4 {
		w.mustClaim(4)
		if claims := w.round(lateFactor * DefaultInterval); len(claims) > 0 {
			t.Fatalf("node2 claims %v before a late round", claims)
		}
	}
	w.mustBe(ReasonLate)
	w.mustClaim(50)
	w.mustClaim(100, first, second) // ten seconds later
	w.mustBe(ReasonSilent)
}

// A round in which answers were lost says nothing, and several within a while make the watch one that says so.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	lose := func(rounds int) {
		w.facts.AreAnswersLost = true
		w.mustClaim(rounds)
		w.facts.AreAnswersLost = false
	}
	lose(lateRounds - 1)
	w.mustClaim(4) // one round in five is enough for no claim
	w.mustBe(ReasonWatching)
	lose(1)
	w.mustClaim(1)
	w.mustBe(ReasonLate)
	w.mustClaim(int(lateWindow/DefaultInterval) - 1)
	w.mustBe(ReasonWatching)
	w.stations[0].isDead = true
	lose(50)
	w.mustClaim(1)
	if in := w.mustClaim(50, first, second); in[0] != DefaultMisses-2 {
		t.Errorf("claims in rounds %v, want the first one in %d: after a miss, and four more", in, DefaultMisses-2)
	}
}

func TestQuestionsWhileAllIsWell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	clear(w.asked)
	const minute = 600
	w.mustClaim(minute)
	for _, c := range []struct {
		question question
		want     int
	}{
		{question{Echo, node1Addr}, minute},
		{question{Resolve, node1Addr}, 0},
		{question{Echo, node3Addr}, minute / 50},
		{question{Resolve, node3Addr}, 0},
		{question{Resolve, first}, 0},
	} {
		if got := w.asked[c.question]; got != c.want {
			t.Errorf("%+v is asked %d times a minute, want %d", c.question, got, c.want)
		}
	}
	clear(w.asked)
	w.facts.IsAgentFresh = false
	w.mustClaim(minute)
	if got := w.asked[question{Resolve, first}]; got != 6 {
		t.Errorf("an agent that is not fresh asks for an address %d times a minute, want 6", got)
	}
}

// Answers that nobody asked for, of other stations or of long ago are no signs of life.
func TestForgedAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watcher.Hear(Answer{Kind: Echo, Addr: node1Addr, MAC: node1MAC})
	w.mustClaim(cold)
	w.stations[0].isDead = true
	var claims []Address
	for range 20 {
		claims = append(claims, w.round(DefaultInterval)...)
		for _, a := range []Answer{
			{Kind: Echo, Addr: node1Addr, MAC: strangerMAC, Round: w.watcher.number},
			{Kind: Echo, Addr: node1Addr, MAC: node1MAC, Round: w.watcher.number - DefaultMisses - 1},
			{Kind: Echo, Addr: node1Addr, MAC: node1MAC, Round: w.watcher.number + 1},
			{Kind: Echo, Addr: first, MAC: node1MAC, Round: w.watcher.number},
		} {
			w.watcher.Hear(a)
		}
	}
	if len(claims) != 2 {
		t.Errorf("claims %v, want both addresses", claims)
	}
}

func TestRoundNumbersStartAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(1<<16 + 10)
	w.stations[0].isDead = true
	w.mustClaim(50, first, second)
}

// What has been seen stays when the same is to be watched as before.
func TestTargetStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	w.stations[0].isDead = true
	w.mustClaim(2)
	w.watcher.SetTarget(w.watcher.target)
	if in := w.mustClaim(20, first, second); in[0] != 3 {
		t.Errorf("claims in rounds %v, want the first in 3", in)
	}
}

// The questions in a silence: for no address that is not armed or has been claimed, and seldom
// for one for which another station answers.
func TestQuestionsInSilence(t *testing.T) {
	t.Parallel()
	third := netip.MustParseAddr("192.0.2.103")
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.Addresses = append(target.Addresses, Address{Addr: third, HolderEpoch: 7, Epoch: 10})
	})
	w.mustClaim(cold) // node1 does not have the third address
	w.stations[0].isDead = true
	w.stations = append(w.stations, &station{mac: strangerMAC, addresses: []netip.Addr{second}})
	clear(w.asked)
	w.mustClaim(3)
	for _, addr := range []netip.Addr{first, second, node1Addr} {
		if n := w.asked[question{Resolve, addr}]; n > 0 {
			t.Errorf("%s is asked for %d times after less than three misses", addr, n)
		}
	}
	w.mustClaim(7, first) // up to the last round in which both ranks may claim
	if got := w.asked[question{Resolve, first}]; got != 2 {
		t.Errorf("the address is asked for %d times before it is claimed, want 2", got)
	}
	if got := w.asked[question{Resolve, second}]; got != 5 {
		t.Errorf("the address that another station has is asked for %d times until both ranks could claim it, want 5", got)
	}
	clear(w.asked)
	w.mustClaim(100)
	for addr, want := range map[netip.Addr]int{first: 0, second: 20, third: 0, node1Addr: 100} {
		if got := w.asked[question{Resolve, addr}]; got != want {
			t.Errorf("%s is asked for %d times in the next hundred rounds, want %d", addr, got, want)
		}
	}
}

// An address is disarmed after three questions, a second apart, and armed again when the node
// answers for it.
func TestDisarmedAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold)
	w.facts.IsAgentFresh = false
	w.mustClaim(1) // asks for both
	w.stations[0].addresses = []netip.Addr{node1Addr, second}
	isArmed := func() bool { return w.watcher.addresses[first].isArmed }
	clear(w.asked)
	w.mustClaim(99)
	if got := w.asked[question{Resolve, first}]; got != 0 {
		t.Fatalf("the address is asked for %d times in the next ten seconds, want 0", got)
	}
	for i, rounds := range []int{1, 9, 1, 9, 1, 1} {
		w.mustClaim(rounds)
		if want := i < 5; isArmed() != want {
			t.Errorf("after step %d the address is armed: %t", i, isArmed())
		}
	}
	if got := w.asked[question{Resolve, first}]; got != 3 {
		t.Errorf("the address is asked for %d times until it is disarmed, want 3", got)
	}
	clear(w.asked)
	w.mustClaim(90)
	if got := w.asked[question{Resolve, first}]; got != 0 {
		t.Errorf("the disarmed address is asked for %d times in the next nine seconds, want 0", got)
	}
	w.mustClaim(210)
	if got := w.asked[question{Resolve, first}]; got != 3 {
		t.Errorf("the disarmed address is asked for %d times in half a minute, want 3", got)
	}
	w.stations[0].addresses = []netip.Addr{node1Addr, first, second}
	w.mustClaim(cold)
	if !isArmed() {
		t.Error("the address is not armed again")
	}
}

func TestArmingIsPaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.Addresses = nil
		addr := first
		for range 25 {
			target.Addresses = append(target.Addresses, Address{Addr: addr, Epoch: 2, HolderEpoch: 1})
			addr = addr.Next()
		}
	})
	for i, want := range []int{10, 10, 5, 0} {
		clear(w.asked)
		w.mustClaim(1)
		got := 0
		for q := range w.asked {
			if q.kind == Resolve && q.addr != node1Addr && q.addr != node3Addr {
				got++
			}
		}
		if got != want {
			t.Errorf("round %d asks for %d addresses, want %d", i, got, want)
		}
	}
}

// Of very many addresses each one's turn comes, also while the agent is not fresh.
func TestEachAddressIsAsked(t *testing.T) {
	t.Parallel()
	const many = 1200
	w := newWorld(t, func(_ *Settings, target *Target) {
		target.Addresses = nil
		addr := first
		for range many {
			target.Addresses = append(target.Addresses, Address{Addr: addr, Epoch: 2, HolderEpoch: 1})
			addr = addr.Next()
		}
	})
	w.facts.IsAgentFresh = false
	for _, a := range w.watcher.target.Addresses {
		w.stations[0].addresses = append(w.stations[0].addresses, a.Addr)
	}
	rounds := 3 * many / maxArmQuestionsPerRound
	w.mustClaim(rounds)
	for _, a := range w.watcher.target.Addresses {
		if n := w.asked[question{Resolve, a.Addr}]; n != 3 {
			t.Fatalf("in %d rounds %s is asked for %d times, want 3", rounds, a.Addr, n)
		}
	}
}

// Answers in a witness's name that do not show that this node reaches it.
func TestForgedWitnesses(t *testing.T) {
	t.Parallel()
	for name, forge := range map[string]func(round uint16) Answer{
		"of another station": func(round uint16) Answer {
			return Answer{Kind: Echo, Addr: node3Addr, MAC: strangerMAC, Round: round}
		},
		"for another address": func(round uint16) Answer {
			return Answer{Kind: Echo, Addr: first, MAC: node3MAC, Round: round}
		},
		"of an earlier round": func(round uint16) Answer {
			return Answer{Kind: Echo, Addr: node3Addr, MAC: node3MAC, Round: round - 1}
		},
		"by the fabric": func(uint16) Answer {
			return Answer{Kind: Resolve, Addr: node3Addr, MAC: node3MAC, IsDirectAnswer: true}
		},
		"by the watched node": func(round uint16) Answer {
			return Answer{Kind: Echo, Addr: node3Addr, MAC: node1MAC, Round: round}
		},
		"for another node's name": func(round uint16) Answer {
			return Answer{Kind: Echo, Addr: node4Addr, MAC: node4MAC, Round: round}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(s *Settings, target *Target) {
				s.TrustsEchoOnly = true
				target.Witnesses[0].MACs = []string{node3MAC, node1MAC} // a shared one
			})
			w.mustClaim(cold)
			w.isCutOff, w.stations[0].isDead = true, true
			for range cold {
				if claims := w.round(DefaultInterval); len(claims) > 0 {
					t.Fatalf("node2 is cut off, and claims %v", claims)
				}
				w.watcher.Hear(forge(w.lastRound))
			}
		})
	}
}

func TestWitnessFallsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustClaim(cold) // in rounds 1, 51 and 101 it was asked
	w.stations[1].dropsEchoes = true
	w.mustClaim(81) // so it is in 151 and 201
	w.mustBe(ReasonWatching)
	w.mustClaim(1)
	w.mustBe(ReasonNoWitness)
	w.mustClaim(49)
	w.mustBe(ReasonNoWitness)
	w.mustClaim(1) // in 251 by ARP, too
	w.mustBe(ReasonWatching)
}

// The network delays answers by as many rounds as misses are counted.
func TestAnswersOfEarlierRounds(t *testing.T) {
	t.Parallel()
	for delay, want := range map[int]string{DefaultMisses: ReasonWatching, DefaultMisses + 1: ReasonNoAnswer} {
		w := newWorld(t, func(s *Settings, _ *Target) { s.TrustsEchoOnly = true })
		w.stations[0].echoDelay = delay
		w.mustClaim(cold)
		w.mustBe(want)
	}
}

// A node that is back answers echoes at once, or only after it has found out by which MAC this one is reached: then its
// other answers are the first sign of life.
func TestReturningNodeIsHeardAtOnce(t *testing.T) {
	t.Parallel()
	for echoDelay, want := range []string{ReasonWatching, ReasonDoubtful} {
		for silent := range slowRounds {
			w := newWorld(t)
			w.mustClaim(cold)
			w.stations[0].isDead = true
			w.mustClaim(20+silent, first, second)
			w.stations[0].isDead, w.stations[0].echoDelay = false, 7*echoDelay
			w.repeats = nil
			w.mustClaim(2)
			if len(w.repeats) != 2 {
				t.Errorf("after %d silent rounds this node repeats %v", 20+silent, w.repeats)
			}
			w.mustBe(want)
			w.stations[0].echoDelay = 0
			w.mustClaim(steadyEchoes + 7)
			w.mustBe(ReasonWatching)
		}
	}
}

func TestLivingNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for what, c := range []struct {
		change func()
		want   []string
	}{
		{func() {}, []string{"node1"}},
		{func() { w.stations[0].isDead = true }, nil},
		{func() { w.stations[0].isDead = false }, []string{"node1"}},
	} {
		c.change()
		w.run(cold)
		if got := w.watcher.LivingNodes(); !slices.Equal(got, c.want) {
			t.Errorf("step %d: %v, want %v", what, got, c.want)
		}
	}
	if got := newSucceeded(t).watcher.LivingNodes(); !slices.Equal(got, []string{"node3"}) {
		t.Errorf("%v, want the successor that has claimed the addresses", got)
	}
}

// When the watched node answers again after rounds in which it did not, or for the first time, what this
// process or an earlier one has claimed is claimed once more.
func TestReturningNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	repeats := func(what string, rounds int, want ...netip.Addr) {
		t.Helper()
		w.repeats = nil
		w.run(rounds)
		if !slices.Equal(w.repeats, want) {
			t.Errorf("%s: node2 repeats %v, want %v", what, w.repeats, want)
		}
	}
	repeats("the first answer", cold, first, second)
	w.stations[0].isDead = true
	repeats("a lost answer", 1)
	w.stations[0].isDead = false
	repeats("the next answer", 10)
	w.stations[0].isDead = true
	repeats("two lost answers", quietRounds)
	w.stations[0].isDead = false
	repeats("the answer after two lost ones", 2, first, second)
	w.isCutOff = true
	repeats("this node is cut off", 20)
	w.isCutOff = false
	repeats("this node is cut off no more", 2, first, second)
	w.stations[0].isDead = true
	repeats("a long silence", 20)
	w.stations[0].isDead = false
	repeats("the end of a long silence", 2, first, second)
	repeats("later", 10)
	w.watcher.SetTarget(Target{
		Watched: Node{"node1", node1Addr, []string{node4MAC}}, Addresses: []Address{{Addr: second, HolderEpoch: 7, Epoch: 9}},
	})
	w.stations[0].mac = node4MAC
	repeats("another node", 10, second)
}
