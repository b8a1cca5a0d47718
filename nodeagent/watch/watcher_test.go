package watch

import (
	"net/netip"
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
		"this node has no carrier":                {func(w *world) { w.isCutOff, w.facts.CanHear = true, false }, ReasonNoWitness},
		"a firewall drops echoes to the node":     {func(w *world) { w.stations[0].dropsEchoes = true }, ReasonDoubtful},
		"a firewall drops echoes to all nodes":    {func(w *world) { w.stations[0].dropsEchoes, w.stations[1].dropsEchoes = true, true }, ReasonDoubtful},
		"its answers come three rounds late":      {func(w *world) { w.stations[0].echoDelay = 3 }, ReasonWatching},
		"the Service of an address goes":          {func(w *world) { w.stations[0].addresses = []netip.Addr{node1Addr, second} }, ReasonWatching},
		"another node answers for an address too": {func(w *world) { w.stations[1].addresses = []netip.Addr{node3Addr, first} }, ReasonWatching},
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
		target.Addresses = []Address{{first, 0, 9, 10}, {second, 1, 7, 9}}
		w.watcher.SetTarget(target)
		w.mustClaim(cold, second)
	})
	t.Run("another node of the same name", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.mustClaim(cold)
		w.stations[0].isDead = true
		target := w.watcher.target
		target.Watched.MACs = []string{node4MAC}
		w.watcher.SetTarget(target)
		w.mustClaim(cold)
	})
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
			w.facts.IsFresh = c.isFresh
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
		{question{Resolve, first}, 0},
	} {
		if got := w.asked[c.question]; got != c.want {
			t.Errorf("%+v is asked %d times a minute, want %d", c.question, got, c.want)
		}
	}
	clear(w.asked)
	w.facts.IsFresh = false
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
