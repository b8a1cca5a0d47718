package watch

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

const (
	node1MAC, node2MAC, node3MAC, node4MAC, node5MAC, strangerMAC = "02:00:00:00:00:01", "02:00:00:00:00:02",
		"02:00:00:00:00:03", "02:00:00:00:00:04", "02:00:00:00:00:05", "02:00:00:00:00:99"
)

var (
	node1Addr, node3Addr = netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.13")
	node4Addr, node5Addr = netip.MustParseAddr("192.0.2.14"), netip.MustParseAddr("192.0.2.15")
	first, second        = netip.MustParseAddr("192.0.2.101"), netip.MustParseAddr("192.0.2.102")
)

// station is a kernel on the link.
type station struct {
	mac       string
	addresses []netip.Addr
	isDead    bool
	isGateway bool
	// dropsEchoes means that a firewall drops echoes.
	dropsEchoes bool
	// echoesOneOf is how many echoes come for each that the station answers; 0 if it answers all. echoes counts them.
	echoesOneOf, echoes int
	// echoDelay is how many rounds late the station's answers to echoes come.
	echoDelay int
}

// question is what is asked, and not whom.
type question struct {
	kind Kind
	addr netip.Addr
}

// world is a link on which node2 watches node1; node3 is the witness. All stations answer at
// once.
type world struct {
	t        *testing.T
	watcher  *Watcher
	now      time.Time
	facts    RoundInputs
	isCutOff bool // node2 is
	// isProxied means that the fabric answers ARP requests and neighbour solicitations for all
	// nodes, also for the dead.
	isProxied bool
	stations  []*station
	delayed   map[int][]Answer // by round of the world
	rounds    int
	lastRound uint16
	// silent is which node was silent at each claim, and silentFor for how long.
	silent    []string
	silentFor []time.Duration
	// repeats are the addresses that node2 is to announce once more if it has claimed them.
	repeats []netip.Addr
	// asked counts the questions by kind and address.
	asked map[question]int
}

func newWorld(t *testing.T, edit ...func(*Settings, *Target)) *world {
	t.Helper()
	settings := Settings{Interval: DefaultInterval, Misses: DefaultMisses}
	target := Target{
		Watched:   Node{"node1", node1Addr, []string{node1MAC}},
		Witnesses: []Node{{"node3", node3Addr, []string{node3MAC}}},
		Addresses: []Address{{Addr: first, HolderEpoch: 7, Epoch: 8}, {Addr: second, Rank: 1, HolderEpoch: 7, Epoch: 9}},
	}
	for _, e := range edit {
		e(&settings, &target)
	}
	return &world{
		t: t, watcher: New(settings, target), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), facts: RoundInputs{
			CanHear: true, IsAgentFresh: true,
		},
		stations: []*station{
			{mac: node1MAC, addresses: []netip.Addr{node1Addr, first, second}},
			{mac: node3MAC, addresses: []netip.Addr{node3Addr}},
		},
		delayed: map[int][]Answer{}, asked: map[question]int{},
	}
}

// round runs one round that takes a while, and returns the addresses that node2 claims at its
// beginning.
func (w *world) round(takes time.Duration) []Address {
	steps := w.watcher.AdvanceRound(w.now, w.facts)
	w.rounds++
	if own := steps[0].Round; own == 0 || own == w.lastRound {
		w.t.Fatalf("a round has number %d, after %d", own, w.lastRound)
	}
	w.lastRound = steps[0].Round
	var claims []Address
	for _, step := range steps {
		claims = append(claims, step.Claims...)
		w.repeats = append(w.repeats, step.Repeats...)
		for range step.Claims {
			w.silent, w.silentFor = append(w.silent, step.Node), append(w.silentFor, step.SilentFor)
		}
		for _, q := range step.Questions {
			w.asked[question{q.Kind, q.Addr}]++
			if !w.isCutOff {
				w.ask(q, step.Round)
			}
		}
	}
	for _, a := range w.delayed[w.rounds] {
		w.watcher.Hear(a)
	}
	delete(w.delayed, w.rounds)
	w.now = w.now.Add(takes)
	return claims
}

// ask lets the stations answer a question.
func (w *world) ask(q Question, round uint16) {
	for _, s := range w.stations {
		isAsked := slices.Contains(s.addresses, q.Addr) && (q.IsForAll || slices.Contains(q.MACs, s.mac))
		answer := Answer{
			Kind: q.Kind, Addr: q.Addr, MAC: s.mac, IsDirectAnswer: q.Kind == Resolve, IsGateway: s.isGateway,
		}
		switch {
		case !isAsked:
		case q.Kind == Echo && !s.isDead && !s.dropsEchoes && s.answersEcho():
			answer.Round = round
			if s.echoDelay > 0 {
				w.delayed[w.rounds+s.echoDelay] = append(w.delayed[w.rounds+s.echoDelay], answer)
				continue
			}
			w.watcher.Hear(answer)
		case q.Kind == Resolve && (!s.isDead || w.isProxied):
			w.watcher.Hear(answer)
		}
	}
}

// answersEcho reports whether the station answers an echo that has come.
func (s *station) answersEcho() bool {
	s.echoes++
	return s.echoesOneOf == 0 || s.echoes%s.echoesOneOf == 0
}

// run runs n rounds, and returns what node2 claims in them, and in which round.
func (w *world) run(n int) (claims []Address, in []int) {
	for i := range n {
		for _, a := range w.round(w.watcher.settings.Interval) {
			claims, in = append(claims, a), append(in, i)
		}
	}
	return claims, in
}

// mustClaim runs n rounds, in which node2 is to claim these addresses in this order.
func (w *world) mustClaim(n int, want ...netip.Addr) []int {
	w.t.Helper()
	claims, in := w.run(n)
	var got []netip.Addr
	for _, c := range claims {
		got = append(got, c.Addr)
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("node2 claims %v in rounds %v, want %v; reason %s", got, in, want, w.watcher.Reason())
	}
	return in
}

func (w *world) mustBe(want string) {
	w.t.Helper()
	if got := w.watcher.Reason(); got != want {
		w.t.Fatalf("reason %s, want %s", got, want)
	}
}

// cold is for how many rounds a world runs until everything is known.
const cold = 120
