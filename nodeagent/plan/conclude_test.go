package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

// conclude decides by the inputs, and concludes with the outcomes.
func conclude(in Inputs, outcomes Outcomes) (Memory, Conclusion) {
	memory, decision := Decide(Memory{}, in)
	return Conclude(memory, in, decision, outcomes)
}

func TestHeldAndAnnounced(t *testing.T) {
	t.Parallel()
	in := inputsFor(
		local("192.0.2.1", 24, takeover, func(a *purelbv1.AnnouncedAddress) { a.PreviousMACs = []string{previous} }),
		local("192.0.2.2", 24, leaving),
		local("192.0.2.3", 24, takeover), local("192.0.2.4", 24), virtual("198.51.100.1", 32), virtual("198.51.100.2", 32),
	)
	in.Observed.Addresses = []Address{ownAddress, on("eth0", "192.0.2.2/32")}
	refused := errors.New("refused")
	failed := func(address string) (netip.Addr, Result) {
		return netip.MustParseAddr(address), FailedResult(&Desired{Epoch: 3}, ReasonAddFailed, refused)
	}
	outcomes := Outcomes{Results: map[netip.Addr]Result{}}
	for _, address := range []string{"192.0.2.3", "198.51.100.2"} {
		addr, result := failed(address)
		outcomes.Results[addr] = result
	}
	_, conclusion := conclude(in, outcomes)
	var held, announced []string
	for _, h := range conclusion.Held {
		held = append(
			held,
			fmt.Sprintf(
				"%s %s epoch %d undefended %v previous %v", h.Interface, h.Prefix, h.Epoch, h.IsUndefended, h.PreviousMACs,
			),
		)
	}
	for _, a := range conclusion.Announced {
		announced = append(announced, fmt.Sprint(a.Addr, a.Services))
	}
	wantHeld := []string{
		"eth0 192.0.2.1/32 epoch 3 undefended false previous [02:00:00:00:00:01]",
		"eth0 192.0.2.2/32 epoch 3 undefended true previous []",
	}
	if diff := cmp.Diff(wantHeld, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(
		[]string{"192.0.2.1 [test/kuard]", "192.0.2.2 [test/kuard]", "198.51.100.1 [test/far]"}, announced,
	); diff != "" {
		t.Errorf("announced (-want +got):\n%s", diff)
	}
	var states []string
	for _, s := range conclusion.Statuses[0].Addresses {
		states = append(states, fmt.Sprintf("%s %s %s", s.Address, s.State, s.Reason))
	}
	want := []string{
		"192.0.2.1 Announced ", "192.0.2.2 Announced ", "192.0.2.3 Failed AddFailed", "192.0.2.4 Pending Probing",
		"198.51.100.1 Announced ", "198.51.100.2 Failed AddFailed",
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	counts := map[purelbv1.AddressState]int{purelbv1.StateAnnounced: 3, purelbv1.StateFailed: 2, purelbv1.StatePending: 1}
	if diff := cmp.Diff(counts, conclusion.StateCounts); diff != "" {
		t.Errorf("how many are in each state (-want +got):\n%s", diff)
	}
}

// The status says which station claims an announced address, too. The agent decides again when the
// first claim is over.
func TestRivalsAreReported(t *testing.T) {
	t.Parallel()
	in := inputsFor(virtual("198.51.100.1", 32), virtual("198.51.100.2", 32), local("192.0.2.1", 24, leaving))
	rivals := map[netip.Addr]Rival{
		netip.MustParseAddr("198.51.100.1"): {MAC: stranger, Left: 20 * time.Second},
		netip.MustParseAddr("198.51.100.2"): {MAC: otherStranger, Left: 10 * time.Second},
		heldAddr:                            {MAC: stranger, Left: time.Second}, // not announced
	}
	for i := range 20 { // not desired
		rivals[nth(i)] = Rival{MAC: stranger, Left: time.Second}
	}
	for range 5 { // in whatever order
		_, conclusion := conclude(in, Outcomes{Rivals: rivals})
		if conclusion.DecideIn != 10*time.Second {
			t.Errorf("decides again in %s, want 10 s", conclusion.DecideIn)
		}
		var got []string
		for _, s := range conclusion.Statuses[0].Addresses {
			got = append(got, fmt.Sprintf("%s %s %s %s %s %s", s.Address, s.State, s.Interface, s.MAC, s.Reason, s.Message))
		}
		want := []string{
			"192.0.2.1 Pending   HandingOver is being handed over to another node",
			"198.51.100.1 Announced kube-lb0 " + stranger + " Contested " + stranger +
				" on kube-lb0 claims the address, too; find out which device that is",
			"198.51.100.2 Announced kube-lb0 " + otherStranger + " Contested " + otherStranger +
				" on kube-lb0 claims the address, too; find out which device that is",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	if _, conclusion := conclude(in, Outcomes{}); conclusion.DecideIn != 0 {
		t.Errorf("without any: decides again in %s", conclusion.DecideIn)
	}
}

func TestReadySaysWhatIsWrongBesides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcomes Outcomes
		want     string
	}{
		"nothing":      {Outcomes{}, ""},
		"a dummy":      {Outcomes{VirtualKind: "dummy"}, ""},
		"another kind": {Outcomes{VirtualKind: "ifb"}, "; kube-lb0 is of kind ifb"},
		"no virtual interface": {
			Outcomes{VirtualKind: "ifb", VirtualErr: errors.New("no kube-lb0")}, "; no kube-lb0",
		},
		"notes": {Outcomes{Notes: []string{"", "one", "", "two"}}, "; one; two"},
		"another kind of interface and note": {
			Outcomes{VirtualKind: "bridge", Notes: []string{"one"}}, "; kube-lb0 is of kind bridge; one",
		},
	} {
		_, conclusion := conclude(inputsFor(virtual("198.51.100.1", 32)), c.outcomes)
		if got := conclusion.Statuses[0].Conditions[0].Message; got != "1 of 1 addresses announced"+c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// An address that the agent could not withdraw stays in the status that lists it. An address that
// no status lists is in the first.
func TestStrandedAddressesAreReportedOnce(t *testing.T) {
	t.Parallel()
	in := inputsFor()
	second := *in.Announcements[0].DeepCopy()
	second.Name, second.UID = "node1-b", "node1-b"
	second.Status.Addresses = []purelbv1.AddressStatus{{Address: "192.0.2.8", State: purelbv1.StateAnnounced}}
	in.Announcements = append(in.Announcements, second)
	stranded := map[netip.Addr]Result{}
	for _, address := range []string{"192.0.2.8", "192.0.2.9"} {
		stranded[netip.MustParseAddr(address)] = StillAnnouncedResult(
			&Desired{Interface: "eth0"}, ReasonWithdrawFailed, errors.New("busy"),
		)
	}
	_, conclusion := conclude(in, Outcomes{NotWithdrawn: stranded})
	var got []string
	for i, status := range conclusion.Statuses {
		for _, s := range status.Addresses {
			got = append(got, fmt.Sprintf("%d: %s %s", i, s.Address, s.Reason))
		}
	}
	if diff := cmp.Diff([]string{"0: 192.0.2.9 WithdrawFailed", "1: 192.0.2.8 WithdrawFailed"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The facts are in the status of the first Announcement. The other statuses keep the facts that
// they have until the API server has the first one.
func TestFactsAreInTheFirstStatus(t *testing.T) {
	t.Parallel()
	for _, isFirstReported := range []bool{true, false} {
		in := inputsFor()
		in.IsFirstAnnouncementReported = isFirstReported
		in.Now = begin.Add(1500 * time.Millisecond)
		in.LBNodeAgent = &purelbv1.LBNodeAgent{
			Spec: purelbv1.LBNodeAgentSpec{Local: &purelbv1.LBNodeAgentLocal{LocalInterface: "eth0"}},
		}
		in.Observed.Addresses = []Address{ownAddress}
		second := *in.Announcements[0].DeepCopy()
		second.Name, second.UID, second.Status.MACs = "node1-b", "node1-b", []string{previous}
		in.Announcements = append(in.Announcements, second)
		_, conclusion := conclude(in, Outcomes{})
		first := conclusion.Statuses[0]
		if diff := cmp.Diff([]string{"02:00:00:00:00:11"}, first.MACs); diff != "" || len(first.Interfaces) != 1 ||
			first.Interfaces[0].Name != "eth0" {
			t.Errorf("interfaces %v, MACs (-want +got):\n%s", first.Interfaces, diff)
		}
		if keeps := len(conclusion.Statuses[1].MACs) == 1; keeps == isFirstReported {
			t.Errorf("the first status is written: %v, and the second keeps its facts: %v", isFirstReported, keeps)
		}
		if at := first.Conditions[0].LastTransitionTime.Time; !at.Equal(begin.Add(time.Second)) {
			t.Errorf("reported at %s, want whole seconds", at)
		}
	}
}

// The agent asks the proxy again after 50 ms, and remembers since when only while it waits.
func TestWaitingForTheProxyGoesOn(t *testing.T) {
	t.Parallel()
	entry := virtual("198.51.100.1", 32)
	entry.HealthCheckNodePort = 30000
	in := inputsFor(entry)
	addr := netip.MustParseAddr("198.51.100.1")
	for _, waits := range []bool{true, false} {
		outcomes := Outcomes{}
		wantIn := time.Duration(0)
		if waits {
			outcomes.Results, wantIn = map[netip.Addr]Result{addr: WaitingForProxyResult(&Desired{HealthPort: 30000})},
				50*time.Millisecond
		}
		memory, conclusion := conclude(in, outcomes)
		if _, isRemembered := memory.ProxyWaitSince[addr]; isRemembered != waits || conclusion.DecideIn != wantIn {
			t.Errorf("waits %v: remembered %v, decides again in %s", waits, isRemembered, conclusion.DecideIn)
		}
		if _, isOverridden := outcomes.Results[addr]; isOverridden != waits {
			t.Error("the outcomes have changed")
		}
	}
}

// Once an address is added, the next claim asks anew; what could not be added is tried again
// without asking.
func TestSilenceCountsForOneClaim(t *testing.T) {
	t.Parallel()
	target := ProbeTarget{"eth0", heldAddr}
	for _, isRefused := range []bool{true, false} {
		in := inputsFor(local("192.0.2.1", 24))
		in.ProbeAnswers = []ProbeAnswer{{target, ProbeState{AnsweredAt: begin}}}
		in.Observed.Addresses = []Address{ownAddress, on("eth0", "192.0.2.9/32")} // to be withdrawn
		outcomes := Outcomes{}
		if isRefused {
			outcomes.Results = map[netip.Addr]Result{heldAddr: FailedResult(&Desired{}, ReasonAddFailed, errors.New("refused"))}
		}
		memory, _ := conclude(in, outcomes)
		if _, isRemembered := memory.ProbeStates[target]; isRemembered != isRefused {
			t.Errorf("refused %v, and the silence is remembered: %v", isRefused, isRemembered)
		}
	}
}
