package nodeagent

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/link/linktest"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// defended is a world with one Local address, announced, and a defender that listens.
func defended(t *testing.T, edit ...func(*purelbv1.AnnouncedAddress)) *world {
	t.Helper()
	w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", edit...)))
	go func() { _ = w.defender.Start(t.Context()) }()
	go func() { _ = w.announcer.Start(t.Context()) }()
	// The address is there already, so that the agent does not announce it.
	w.kernel.Put(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/32"), IsOurs: true, NoPrefixRoute: true,
		Valid: 300 * time.Second, Preferred: 300 * time.Second,
	})
	w.settle()
	w.kernel.TakeCalls()
	return w
}

// settle lets the agent sync, and the defender do what follows.
func (w *world) settle() {
	w.t.Helper()
	if _, err := w.reconcile(); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// held returns what the defender knows of a held address.
func (w *world) held(addr netip.Addr) plan.Held {
	held, _ := w.defender.heldAndYields()
	return held[addr]
}

// yieldTo makes the agent yield a held address to a station.
func (w *world) yieldTo(address string, mac neigh.MAC) {
	w.defender.mu.Lock()
	defer w.defender.mu.Unlock()
	h := w.defender.defence.Held[netip.MustParseAddr(address)]
	w.defender.defence.NoteYield(h, mac.String(), time.Now())
	w.defender.withdrawYielded(w.t.Context(), plan.Reaction{Held: h, YieldToMAC: mac.String(), MayLog: true})
}

func (w *world) asked() int {
	w.neighbours.mu.Lock()
	defer w.neighbours.mu.Unlock()
	return len(w.neighbours.asked)
}

// A station claims the address of an agent that is not fresh, and answers for it: the agent yields,
// and claims the address again when the station has been silent for half a second. This test shows the
// row "make a node yield an address for longer than the station's frames come" of docs/trust.md.
func TestYieldWhenNotFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		w.neighbours.set("192.0.2.1", stranger)
		start := time.Now()
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.expect("changes, at once", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("time", time.Duration(0), time.Since(start))
		w.settle()
		w.expect("state", "192.0.2.1 Yielded Yielded"+stranger.String(), w.states("node1"))

		// For as long as that station answers, and half a second longer.
		for range 10 {
			time.Sleep(time.Second)
			w.settle()
		}
		w.expect("changes while it answers", []string(nil), w.kernel.TakeCalls())
		w.neighbours.unset("192.0.2.1")
		silent := time.Now()
		for len(w.kernel.TakeCalls()) == 0 && time.Since(silent) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			w.settle()
		}
		if took := time.Since(silent); took < 400*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("claimed again after %s of silence", took)
		}
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
		time.Sleep(100 * time.Millisecond)
		if len(w.neighbours.heard()) == 0 {
			t.Error("a claim is not announced")
		}
	})
}

// A yielded address that could not be removed at once is removed as soon as it can be.
func TestYieldFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		w.neighbours.set("192.0.2.1", stranger)
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), errors.New("refused"))
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		if _, err := w.reconcile(); err == nil {
			t.Error("not tried again")
		}
		w.expect("state while it cannot", "192.0.2.1 Failed Lost", w.states("node1"))
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), nil)
		w.kernel.TakeCalls()
		w.settle()
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("state", "192.0.2.1 Yielded Yielded"+stranger.String(), w.states("node1"))
		w.settle()
		w.expect("changes once it is gone", []string(nil), w.kernel.TakeCalls())
	})
}

// observedKernel is a kernel that lets something happen right after the next observation.
type observedKernel struct {
	*linktest.Kernel
	afterwards func()
}

func (k *observedKernel) Observe() (plan.Observed, error) {
	observed, err := k.Kernel.Observe()
	if happens := k.afterwards; happens != nil {
		k.afterwards = nil
		happens()
	}
	return observed, err
}

// While nothing is known the agent renews what it has. An address that it yields between the observation and the
// renewal is not put back by that: the station to which it was yielded has the address.
func TestYieldedWhileNothingIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings())
		kernel := &observedKernel{Kernel: w.kernel}
		w.Kernel = kernel
		w.kernel.Put(plan.Address{
			Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/32"), IsOurs: true, NoPrefixRoute: true,
			Valid: 300 * time.Second, Preferred: 300 * time.Second,
		})
		w.settle()
		w.expect("changes at first", []string(nil), w.kernel.TakeCalls())
		time.Sleep(100 * time.Second) // a third of the lifetime
		kernel.afterwards = func() { w.yieldTo("192.0.2.1", stranger) }
		w.settle()
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.settle()
		w.expect("changes afterwards", []string(nil), w.kernel.TakeCalls())
	})
}

func TestYieldBlocksUntilTheEpochGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t, takeover)
		w.neighbours.set("192.0.2.1", stranger)
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.kernel.TakeCalls()
		w.freshness.noteListed() // takeover would be allowed
		w.settle()
		w.expect("changes in the same epoch", []string(nil), w.kernel.TakeCalls())
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].Epoch = 2 })
		w.settle()
		w.expect("changes in the next", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

func TestDefendWhenFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		w.freshness.setPeriod(nil)
		w.freshness.noteRenewed(time.Now())
		for range 5 {
			w.neighbours.claim("192.0.2.1", stranger)
			time.Sleep(time.Second)
		}
		w.expect("defences", 1, len(w.neighbours.heard()))
		w.settle()
		w.expect("state", "192.0.2.1 Announced Contested"+stranger.String(), w.states("node1"))
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		time.Sleep(6 * time.Second)
		w.freshness.noteRenewed(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.expect("defences after 11 seconds", 2, len(w.neighbours.heard()))
		time.Sleep(plan.RivalFor)
		w.settle()
		w.expect("state when it is over", "192.0.2.1 Announced", w.states("node1"))
	})
}

// A claim of another station asks for a renewal of the Lease, unless it has just been renewed: the manager may have
// given the address to that station. An answer alone does not.
func TestClaimAsksForRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		w.freshness.setPeriod(nil)
		isAsked := func() bool {
			synctest.Wait()
			_, isThere := tryReceive(w.freshness.renewalAsked)
			return isThere
		}
		isAsked() // because of the period
		w.freshness.noteRenewed(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		w.expect("asks, as the Lease was just renewed", false, isAsked())
		time.Sleep(5 * time.Second)
		w.expect("asks without a claim", false, isAsked())
		w.neighbours.claim("192.0.2.1", stranger)
		w.expect("asks", true, isAsked())
		w.freshness.noteRenewed(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		w.expect("asks again, after a renewal", false, isAsked())
	})
}

func TestYieldWhenLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t, func(a *purelbv1.AnnouncedAddress) { a.HandingOver = true })
		w.freshness.noteRenewed(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		time.Sleep(2 * plan.CheckWindow)
		w.expect("changes while nobody answers", []string(nil), w.kernel.TakeCalls())
		w.neighbours.set("192.0.2.1", stranger)
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("defences", 0, len(w.neighbours.heard()))
	})
}

// TestBackToThePreviousHolder hands an address back soon after it was taken over:
// what is said against a previous holder that goes on is not said against the next
// one.
func TestBackToThePreviousHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
		w.freshness.noteRenewed(time.Now())
		go func() { _ = w.defender.Start(t.Context()) }()
		go func() { _ = w.announcer.Start(t.Context()) }()
		w.settle()
		w.expect("changes", []string{"Add 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		time.Sleep(2 * time.Second)
		before := len(w.neighbours.heard())
		w.neighbours.claim("192.0.2.1", oldHolder)
		synctest.Wait()
		if len(w.neighbours.heard()) == before {
			t.Error("a previous holder that goes on is not told")
		}
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].HandingOver = true })
		w.freshness.noteRenewed(time.Now())
		w.settle()
		asked, before := w.asked(), len(w.neighbours.heard())
		for range plan.RepeatInterval / time.Second {
			time.Sleep(time.Second)
			w.freshness.noteRenewed(time.Now())
		}
		w.expect("questions", asked, w.asked())
		w.neighbours.set("192.0.2.1", oldHolder)
		w.neighbours.claim("192.0.2.1", oldHolder)
		synctest.Wait()
		w.expect("changes when it is handed back", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("claims against the next holder", 0, len(w.neighbours.heard())-before)
	})
}

// An agent that is not fresh asks for its own addresses; to a mere answer it
// yields when it is repeated.
func TestYieldToSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		time.Sleep(5*time.Second + time.Millisecond)
		w.expect("asked in 5 s", 5, w.asked())
		w.expect("changes while nobody answers", []string(nil), w.kernel.TakeCalls())
		w.neighbours.set("192.0.2.1", stranger)
		time.Sleep(plan.AskInterval + plan.Hesitation)
		synctest.Wait()
		w.expect("asked", 6, w.asked())
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())

		// One that is fresh does not ask.
		w = defended(t)
		for range 5 {
			w.freshness.noteRenewed(time.Now())
			time.Sleep(time.Second)
		}
		w.expect("asked while fresh", 0, w.asked())
	})
}

// answered makes a station answer a question that the agent asks now.
func (w *world) answered(mac neigh.MAC) {
	addr := netip.MustParseAddr("192.0.2.1")
	w.defender.askFor(w.t.Context(), w.held(addr))
	w.neighbours.say(answerOf(addr, mac))
}

func TestNotSuspected(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"the gateway": func(w *world) { w.kernel.AddGatewayMAC("eth0", stranger.String()) },
		"one that answered while the agent was fresh": func(w *world) {
			w.freshness.noteRenewed(time.Now())
			w.answered(stranger)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := defended(t)
				prepare(w)
				w.neighbours.set("192.0.2.1", stranger)
				time.Sleep(time.Minute)
				synctest.Wait()
				w.expect("changes", []string(nil), w.kernel.TakeCalls())
				if w.asked() < 30 {
					t.Errorf("asked %d times", w.asked())
				}
			})
		})
	}
}

// Where a carrier comes back the node asks at once.
func TestCarrierReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := defended(t)
		time.Sleep(300 * time.Millisecond)
		w.kernel.SetLinkUp("eth0", false)
		w.settle()
		w.neighbours.set("192.0.2.1", stranger)
		w.kernel.SetLinkUp("eth0", true) // the worker may be busy
		synctest.Wait()
		w.expect("asked", 1, w.asked())
		w.neighbours.unset("192.0.2.1") // the switch does not forward yet
		time.Sleep(time.Second)
		if asked := w.asked(); asked < 15 || asked > 25 {
			t.Errorf("asked %d times in the first second", asked)
		}
		w.neighbours.set("192.0.2.1", stranger)
		time.Sleep(eagerInterval + plan.Hesitation)
		synctest.Wait()
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// A node repeats its claim against a previous holder that is away, but whose kernel answers.
func TestRepeatAgainstPreviousHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
		go func() { _ = w.defender.Start(t.Context()) }()
		go func() { _ = w.announcer.Start(t.Context()) }()
		beat := func() { w.freshness.noteRenewed(time.Now()) }
		beat()
		w.neighbours.set("192.0.2.1", oldHolder)
		w.settle()
		for range 14 {
			time.Sleep(time.Second)
			beat()
		}
		w.expect("announced in 14 s", 3+2, len(w.neighbours.heard()))
		w.neighbours.unset("192.0.2.1")
		for range 20 {
			time.Sleep(time.Second)
			beat()
		}
		w.expect("announced after it is gone", 3+2, len(w.neighbours.heard()))
	})
}

// returned is a world whose node took the address over while its previous holder
// was away, heard of that one again while it was fresh, and was then cut off itself
// for a time.
func returned(t *testing.T, cutOff time.Duration) *world {
	t.Helper()
	w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
	go func() { _ = w.defender.Start(t.Context()) }()
	go func() { _ = w.announcer.Start(t.Context()) }()
	w.freshness.noteRenewed(time.Now())
	w.settle()
	w.neighbours.say(neigh.Message{Kind: neigh.ARPReply, Addr: netip.MustParseAddr("192.0.2.1"), MAC: oldHolder})
	time.Sleep(cutOff)
	w.kernel.TakeCalls()
	return w
}

// The previous holder has the address again, and this node is the one that was
// cut off: it gives way, and does not first tell the link that it has the address.
func TestPreviousHolderHasItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := returned(t, 10*time.Second+time.Millisecond)
		before := len(w.neighbours.heard())
		w.neighbours.set("192.0.2.1", oldHolder)
		time.Sleep(plan.AskInterval + plan.Hesitation)
		synctest.Wait()
		w.expect("changes", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
		w.expect("announcements", before, len(w.neighbours.heard()))
	})
	synctest.Test(t, func(t *testing.T) {
		w := returned(t, 10*time.Second+time.Millisecond)
		w.neighbours.set("192.0.2.1", oldHolder)
		w.neighbours.claim("192.0.2.1", oldHolder)
		synctest.Wait()
		w.expect("changes at a claim", []string{"Remove 192.0.2.1/32 eth0"}, w.kernel.TakeCalls())
	})
}

// The previous holder's kernel has gone on answering all the time: it is none to
// give way to, nor to be silent about.
func TestPreviousHolderGoesOnAnswering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := returned(t, 0)
		w.neighbours.set("192.0.2.1", oldHolder)
		before := len(w.neighbours.heard())
		time.Sleep(time.Minute)
		w.expect("changes", []string(nil), w.kernel.TakeCalls())
		if after := len(w.neighbours.heard()); after < before+59 { // the sixtieth may be due at the very end
			t.Errorf("%d announcements before and %d after a minute", before, after)
		}
	})
}

// The gateway may answer for every address, as a proxy: that is nobody.
func TestProxyingGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		w.kernel.AddGatewayMAC("eth0", stranger.String())
		w.neighbours.set("192.0.2.1", stranger)
		w.settle()
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
	})
}

// The previous holder may be the gateway of the other nodes: it still has the address.
func TestFaultHolderIsGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wanted := local("192.0.2.1")
		wanted.PreviousMACs = []string{oldHolder.String()}
		w := newWorld(t, settings(), announcementOf("node1", wanted))
		w.kernel.AddGatewayMAC("eth0", oldHolder.String())
		w.neighbours.set("192.0.2.1", oldHolder)
		w.settle()
		w.expect("state", "192.0.2.1 Waiting PreviousHolder"+oldHolder.String(), w.states("node1"))
		w.neighbours.unset("192.0.2.1")
		time.Sleep(2 * time.Second) // it probes each second
		w.settle()
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
	})
}
