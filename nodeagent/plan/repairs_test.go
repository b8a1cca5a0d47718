package plan

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// fight is an agent with one address, and a program on its node that removes the address.
type fight struct {
	t       *testing.T
	in      Inputs
	addr    netip.Addr
	memory  Memory
	defence *Defence
	kernel  []Address // what it has of ours
	// addedAfter is when the address was added, since the begin, and asked how often the link was
	// asked for it.
	addedAfter []time.Duration
	asked      int
	// conclusion is the last one.
	conclusion Conclusion
}

func newFight(t *testing.T, entry purelbv1.AnnouncedAddress) *fight {
	return &fight{t: t, in: inputsFor(entry), addr: netip.MustParseAddr(entry.Address), defence: NewDefence()}
}

// decide decides and applies, at a time since the begin.
func (f *fight) decide(after time.Duration) {
	f.t.Helper()
	f.in.Now, f.in.Held, f.in.ProbeAnswers = begin.Add(after), f.defence.Held, nil
	f.in.Observed.Addresses = append([]Address{ownAddress}, f.kernel...)
	memory, decision := Decide(f.memory, f.in)
	for _, op := range decision.Operations {
		if op.Kind == Add && op.Address.Prefix.Addr() == f.addr {
			f.kernel, f.addedAfter = []Address{op.Address}, append(f.addedAfter, after)
		}
	}
	f.asked += len(decision.Questions)
	f.memory, f.conclusion = Conclude(memory, f.in, decision, Outcomes{})
	f.defence.SetHeld(f.conclusion.Held)
	f.in.Announcements[0].Status = f.conclusion.Statuses[0]
}

// status is the state of the address, and its reason, as they are reported.
func (f *fight) status() string {
	s := f.conclusion.Statuses[0].Addresses[0]
	return fmt.Sprintf("%s %s", s.State, s.Reason)
}

// A program removes an address whenever it sees it. The agent puts the address back at once a few
// times, then less and less often, and says so; it goes on to hold the address. This test shows the
// row "another program on it removes an address as often as it sees it" of docs/trust.md.
func TestFaultFightOverAddress(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, entry := range map[string]purelbv1.AnnouncedAddress{
		"Local": local("192.0.2.1", 24, takeover), "Virtual": virtual("198.51.100.1", 32),
	} {
		f := newFight(t, entry)
		for after := time.Duration(0); after < 20*time.Second; after += 25 * ms {
			f.decide(after)
			if entry.Type == purelbv1.AnnounceLocal && len(f.defence.Held) != 1 {
				t.Fatalf("%s: is not held after %s", name, after)
			}
			if after <= 100*ms && f.status() != "Announced " {
				t.Fatalf("%s: %s after %s", name, f.status(), after)
			}
			if len(f.kernel) == 0 && f.conclusion.DecideIn == 0 {
				t.Fatalf("%s: is away after %s, and nothing makes the agent decide again", name, after)
			}
			f.kernel = nil
		}
		want := []time.Duration{
			0, 25 * ms, 50 * ms, 75 * ms, 100 * ms, 125 * ms, 225 * ms, 425 * ms, 825 * ms, 1625 * ms, 3225 * ms, 6225 * ms,
			9225 * ms, 12225 * ms, 15225 * ms, 18225 * ms,
		}
		if diff := cmp.Diff(want, f.addedAfter); diff != "" {
			t.Errorf("%s: is added after (-want +got):\n%s", name, diff)
		}
		if f.status() != "Announced RepeatedlyRemoved" || f.asked > 0 {
			t.Errorf("%s: %s, and the link was asked %d times", name, f.status(), f.asked)
		}
		if ready := f.conclusion.Statuses[0].Conditions[0]; ready.Reason != purelbv1.ReasonDegraded {
			t.Errorf("%s: Ready is %s: %s", name, ready.Reason, ready.Message)
		}

		// The program ends: the address is back in 3 s at the most, and 30 s later all is as before.
		f.addedAfter = nil
		f.decide(21225 * ms)
		f.decide(51225*ms - 1)
		if len(f.addedAfter) != 1 || f.status() != "Announced RepeatedlyRemoved" || f.conclusion.DecideIn != 1 {
			t.Errorf(
				"%s: is added %d times, %s, decides again in %s", name, len(f.addedAfter), f.status(), f.conclusion.DecideIn,
			)
		}
		f.decide(51225 * ms)
		if f.status() != "Announced " || len(f.memory.Additions) > 0 {
			t.Errorf("%s: %s, remembers %v", name, f.status(), f.memory.Additions)
		}
		f.kernel = nil
		f.decide(51226 * ms)
		if len(f.kernel) != 1 {
			t.Errorf("%s: is not put back at once after that", name)
		}
	}
}

// A program that removes an address every few seconds takes no more from it than before: the agent
// puts the address back at once each time, and says so.
func TestFaultFightIsSlow(t *testing.T) {
	t.Parallel()
	f := newFight(t, local("192.0.2.1", 24, takeover))
	for i := range 20 {
		f.kernel = nil
		f.decide(time.Duration(i) * maxRepairBackoff)
		if len(f.kernel) != 1 {
			t.Fatalf("is not put back at once the %dth time", i)
		}
	}
	if f.status() != "Announced RepeatedlyRemoved" {
		t.Error(f.status())
	}
}

// What is not a repair is not paced.
func TestOnlyRepairsArePaced(t *testing.T) {
	t.Parallel()
	fought := Additions{Epoch: 3, Interface: "eth0", Count: 20, LastAt: begin.Add(-time.Millisecond)}
	onVirtual := Additions{Interface: "kube-lb0", Count: 20, LastAt: fought.LastAt}
	held := holding(heldOn("eth0", heldAddr)).Held
	for name, c := range map[string]struct {
		entry     purelbv1.AnnouncedAddress
		additions Additions
		edit      func(*Inputs)
		want      bool
	}{
		"a repair": {local("192.0.2.1", 24, takeover), fought, func(in *Inputs) { in.Held = held }, false},
		"a repair, at once": {
			local("192.0.2.1", 24, takeover), Additions{Epoch: 3, Interface: "eth0", Count: 20, LastAt: begin},
			func(in *Inputs) { in.Held = held }, false,
		},
		"a repair, not probed": {local("192.0.2.1", 24, skipProbe), fought, func(in *Inputs) { in.Held = held }, false},
		"a repair, for which the link is asked": {local("192.0.2.1", 24), fought, func(in *Inputs) {
			in.Held = held
			in.ProbeAnswers = []ProbeAnswer{{ProbeTarget{"eth0", heldAddr}, ProbeState{AnsweredAt: begin}}}
		}, true},
		"a claim": {local("192.0.2.1", 24, takeover), fought, func(*Inputs) {}, true},
		"under another epoch": {
			local("192.0.2.1", 24, takeover, func(a *purelbv1.AnnouncedAddress) { a.Epoch = 4 }), fought,
			func(in *Inputs) { in.Held = held }, true,
		},
		"on another interface": {
			local("192.0.2.1", 24, takeover), Additions{Epoch: 3, Interface: "eth1", Count: 20, LastAt: fought.LastAt},
			func(in *Inputs) { in.Held = held }, true,
		},
		"the clock was set back": {
			local("192.0.2.1", 24, takeover), Additions{Epoch: 3, Interface: "eth0", Count: 20, LastAt: begin.Add(1)},
			func(in *Inputs) { in.Held = held }, true,
		},
		"another mask": {local("192.0.2.1", 24, takeover), fought, func(in *Inputs) {
			in.Held = held
			in.Observed.Addresses = append(in.Observed.Addresses, on("eth0", "192.0.2.1/24"))
		}, true},
		"the link is silent": {local("192.0.2.1", 24), fought, func(in *Inputs) {
			in.ProbeAnswers = []ProbeAnswer{{ProbeTarget{"eth0", heldAddr}, ProbeState{AnsweredAt: begin}}}
		}, true},
		"was yielded": {local("192.0.2.1", 24, takeover), fought, func(in *Inputs) {
			in.Yields = map[netip.Addr]YieldedAddress{
				heldAddr: {Epoch: 3, MAC: stranger, AnsweredAt: begin.Add(-time.Second), Unanswered: 2},
			}
			in.ProbeAnswers = []ProbeAnswer{{ProbeTarget{"eth0", heldAddr}, ProbeState{AnsweredAt: begin}}}
		}, true},
		"a Virtual address": {virtual("198.51.100.1", 32), onVirtual, func(*Inputs) {}, false},
		"the virtual interface is missing": {
			virtual("198.51.100.1", 32), onVirtual,
			func(in *Inputs) { in.Observed.Interfaces = in.Observed.Interfaces[:1] }, true,
		},
	} {
		in := inputsFor(c.entry)
		c.edit(&in)
		_, decision := Decide(
			Memory{Additions: map[netip.Addr]Additions{netip.MustParseAddr(c.entry.Address): c.additions}}, in,
		)
		isAdded := false
		for _, op := range decision.Operations {
			isAdded = isAdded || op.Kind == Add
		}
		again := c.additions.LastAt.Add(maxRepairBackoff).Sub(begin)
		if isAdded != c.want || !isAdded && decision.DecideIn != again {
			t.Errorf("%s: is added %v, want %v; decides again in %s", name, isAdded, c.want, decision.DecideIn)
		}
	}
}

// An addition that did not come about is none, and what is desired no more is forgotten.
func TestAdditionsAreNoted(t *testing.T) {
	t.Parallel()
	in := inputsFor(local("192.0.2.1", 24, takeover), virtual("198.51.100.1", 32))
	refused := FailedResult(&Desired{Epoch: 3}, ReasonAddFailed, fmt.Errorf("refused"))
	memory, _ := conclude(in, Outcomes{Results: map[netip.Addr]Result{heldAddr: refused}})
	addr := netip.MustParseAddr("198.51.100.1")
	if diff := cmp.Diff(
		map[netip.Addr]Additions{addr: {Interface: "kube-lb0", Count: 1, LastAt: begin}}, memory.Additions, compareDecisions,
	); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	inPlace := inputsFor(local("192.0.2.1", 24, takeover))
	inPlace.Observed.Addresses = append(inPlace.Observed.Addresses, on("eth0", "192.0.2.1/24")) // by another mask
	if memory, _ := conclude(inPlace, Outcomes{}); len(memory.Additions) > 0 {
		t.Errorf("what replaces an address counts as its addition: %v", memory.Additions)
	}
	unknown := inputsFor()
	unknown.LBNodeAgent = nil
	if memory, _ = Decide(memory, unknown); len(memory.Additions) != 1 {
		t.Errorf("remembers %v while nothing is known", memory.Additions)
	}
	if memory, _ = Decide(memory, inputsFor(local("192.0.2.1", 24))); len(memory.Additions) > 0 {
		t.Errorf("remembers %v", memory.Additions)
	}
}
