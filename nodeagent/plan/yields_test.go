package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func TestSender(t *testing.T) {
	t.Parallel()
	address := func(iface, prefix string, edit ...func(*Address)) Address {
		a := Address{Interface: iface, Prefix: netip.MustParsePrefix(prefix)}
		for _, e := range edit {
			e(&a)
		}
		return a
	}
	ours := func(a *Address) { a.IsOurs = true }
	addresses := []Address{
		address("eth0", "192.0.2.1/32", ours), address("eth0", "203.0.113.9/24"), address("eth0", "192.0.2.11/24"),
		address("eth1", "198.51.100.11/24"),
		address("eth0", "2001:db8::7/64", func(a *Address) { a.IsTemporary = true }), address("eth0", "fe80::1/64"),
		address("eth0", "2001:db8::11/64"),
		address("eth2", "192.0.2.1/32", ours),
	}
	for _, c := range []struct{ iface, target, want string }{
		{"eth0", "192.0.2.2", "192.0.2.11"},
		{"eth0", "198.51.100.2", "203.0.113.9"}, // another subnet's is better than none
		{"eth1", "192.0.2.2", "198.51.100.11"},
		{"eth2", "192.0.2.2", ""}, // what the agent put there moves
		{"eth3", "192.0.2.2", ""},
		{"eth1", "2001:db8::1", ""},
		{"eth0", "2001:db8::1", "2001:db8::11"},
		{"eth0", "2001:db8:1::1", "fe80::1"},
		{"eth0", "192.0.2.11", "203.0.113.9"}, // never the one that is asked for
	} {
		got := Sender(addresses, c.iface, netip.MustParseAddr(c.target))
		if want, _ := netip.ParseAddr(c.want); got != want {
			t.Errorf("on %s for %s: %s, want %s", c.iface, c.target, got, want)
		}
	}
}

// A node that was alone on the link claims the address again later than others.
func TestYieldedAloneIsSilentLater(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		isAlone bool
		after   time.Duration
		want    bool
	}{
		{false, 199 * time.Millisecond, false}, {false, 5 * time.Second, true},
		{true, 5 * time.Second, false}, {true, 30*time.Second - 1, false}, {true, 30 * time.Second, true},
	} {
		y := YieldedAddress{YieldedAlone: row.isAlone, Unanswered: silentQuestions, AnsweredAt: begin}
		if got := y.IsSilent(begin.Add(row.after)); got != row.want {
			t.Errorf("alone %t, after %s: silent %t", row.isAlone, row.after, got)
		}
	}
}

func TestYieldedIsAskedForInSilence(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	addr := netip.MustParseAddr("192.0.2.1")
	d := Desired{
		Addr: addr, Prefix: netip.MustParsePrefix("192.0.2.1/32"), Interface: "eth0",
		IsLocal: true, IsTakeover: true, Epoch: 3,
	}
	observed := Observed{Interfaces: []NetworkInterface{{Name: "eth0", IsUp: true}}, Addresses: []Address{ownAddress}}
	for name, c := range map[string]struct {
		yielded YieldedAddress
		adds    int
		probe   bool
		state   purelbv1.AddressState
	}{
		"it answers": {YieldedAddress{Epoch: 3, AnsweredAt: now}, 0, false, purelbv1.StateYielded},
		"it was not asked yet": {
			YieldedAddress{Epoch: 3, AnsweredAt: now.Add(-time.Hour)}, 0, false, purelbv1.StateYielded,
		},
		"it was asked twice just now": {
			YieldedAddress{Epoch: 3, AnsweredAt: now.Add(-50 * time.Millisecond), Unanswered: 2}, 0, false,
			purelbv1.StateYielded,
		},
		"it is silent": {
			YieldedAddress{Epoch: 3, AnsweredAt: now.Add(-200 * time.Millisecond), Unanswered: 2}, 1, true,
			purelbv1.StateYielded,
		},
		"it was under an epoch before":  {YieldedAddress{Epoch: 2, AnsweredAt: now}, 1, false, purelbv1.StateAnnounced},
		"it was under an epoch to come": {YieldedAddress{Epoch: 4, AnsweredAt: now}, 0, false, purelbv1.StateYielded},
		"it has answered since the last": {
			YieldedAddress{Epoch: 3, AnsweredAt: now.Add(-time.Hour), Unanswered: 9, IsSilenceReported: true}.answeredBy(
				"02:00:00:00:00:02", now,
			),
			0, false, purelbv1.StateYielded,
		},
	} {
		p := Diff(SettingsOf(&purelbv1.LBNodeAgent{}), []Desired{d}, observed, true)
		p.respectYields(map[netip.Addr]YieldedAddress{addr: c.yielded}, []Desired{d}, observed, now)
		adds, probe := 0, false
		for _, op := range p.Operations {
			adds++
			probe = op.Probe
		}
		if adds != c.adds || probe != c.probe || p.Results[addr].State != c.state {
			t.Errorf(
				"%s: %d operations, probe %v, %s; want %d, %v, %s", name, adds, probe, p.Results[addr].State, c.adds, c.probe,
				c.state,
			)
		}
	}
}

// Where the kernel still has a yielded address, because the agent could not remove it, the agent
// removes it from its interface, with whatever mask, and leaves other addresses alone.
func TestYieldedGoesFromTheKernel(t *testing.T) {
	t.Parallel()
	withRoute := func(a *Address) { a.NoPrefixRoute = false }
	for name, c := range map[string]struct {
		kernel []Address
		want   []string
	}{
		"nothing there":    {nil, nil},
		"in place":         {[]Address{on("eth0", "192.0.2.1/32")}, []string{"Remove eth0 192.0.2.1/32"}},
		"to be renewed":    {[]Address{on("eth0", "192.0.2.1/32", left(time.Second))}, []string{"Remove eth0 192.0.2.1/32"}},
		"with other flags": {[]Address{on("eth0", "192.0.2.1/32", withRoute)}, []string{"Remove eth0 192.0.2.1/32"}},
		"another mask":     {[]Address{on("eth0", "192.0.2.1/24")}, []string{"Remove eth0 192.0.2.1/24"}},
		"elsewhere, too": {
			[]Address{on("eth1", "192.0.2.1/32"), on("eth0", "192.0.2.1/32")}, []string{
				"Remove eth0 192.0.2.1/32", "Remove eth1 192.0.2.1/32",
			},
		},
		"beside others": {
			[]Address{
				on("eth0", "192.0.2.1/32"), on("eth0", "192.0.2.1/24", notOurs), on("eth0", "192.0.2.2/32"),
				on("eth0", "192.0.2.3/32", left(time.Second)),
			},
			[]string{"Remove eth0 192.0.2.1/32", "Renew eth0 192.0.2.3/32"},
		},
	} {
		in := inputsFor(local("192.0.2.1", 24), local("192.0.2.2", 24), local("192.0.2.3", 24, leaving))
		in.Observed.Addresses = append([]Address{ownAddress}, c.kernel...)
		in.Yields = map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 3, MAC: stranger, AnsweredAt: begin}}
		_, decision := Decide(Memory{}, in)
		if diff := cmp.Diff(c.want, operationsOf(decision)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if r := decision.results[heldAddr]; r.State != purelbv1.StateYielded || r.MAC != stranger || r.Reason != "Yielded" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A station answers a probe for a yielded address: the address stays yielded, to that station, and
// the next claim asks anew.
func TestYieldedIsAnsweredFor(t *testing.T) {
	t.Parallel()
	in := inputsFor(local("192.0.2.1", 24))
	in.Now = begin.Add(time.Second)
	in.Yields = map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 3, MAC: stranger, AnsweredAt: begin, Unanswered: 2}}
	target := ProbeTarget{"eth0", heldAddr}
	for _, isAskingAgain := range []bool{false, true} {
		answer := ProbeState{MAC: otherStranger, AnsweredAt: in.Now, IsAsking: isAskingAgain}
		in.ProbeAnswers = []ProbeAnswer{{target, answer}}
		memory, decision := Decide(Memory{}, in)
		want := map[netip.Addr]ProbeState{heldAddr: answer}
		if diff := cmp.Diff(want, decision.AnsweredYields, compareDecisions); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if r := decision.results[heldAddr]; r.State != purelbv1.StateYielded || r.MAC != otherStranger ||
			len(decision.Operations) > 0 || decision.DecideIn != time.Second {
			t.Errorf("%+v, %v, decides again in %s", r, operationsOf(decision), decision.DecideIn)
		}
		if _, isRemembered := memory.ProbeStates[target]; isRemembered != isAskingAgain {
			t.Errorf("is being asked %v, and the answer is remembered: %v", isAskingAgain, isRemembered)
		}
	}
	// The link is silent: the agent claims the address again.
	in.ProbeAnswers = []ProbeAnswer{{target, ProbeState{AnsweredAt: in.Now}}}
	_, decision := Decide(Memory{}, in)
	if diff := cmp.Diff([]string{"Add eth0 192.0.2.1/32"}, operationsOf(decision)); diff != "" ||
		!decision.Operations[0].Reclaim || !decision.Operations[0].Announce {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	// Under a higher epoch the answer is that of a stranger.
	in.ProbeAnswers = []ProbeAnswer{{target, ProbeState{MAC: otherStranger, AnsweredAt: in.Now}}}
	in.Announcements[0].Spec.Addresses[0].Epoch = 4
	if _, decision = Decide(Memory{}, in); decision.results[heldAddr].State != purelbv1.StateConflict ||
		decision.AnsweredYields != nil {
		t.Errorf("%+v, %v", decision.results[heldAddr], decision.AnsweredYields)
	}
}
