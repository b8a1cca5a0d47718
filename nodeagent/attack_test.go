package nodeagent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/test/seeds"
)

// A station claims the address of an agent that is not fresh, again and again, and
// does not answer for it: the address stays, and the station is reported.
func TestAttackForgedClaim(t *testing.T) {
	for name, leaving := range map[string]bool{"announced": false, "leaving": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := defended(t, func(a *purelbv1.AnnouncedAddress) { a.HandingOver = leaving })
				for range 300 {
					w.neighbours.claim("192.0.2.1", stranger)
					w.neighbours.say(neigh.Message{Kind: neigh.ARPRequest, Addr: netip.MustParseAddr("192.0.2.1"), MAC: stranger})
					time.Sleep(100 * time.Millisecond)
				}
				w.settle()
				w.expect("state", "192.0.2.1 Announced Contested"+stranger.String(), w.states("node1"))
				w.expect("defences", 0, len(w.neighbours.heard()))
				for _, change := range w.kernel.TakeCalls() {
					if strings.HasPrefix(change, "Remove") {
						t.Errorf("a claim that nobody answers for makes the agent %s", change)
					}
				}
				time.Sleep(plan.RivalFor)
				w.settle()
				w.expect("state when it is over", "192.0.2.1 Announced", w.states("node1"))
			})
		})
	}
}

// A station sends an ordinary packet with the address first, or answers: what it
// claims then counts all the same. This test shows the row "keep its claims from being noticed" of
// docs/trust.md.
func TestAttackKnownStation(t *testing.T) {
	for name, befriend := range map[string]func(w *world){
		"an ordinary packet": func(w *world) {
			w.neighbours.say(neigh.Message{Kind: neigh.ARPRequest, Addr: netip.MustParseAddr("192.0.2.1"), MAC: stranger})
			synctest.Wait()
			w.expect("defences against an ordinary packet", 1, len(w.neighbours.heard()))
		},
		"an answer that nobody asked for": func(w *world) {
			w.neighbours.say(answerOf(netip.MustParseAddr("192.0.2.1"), stranger))
			synctest.Wait()
			w.expect("defences against an answer", 1, len(w.neighbours.heard()))
		},
		"an answer": func(w *world) {
			w.answered(stranger)
			w.neighbours.claim("192.0.2.1", stranger)
			synctest.Wait()
			w.expect("defences against a claim", 1, len(w.neighbours.heard()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := defended(t)
				w.freshness.noteRenewed(time.Now())
				befriend(w)
				w.settle()
				w.expect("state", "192.0.2.1 Announced Contested"+stranger.String(), w.states("node1"))
				time.Sleep(3 * time.Second) // not fresh any more
				w.neighbours.set("192.0.2.1", stranger)
				w.neighbours.claim("192.0.2.1", stranger)
				time.Sleep(plan.Hesitation)
				synctest.Wait()
				w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
			})
		})
	}
}

// A station claims in the name of the gateway: an agent that is fresh defends, one that
// is not waits, as the gateway may answer for everybody.
func TestAttackInTheNameOfTheGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		w.kernel.AddGatewayMAC("eth0", stranger.String())
		w.neighbours.set("192.0.2.1", stranger)
		for range 20 {
			w.neighbours.claim("192.0.2.1", stranger)
			time.Sleep(100 * time.Millisecond)
		}
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		w.expect("asked by itself", 0, len(w.neighbours.checked))
		w.freshness.noteRenewed(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.expect("defences", 1, len(w.neighbours.heard()))
	})
}

// Whatever is sent, and in whose name, makes the agent do no more than so much: it
// claims, asks, logs and works so often in a second, and remembers so many stations. This test shows
// the row "make a node work without bound" of docs/trust.md.
func TestAttackFlood(t *testing.T) {
	const addresses, seconds, perSecond = 2000, 10, 20000
	// Frames come in bursts: each sleep in a synctest bubble costs the race detector much.
	const burst = perSecond / 1000
	first := seeds.First(t)
	for name, fresh := range map[string]bool{"fresh": true, "not fresh": false} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(first, 0))
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, settings(), announcementOf("node1"))
				gateway := neigh.MAC{2, 0, 0, 0, 0, 0xcc}
				w.kernel.AddGatewayMAC("eth0", gateway.String())
				var lines, wakes atomic.Int32
				logger := funcr.New(func(string, string) { lines.Add(1) }, funcr.Options{})
				ctx := log.IntoContext(t.Context(), logger)
				go func() { _ = w.defender.Start(ctx) }()
				go func() { _ = w.announcer.Start(ctx) }()
				go func() {
					for {
						select {
						case <-ctx.Done():
							return
						case <-w.wake:
							wakes.Add(1)
						}
					}
				}()
				var held []plan.Held
				for i := range addresses {
					addr := netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(i%250 + 1)})
					h := plan.Held{
						Address: plan.Address{Interface: "eth0", Prefix: netip.PrefixFrom(addr, 32)}, Epoch: 1,
						PreviousMACs: []string{oldHolder.String()},
					}
					held = append(held, h)
					w.defender.noteAdded(&plan.Desired{Addr: addr, PreviousMACs: h.PreviousMACs})
				}
				w.defender.setHeld(held)
				synctest.Wait()
				time.Sleep(2 * time.Second)
				asked := w.asked()
				for i := range seconds * perSecond {
					if fresh {
						w.freshness.noteRenewed(time.Now())
					}
					mac := [...]neigh.MAC{oldHolder, stranger, gateway, {2, 1, byte(i >> 16), byte(i >> 8), byte(i)}}[random.IntN(4)]
					m := neigh.Message{
						Kind: neigh.Kind(1 + random.IntN(3)), Addr: held[random.IntN(addresses)].Prefix.Addr(), MAC: mac,
						IsGratuitous: random.IntN(2) == 0, IsDirect: random.IntN(2) == 0,
					}
					w.neighbours.say(m)
					if i%burst == burst-1 {
						time.Sleep(burst * time.Second / perSecond)
					}
				}
				synctest.Wait()
				t.Logf("%d frames in %d s: %d claims, %d questions for all and %d for single stations, %d log lines, %d times "+
					"woken",
					seconds*perSecond, seconds, len(w.neighbours.heard()), w.asked()-asked, len(w.neighbours.checked), lines.Load(),
					wakes.Load())
				for what, c := range map[string]struct{ got, pace int }{
					"claims":                        {len(w.neighbours.heard()), 200},
					"questions for all":             {w.asked() - asked, 220},
					"questions for single stations": {len(w.neighbours.checked), 2000},
					"log lines":                     {int(lines.Load()), 50},
					"wakes":                         {int(wakes.Load()), 10},
				} {
					if most := c.pace * (seconds + 1); c.got > most {
						t.Errorf("%s: %d, more than %d", what, c.got, most)
					}
				}
				w.defender.mu.Lock()
				defer w.defender.mu.Unlock()
				if len(w.defender.defence.Yields) > 0 && fresh {
					t.Errorf("%d addresses were yielded", len(w.defender.defence.Yields))
				}
				for addr, watched := range w.defender.defence.HeldStates {
					if len(watched.LastAnswerByMAC) > plan.MaxAnswerers || len(watched.Checks) > plan.MaxChecks {
						t.Fatalf("of %s %d stations are known, and %d asked", addr, len(watched.LastAnswerByMAC), len(watched.Checks))
					}
				}
			})
		})
	}
}

// Of many yielded addresses the agent asks for no more than so many in a second, and for all of
// them in turn.
func TestAttackManyYielded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addresses, seconds = 3000, 9
		w := newWorld(t, settings(), announcementOf("node1"))
		yields := map[netip.Addr]plan.YieldedAddress{}
		var desired []plan.Desired
		for i := range addresses {
			addr := netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(i%250 + 1)})
			yields[addr] = plan.YieldedAddress{Epoch: 1, MAC: stranger.String()}
			desired = append(desired, plan.Desired{Addr: addr, Interface: "eth0", IsLocal: true, Epoch: 1})
			w.neighbours.set(addr.String(), stranger)
		}
		w.defender.restoreYields(yields)
		w.defender.updateYields(desired)
		go func() { _ = w.defender.Start(t.Context()) }()
		time.Sleep(seconds * time.Second)
		asked := map[string]int{}
		w.neighbours.mu.Lock()
		total := len(w.neighbours.checked)
		for _, question := range w.neighbours.checked {
			asked[strings.Fields(question)[0]]++
		}
		w.neighbours.mu.Unlock()
		if total > 1000*(seconds+1) || len(asked) != addresses {
			t.Errorf("%d questions in %d s, for %d of %d addresses", total, seconds, len(asked), addresses)
		}
		_, left := w.defender.heldAndYields()
		for _, y := range left {
			if y.IsSilent(time.Now()) {
				t.Fatalf("it answers, and is taken for silent: %+v", y)
			}
		}
	})
}

// The names of links that are gone are forgotten.
func TestFaultLinksComeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, settings())
	for i := range 1000 {
		w.defender.noteLinks([]plan.NetworkInterface{
			{Name: "eth0", IsUp: true}, {Name: fmt.Sprintf("veth%d", i), IsUp: true},
		})
	}
	w.expect("links that are remembered", map[string]bool{"eth0": true, "veth999": true}, w.defender.isUp)
}

// segment is a link in memory between nodes that have a kernel each, and answer for
// what it has, for as long as they are connected.
type segment struct {
	mu    sync.Mutex
	cut   bool
	ports []*port
}

// port is one node's interface on a segment.
type port struct {
	*segment
	mac    neigh.MAC
	kernel Kernel
	heard  func(neigh.Message)
	wanted func(netip.Addr) bool
	// isCutOff means that no frame of this port reaches another, nor one of another this port.
	isCutOff bool
	// answers are those that the port's Exchange has not passed on yet.
	answers []neigh.ExchangeAnswer
}

// delay is how long a frame takes.
const delay = 200 * time.Microsecond

// others are the ports that a frame of this one reaches.
func (p *port) others() []*port {
	p.mu.Lock()
	defer p.mu.Unlock()
	var others []*port
	for _, o := range p.ports {
		if o != p && !p.cut && !p.isCutOff && !o.isCutOff {
			others = append(others, o)
		}
	}
	return others
}

func (p *port) has(addr netip.Addr) bool {
	o, _ := p.kernel.Observe()
	for _, a := range o.Addresses {
		if a.Prefix.Addr() == addr {
			return true
		}
	}
	return false
}

// hear makes the port hear a frame, a little later.
func (p *port) hear(m neigh.Message) {
	time.AfterFunc(delay, func() {
		p.mu.Lock()
		heard, wanted := p.heard, p.wanted
		p.mu.Unlock()
		if heard != nil && wanted(m.Addr) {
			heard(m)
		}
	})
}

func (p *port) Announce(_ string, addr netip.Addr) error {
	for _, o := range p.others() {
		o.hear(neigh.Message{Kind: neigh.ARPRequest, Addr: addr, MAC: p.mac, IsGratuitous: true})
	}
	return nil
}

func (p *port) Ask(q neigh.Question) error {
	for _, o := range p.others() {
		p.ask(o, q.Addr)
	}
	return nil
}

func (*port) SetPodMACs([]string) {}

func (p *port) AskStation(q neigh.Question, to neigh.MAC) error {
	for _, o := range p.others() {
		if o.mac == to {
			p.ask(o, q.Addr)
		}
	}
	return nil
}

func (p *port) ask(o *port, addr netip.Addr) {
	time.AfterFunc(delay, func() {
		if o.has(addr) {
			p.hear(answerOf(addr, o.mac))
			p.noteAnswer(neigh.ExchangeAnswer{Addr: addr, MAC: o.mac, IsDirectAnswer: true})
		}
	})
}

func (p *port) noteAnswer(h neigh.ExchangeAnswer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, h)
}

func (p *port) Probe(
	ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
) map[netip.Addr]neigh.ProbeResult {
	answers := map[netip.Addr]neigh.ProbeResult{}
	for range count {
		for _, q := range questions {
			for _, o := range p.others() {
				if o.has(q.Addr) {
					answers[q.Addr] = neigh.ProbeResult{MAC: o.mac}
				}
			}
		}
		if len(answers) < len(questions) {
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	}
	return answers
}

func (p *port) Listen(ctx context.Context, _ string, wanted func(netip.Addr) bool, heard func(neigh.Message)) error {
	p.mu.Lock()
	p.heard, p.wanted = heard, wanted
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.heard = nil
	p.mu.Unlock()
	return nil
}

// connect makes a world a node on the segment, whose agent works until the test ends.
func (s *segment) connect(w *world, mac neigh.MAC) {
	p := &port{segment: s, mac: mac, kernel: w.kernel}
	s.mu.Lock()
	s.ports = append(s.ports, p)
	s.mu.Unlock()
	w.Neighbours = p
	w.OpenExchange = func(string) (Exchange, error) { return portExchange{p}, nil }
	w.prepare()
	go func() { _ = w.defender.Start(w.t.Context()) }()
	go func() { _ = w.announcer.Start(w.t.Context()) }()
	go func() { _ = w.watching.Start(w.t.Context()) }()
	go func() { _ = w.reporter.Start(w.t.Context()) }()
	go w.work(w.t.Context())
}

func (s *segment) setCut(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

// Two nodes whose agents are not fresh have the same address, as the link between them
// was cut: once it is whole again one of them keeps it, and the other does not have
// it again for as long as that one does. This test shows the row "two nodes have an address, and
// neither can ask the API server" of docs/trust.md.
func TestFaultTwoHoldersNotFresh(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	worst, moves := time.Duration(0), 0
	random := rand.New(rand.NewPCG(seeds.First(t), 0))
	for round := range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := &segment{cut: true}
			var nodes []*world
			for i := range 2 {
				w := newWorld(
					t, settings(),
					announcementOf("node1", local("192.0.2.1", func(a *purelbv1.AnnouncedAddress) { a.PreviousMACs = nil })),
				)
				s.connect(w, neigh.MAC{2, 0, 0, 0, 1, byte(i)})
				nodes = append(nodes, w)
				if round%2 == 0 { // else they ask at the same times
					time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
				}
			}
			holders := func() (n int) {
				for _, p := range s.ports {
					if p.has(addr) {
						n++
					}
				}
				return n
			}
			time.Sleep(time.Second + time.Duration(random.Int64N(int64(3*time.Second))))
			if n := holders(); n != len(nodes) {
				t.Fatalf("%d nodes have it while they are cut off each other", n)
			}
			s.setCut(false)
			healed := time.Now()
			one := time.Time{} // since when exactly one has it
			before := holders()
			for time.Since(healed) < 10*time.Second {
				time.Sleep(time.Millisecond)
				n := holders()
				if n != before {
					moves++
					one = time.Now()
				}
				before = n
			}
			if before != 1 {
				t.Fatalf("%d nodes have it 10 s after the link is whole", before)
			}
			worst = max(worst, one.Sub(healed))
		})
	}
	t.Logf("one has it after %s at the latest, %d changes in 50 times", worst, moves)
	if worst > 3*time.Second {
		t.Errorf("one has it only after %s", worst)
	}
}

// Another node takes an address over from a node that is not fresh: that node yields at once.
func TestFaultTakenOverWhileNotFresh(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	synctest.Test(t, func(t *testing.T) {
		s := &segment{}
		cutOff := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		s.connect(cutOff, oldHolder)
		time.Sleep(5 * time.Second)
		next := newWorld(t, settings(), announcementOf("node1"))
		s.connect(next, stranger)
		beat := func() {
			next.freshness.noteListed()
			next.freshness.noteRenewed(time.Now())
		}
		beat()
		next.edit("node1", func(spec *purelbv1.AnnouncementSpec) {
			spec.Addresses = append(spec.Addresses, local("192.0.2.1", takeover))
		})
		pacing.Signal(next.wake)
		start := time.Now()
		for s.ports[0].has(addr) && time.Since(start) < 10*time.Second {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(start)
		t.Logf("gone after %s", took)
		if took > 20*time.Millisecond {
			t.Errorf("two nodes have it for %s", took)
		}
		for range 100 {
			beat()
			time.Sleep(100 * time.Millisecond)
		}
		if s.ports[0].has(addr) || !s.ports[1].has(addr) {
			t.Error("it did not stay where it was taken over to")
		}
		// That one's kernel goes, and the first has it again.
		next.edit("node1", func(spec *purelbv1.AnnouncementSpec) { spec.Addresses = nil })
		pacing.Signal(next.wake)
		start = time.Now()
		for !s.ports[0].has(addr) && time.Since(start) < 10*time.Second {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(start); took > 700*time.Millisecond {
			t.Errorf("claimed again after %s", took)
		}
	})
}
