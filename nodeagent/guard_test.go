package nodeagent

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// guarded is a world with one Local address, announced, and a guard that listens.
func guarded(t *testing.T, edit ...func(*purelbv1.AnnouncedAddress)) *world {
	t.Helper()
	w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", edit...)))
	go func() { _ = w.guard.Start(t.Context()) }()
	go func() { _ = w.announcer.Start(t.Context()) }()
	// The address is there already: nothing is to be told the link of it.
	w.kernel.Put(plan.Address{
		Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), Ours: true, NoPrefixRoute: true,
		Valid: 300 * time.Second, Preferred: 300 * time.Second,
	})
	w.settle()
	w.kernel.Calls()
	return w
}

// settle lets the agent work, and the guard see to what it is told.
func (w *world) settle() {
	w.t.Helper()
	if _, err := w.reconcile(); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) asked() int {
	w.neighbours.mu.Lock()
	defer w.neighbours.mu.Unlock()
	return len(w.neighbours.asked)
}

func TestYieldWhenNotFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t)
		w.neighbours.set("192.0.2.1", stranger)
		start := time.Now()
		w.neighbours.claim("192.0.2.1", stranger)
		w.expect("changes, at once", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
		w.expect("time", time.Duration(0), time.Since(start))
		w.settle()
		w.expect("state", "192.0.2.1 Yielded Yielded"+stranger.String(), w.states("node1"))

		// For as long as somebody answers, and some seconds longer.
		for range 10 {
			time.Sleep(time.Second)
			w.settle()
		}
		w.expect("changes while it answers", []string(nil), w.kernel.Calls())
		w.neighbours.unset("192.0.2.1")
		silent := time.Now()
		for len(w.kernel.Calls()) == 0 && time.Since(silent) < time.Minute {
			time.Sleep(100 * time.Millisecond)
			w.settle()
		}
		if took := time.Since(silent); took < yieldFor-askInterval || took > yieldFor+yieldSpread+2*time.Second {
			t.Errorf("claimed again after %s of silence", took)
		}
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
		time.Sleep(100 * time.Millisecond)
		if len(w.neighbours.heard()) == 0 {
			t.Error("a claim is not announced")
		}
	})
}

// What could not be given up at once is, as soon as it can be.
func TestYieldFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t)
		w.neighbours.set("192.0.2.1", stranger)
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), errors.New("refused"))
		w.neighbours.claim("192.0.2.1", stranger)
		if _, err := w.reconcile(); err == nil {
			t.Error("not tried again")
		}
		w.expect("state while it cannot", "192.0.2.1 Failed Lost", w.states("node1"))
		w.kernel.Refuse(netip.MustParseAddr("192.0.2.1"), nil)
		w.kernel.Calls()
		w.settle()
		w.expect("changes", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
		w.expect("state", "192.0.2.1 Yielded Yielded"+stranger.String(), w.states("node1"))
		w.settle()
		w.expect("changes once it is gone", []string(nil), w.kernel.Calls())
	})
}

func TestYieldBlocksUntilTheEpochGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t, takeover)
		w.neighbours.set("192.0.2.1", stranger)
		w.neighbours.claim("192.0.2.1", stranger)
		w.kernel.Calls()
		w.pulse.listed() // takeover would be allowed
		w.settle()
		w.expect("changes in the same epoch", []string(nil), w.kernel.Calls())
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].Epoch = 2 })
		w.settle()
		w.expect("changes in the next", []string{"Add 192.0.2.1/24 eth0"}, w.kernel.Calls())
	})
}

func TestDefendWhenFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t)
		w.pulse.setPeriod(nil)
		w.pulse.renewedAt(time.Now())
		for range 5 {
			w.neighbours.claim("192.0.2.1", stranger)
			time.Sleep(time.Second)
		}
		w.expect("defences", 1, len(w.neighbours.heard()))
		w.settle()
		w.expect("state", "192.0.2.1 Announced Contested"+stranger.String(), w.states("node1"))
		w.expect("changes", []string(nil), w.kernel.Calls())
		time.Sleep(6 * time.Second)
		w.pulse.renewedAt(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		synctest.Wait()
		w.expect("defences after 11 seconds", 2, len(w.neighbours.heard()))
		time.Sleep(contestFor)
		w.settle()
		w.expect("state when it is over", "192.0.2.1 Announced", w.states("node1"))
	})
}

func TestYieldWhenLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t, func(a *purelbv1.AnnouncedAddress) { a.Leaving = true })
		w.pulse.renewedAt(time.Now())
		w.neighbours.claim("192.0.2.1", stranger)
		w.expect("changes", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
		w.expect("defences", 0, len(w.neighbours.heard()))
	})
}

// TestBackToThePreviousHolder hands an address back soon after it was taken over:
// what is said against a previous holder that goes on is not said against the next
// one.
func TestBackToThePreviousHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
		w.pulse.renewedAt(time.Now())
		go func() { _ = w.guard.Start(t.Context()) }()
		go func() { _ = w.announcer.Start(t.Context()) }()
		w.settle()
		w.expect("changes", []string{"Add 192.0.2.1/24 eth0"}, w.kernel.Calls())
		time.Sleep(2 * time.Second)
		before := len(w.neighbours.heard())
		w.neighbours.claim("192.0.2.1", oldHolder)
		synctest.Wait()
		if len(w.neighbours.heard()) == before {
			t.Error("a previous holder that goes on is not told")
		}
		w.edit("node1", func(s *purelbv1.AnnouncementSpec) { s.Addresses[0].Leaving = true })
		w.pulse.renewedAt(time.Now())
		w.settle()
		asked, before := w.asked(), len(w.neighbours.heard())
		for range repeatInterval / time.Second {
			time.Sleep(time.Second)
			w.pulse.renewedAt(time.Now())
		}
		w.expect("questions", asked, w.asked())
		w.neighbours.claim("192.0.2.1", oldHolder)
		synctest.Wait()
		w.expect("changes when it is handed back", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
		w.expect("claims against the next holder", 0, len(w.neighbours.heard())-before)
	})
}

// An agent that is not fresh asks for its own addresses; to a mere answer it
// yields when it is repeated.
func TestSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := guarded(t)
		time.Sleep(5*time.Second + time.Millisecond)
		w.expect("asked in 5 s", 5, w.asked())
		w.expect("changes while nobody answers", []string(nil), w.kernel.Calls())
		w.neighbours.set("192.0.2.1", stranger)
		time.Sleep(askInterval)
		if asked := w.asked(); asked < 6 { // and perhaps again already
			t.Fatalf("asked %d times", asked)
		}
		time.Sleep(hesitation)
		synctest.Wait()
		w.expect("asked again", 7, w.asked())
		w.expect("changes", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())

		// One that is fresh does not ask.
		w = guarded(t)
		for range 5 {
			w.pulse.renewedAt(time.Now())
			time.Sleep(time.Second)
		}
		w.expect("asked while fresh", 0, w.asked())
	})
}

func TestNotSuspected(t *testing.T) {
	for name, prepare := range map[string]func(w *world){
		"the gateway": func(w *world) { w.kernel.Gateway("eth0", stranger.String()) },
		"one that answered while the agent was fresh": func(w *world) {
			w.pulse.renewedAt(time.Now())
			w.neighbours.say(neigh.Message{Kind: neigh.Reply, Addr: netip.MustParseAddr("192.0.2.1"), MAC: stranger})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := guarded(t)
				prepare(w)
				w.neighbours.set("192.0.2.1", stranger)
				time.Sleep(time.Minute)
				w.neighbours.claim("192.0.2.1", stranger)
				synctest.Wait()
				w.expect("changes", []string(nil), w.kernel.Calls())
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
		w := guarded(t)
		time.Sleep(300 * time.Millisecond)
		w.kernel.SetUp("eth0", false)
		w.settle()
		w.neighbours.set("192.0.2.1", stranger)
		w.kernel.SetUp("eth0", true)
		signal(w.guard.changed) // the worker may be busy
		synctest.Wait()
		w.expect("asked", 1, w.asked())
		w.neighbours.unset("192.0.2.1") // the switch does not forward yet
		time.Sleep(time.Second)
		if asked := w.asked(); asked < 15 || asked > 25 {
			t.Errorf("asked %d times in the first second", asked)
		}
		w.neighbours.set("192.0.2.1", stranger)
		time.Sleep(eagerInterval + hesitation)
		synctest.Wait()
		w.expect("changes", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
	})
}

// A previous holder that is away, but whose kernel answers, is out-shouted.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1", takeover)))
		go func() { _ = w.guard.Start(t.Context()) }()
		go func() { _ = w.announcer.Start(t.Context()) }()
		beat := func() { w.pulse.renewedAt(time.Now()) }
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
	go func() { _ = w.guard.Start(t.Context()) }()
	go func() { _ = w.announcer.Start(t.Context()) }()
	w.pulse.renewedAt(time.Now())
	w.settle()
	w.neighbours.say(neigh.Message{Kind: neigh.Reply, Addr: netip.MustParseAddr("192.0.2.1"), MAC: oldHolder})
	time.Sleep(cutOff)
	w.kernel.Calls()
	return w
}

// The previous holder has the address again, and this node is the one that was
// cut off: it gives way, and does not first tell the link that it has the address.
func TestPreviousHolderHasItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := returned(t, 10*time.Second+time.Millisecond)
		before := len(w.neighbours.heard())
		w.neighbours.set("192.0.2.1", oldHolder)
		time.Sleep(askInterval + hesitation)
		synctest.Wait()
		w.expect("changes", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
		w.expect("announcements", before, len(w.neighbours.heard()))
	})
	synctest.Test(t, func(t *testing.T) {
		w := returned(t, 10*time.Second+time.Millisecond)
		w.neighbours.claim("192.0.2.1", oldHolder)
		w.expect("changes at a claim", []string{"Remove 192.0.2.1/24 eth0"}, w.kernel.Calls())
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
		w.expect("changes", []string(nil), w.kernel.Calls())
		if after := len(w.neighbours.heard()); after < before+60 {
			t.Errorf("%d announcements before and %d after a minute", before, after)
		}
	})
}

// The gateway may answer for every address, as a proxy: that is nobody.
func TestProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, settings(), announcementOf("node1", local("192.0.2.1")))
		w.kernel.Gateway("eth0", stranger.String())
		w.neighbours.set("192.0.2.1", stranger)
		w.settle()
		w.expect("state", "192.0.2.1 Announced", w.states("node1"))
	})
}
