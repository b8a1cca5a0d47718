package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func isProvisional(h *Held) { h.IsProvisional, h.PreviousMACs = true, []string{previous} }

// answersWhenAsked lets a station that is being checked be asked, and answer.
func answersWhenAsked(d *Defence, c *Check, isFresh bool, after time.Duration) Reaction {
	d.AdvanceCheck(c, begin.Add(after))
	return hear(d, answerOf(c.MAC), isFresh, after)
}

// The agent yields to a node that may claim the address under a higher epoch, whether it is fresh or
// not, if that node's kernel answers. A fresh one first has to hear its agent announce the address.
func TestHolderYieldsToHigherEpoch(t *testing.T) {
	t.Parallel()
	hasSuccessor := func(h *Held) { h.HigherEpochMACs = []string{higherMAC} }
	for _, isFresh := range []bool{fresh, notFresh} {
		for name, frame := range map[string]Frame{
			"claim": announcementOf(higherMAC), "request": requestOf(higherMAC), "answer": answerOf(higherMAC),
		} {
			d := holding(heldOn("eth0", heldAddr, hasSuccessor))
			d.NoteHeldAsked(heldAddr, begin)
			r := hear(d, frame, isFresh, 0)
			if isFresh && name != "claim" { // what its kernel says
				if r.Check != nil || r.YieldToMAC != "" || r.Announce != (name == "request") {
					t.Errorf("%s, fresh: %+v, want the address defended against what is no answer", name, r)
				}
				continue
			}
			if r.Check == nil || r.Check.MAC != higherMAC || r.CheckWithin != 0 || r.Announce || r.YieldToMAC != "" {
				t.Fatalf("%s, fresh %v: %+v, want a check at once", name, isFresh, r)
			}
			if r = answersWhenAsked(d, r.Check, isFresh, 0); r.YieldToMAC != higherMAC {
				t.Errorf("%s, fresh %v: %+v, want a yield", name, isFresh, r)
			}
		}
		d := holding(heldOn("eth0", heldAddr, hasSuccessor))
		check := hear(d, announcementOf(higherMAC), isFresh, 0).Check
		var step CheckStep
		for range checkTries + 1 {
			step = d.AdvanceCheck(check, begin)
		}
		if _, isHeld := d.Held[heldAddr]; !isHeld || step.Reaction.NewRivalMAC != higherMAC {
			t.Errorf("fresh %v: it does not answer: held %v, %+v", isFresh, isHeld, step)
		}
	}
}

// However often a silent node answers, each claim is repeated once in a while, and none is forgotten.
func TestClaimsAreRepeated(t *testing.T) {
	t.Parallel()
	byClaim := func(h *Held) { h.IsProvisional = true }
	var held []Held
	var addrs []netip.Addr
	for addr := heldAddr; len(addrs) < 3*repeatRate; addr = addr.Next() {
		held, addrs = append(held, heldOn("eth0", addr, byClaim)), append(addrs, addr)
	}
	entry, unknown := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	d := holding(append(held, heldOn("eth0", entry))...)
	repeats := map[netip.Addr]int{}
	const rounds, interval = 35, 100 * time.Millisecond // of which each makes the node answer anew
	lines := 0
	for i := range rounds {
		repeated, mayLog := d.RepeatClaims(append(addrs, entry, unknown), begin.Add(time.Duration(i)*interval))
		for _, h := range repeated {
			repeats[h.Prefix.Addr()]++
		}
		if mayLog {
			lines++
		}
		if most := repeatRate + 1; len(repeated) > most {
			t.Fatalf("round %d repeats %d claims, want %d at most", i, len(repeated), most)
		}
	}
	if len(repeats) != len(addrs) || lines == 0 {
		t.Errorf("%d claims are repeated, want all %d and no other address; %d lines", len(repeats), len(addrs), lines)
	}
	for addr, n := range repeats {
		if n > 4 {
			t.Fatalf("the claim of %s is repeated %d times in %s, want once a second", addr, n, rounds*interval)
		}
	}
	later := begin.Add(time.Hour)
	for range 2 * len(addrs) / repeatRate {
		_, _ = d.RepeatClaims(nil, later)
		later = later.Add(time.Hour)
	}
	if repeated, mayLog := d.RepeatClaims(nil, later); len(repeated) > 0 || mayLog {
		t.Errorf("%d claims are repeated although no node answers", len(repeated))
	}
}

// A claim is repeated once more a second later: a frame can be lost.
func TestClaimIsRepeatedTwice(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr, isProvisional))
	addrs := []netip.Addr{heldAddr}
	var at []time.Duration
	for after := time.Duration(0); after < 10*time.Second; after += 100 * time.Millisecond {
		if repeated, _ := d.RepeatClaims(addrs, begin.Add(after)); len(repeated) > 0 {
			at = append(at, after)
		}
		addrs = nil
	}
	if want := []time.Duration{0, repeatGap}; !slices.Equal(at, want) {
		t.Errorf("repeated after %v, want after %v", at, want)
	}
}

// A claim is provisional: it is repeated against the node from which the address was claimed and
// against the other successor if that one's epoch is lower. It is yielded to all others that claim
// the address and have it.
func TestProvisionalClaim(t *testing.T) {
	t.Parallel()
	rivals := func(h *Held) { h.HigherEpochMACs, h.LowerEpochMACs = []string{higherMAC}, []string{lowerMAC} }
	const late = 2 * repeatFor
	for _, isFresh := range []bool{fresh, notFresh} {
		for name, c := range map[string]struct {
			frame Frame
			want  string
		}{
			"the silent node answers again": {answerOf(previous), "claims"},
			"the silent node uses it":       {requestOf(previous), "claims"},
			"the silent node announces it":  {announcementOf(previous), "checks"},
			"a lower epoch is announced":    {announcementOf(lowerMAC), "claims"},
			"a lower epoch is answered for": {answerOf(lowerMAC), "claims"},
			"a higher epoch is announced":   {announcementOf(higherMAC), "checks"},
			"a higher epoch is answered":    {answerOf(higherMAC), "checks"},
			"a stranger announces it":       {announcementOf(stranger), "checks"},
			"a stranger uses it":            {requestOf(stranger), "checks"},
		} {
			d := holding(heldOn("eth0", heldAddr, isProvisional, rivals))
			d.NoteHeldAsked(heldAddr, begin.Add(late))
			r, got := hear(d, c.frame, isFresh, late), "nothing"
			switch {
			case r.Announce && r.Check == nil && r.NewRivalMAC == "":
				got = "claims"
			case r.Check != nil && !r.Announce && r.NewRivalMAC == "":
				got = "checks"
			}
			if got != c.want {
				t.Errorf("fresh %v, %s: %s (%+v), want %s", isFresh, name, got, r, c.want)
			}
			if r.Check == nil {
				continue
			}
			if r = answersWhenAsked(d, r.Check, isFresh, late); r.YieldToMAC != c.frame.MAC {
				t.Errorf("fresh %v, %s: %+v, want a yield", isFresh, name, r)
			}
		}
	}
}

// A claimer that the manager asks about, and that does not answer, gets the address if nobody answers the
// node: then the node is cut off. It leaves the address to the claimer until the manager has decided.
// This test shows the row "it is cut off its link while its agent reaches the API server by another interface" of
// docs/trust.md.
func TestChallengeOfNodeThatIsAlone(t *testing.T) {
	t.Parallel()
	nodes := []netip.Addr{nth(11), nth(12)}
	for isAlone, want := range map[bool]string{true: higherMAC, false: ""} {
		d := holding(heldOn("eth0", heldAddr, func(h *Held) {
			h.Contest = Contest{Epoch: 4, MAC: higherMAC, NodeAddrs: nodes}
		}))
		check := d.BeginContestChecks(begin)[0].Check
		var step CheckStep
		for range checkTries + 1 {
			step = d.AdvanceCheck(check, begin)
		}
		if !slices.Equal(step.AloneProbeAddrs, nodes) || step.Reaction.Report || step.Next != 0 {
			t.Fatalf("%+v, want the nodes to be asked", step)
		}
		if again := d.BeginContestChecks(begin); again != nil {
			t.Errorf("begun again meanwhile: %+v", again)
		}
		if r := d.EndContest(check, isAlone, begin); r.YieldToMAC != want || r.Report == isAlone || r.Held.Epoch != 3 {
			t.Errorf("alone %v: %+v", isAlone, r)
		}
		if checked := d.CheckedContestEpochs()[heldAddr]; isAlone != (checked == 0) {
			t.Errorf("alone %v: checked %d", isAlone, checked)
		}
		y, isYielded := d.Yields[heldAddr]
		if isYielded != isAlone {
			t.Errorf("alone %v: yielded %v", isAlone, isYielded)
		}
		y.Unanswered = silentQuestions
		for after, isSilent := range map[time.Duration]bool{aloneSilentFor - 1: false, aloneSilentFor: isAlone} {
			if isAlone && y.IsSilent(begin.Add(after)) != isSilent {
				t.Errorf("silent after %s: %v", after, !isSilent)
			}
		}
		answered := y.answeredBy(higherMAC, begin)
		answered.Unanswered = silentQuestions
		if isAlone && !answered.IsSilent(begin.Add(silentFor)) {
			t.Error("the silence of a station that has answered counts no sooner")
		}
		if r := d.EndContest(check, true, begin); r.YieldToMAC != "" && isAlone {
			t.Errorf("ended twice: %+v", r)
		}
	}
}

// A Contest of one address holds up no other.
func TestEachContestIsChecked(t *testing.T) {
	t.Parallel()
	contested := func(addr netip.Addr) Held {
		return heldOn("eth0", addr, func(h *Held) { h.Contest = Contest{Epoch: 4, MAC: higherMAC} })
	}
	d := holding()
	for _, c := range []struct {
		held []Held
		want netip.Addr
	}{
		{[]Held{heldOn("eth0", nth(1)), contested(nth(2))}, nth(2)},
		{[]Held{heldOn("eth0", nth(1)), contested(nth(2)), contested(nth(3))}, nth(3)},
	} {
		d.SetHeld(c.held)
		if begun := d.BeginContestChecks(begin); len(begun) != 1 || begun[0].Check.Addr != c.want {
			t.Errorf("%+v, want %s alone", begun, c.want)
		}
	}
}

// The check of a frame asks nobody whether this node is alone, although another station contests the address.
func TestCheckOfFrameIsNoContest(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr, func(h *Held) {
		h.Contest = Contest{Epoch: 4, MAC: higherMAC, NodeAddrs: []netip.Addr{nth(11)}}
		h.HigherEpochMACs = []string{stranger}
	}))
	check := hear(d, announcementOf(stranger), fresh, 0).Check
	if check == nil {
		t.Fatal("the claim of another node is not checked")
	}
	for range checkTries + 1 {
		if step := d.AdvanceCheck(check, begin); step.AloneProbeAddrs != nil {
			t.Errorf("%+v, want nobody to be asked", step)
		}
	}
}

// An address that went and came back since is another one: the Contest says nothing of it.
func TestContestEndsWithItsAddress(t *testing.T) {
	t.Parallel()
	held := []Held{heldOn("eth0", heldAddr, func(h *Held) { h.Contest = Contest{Epoch: 4, MAC: higherMAC} })}
	d := holding(held...)
	check := d.BeginContestChecks(begin)[0].Check
	d.SetHeld(nil)
	d.SetHeld(held)
	if r := d.EndContest(check, true, begin); r.YieldToMAC != "" || r.Report || len(d.Yields) > 0 {
		t.Errorf("%+v, %d yields", r, len(d.Yields))
	}
}

// What the manager asks the agent to check, the agent checks once for each claim.
func TestChallenges(t *testing.T) {
	t.Parallel()
	challenged := func(epoch int64) func(*Held) {
		return func(h *Held) {
			h.Contest, h.HigherEpochMACs = Contest{Epoch: epoch, MAC: higherMAC}, []string{higherMAC}
		}
	}
	d := holding(heldOn("eth0", heldAddr, challenged(4)), heldOn("eth0", nth(2)))
	begun := d.BeginContestChecks(begin)
	if len(begun) != 1 || begun[0].Check == nil || begun[0].Check.Addr != heldAddr || begun[0].Check.MAC != higherMAC {
		t.Fatalf("%+v", begun)
	}
	if again := d.BeginContestChecks(begin); again != nil {
		t.Errorf("begun twice: %+v", again)
	}
	if checked := d.CheckedContestEpochs(); len(checked) != 0 {
		t.Errorf("checked already: %v", checked)
	}
	var got []string
	for range checkTries + 1 {
		step := d.AdvanceCheck(begun[0].Check, begin)
		got = append(got, fmt.Sprint(step.Ask, step.Reaction.Report))
	}
	if want := "[true false true false true false false true]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	if checked := d.CheckedContestEpochs(); checked[heldAddr] != 4 || len(checked) != 1 {
		t.Errorf("checked: %v", checked)
	}
	if again := d.BeginContestChecks(begin); again != nil {
		t.Errorf("checked twice: %+v", again)
	}
	// The next claim comes while that node is being asked because of a frame, or would be if the rate
	// allowed it.
	check := hear(d, announcementOf(higherMAC), fresh, time.Second).Check
	d.SetHeld([]Held{heldOn("eth0", heldAddr, challenged(6))})
	begun = d.BeginContestChecks(begin.Add(time.Second))
	if len(begun) != 1 || check == nil {
		t.Fatalf("%+v", begun)
	}
	d.AdvanceCheck(begun[0].Check, begin.Add(time.Second))
	for range checkTries + 1 {
		if d.AdvanceCheck(check, begin.Add(time.Second)).Reaction.Report {
			t.Error("the check of the frame counts as that of the claim")
		}
	}
	if r := hear(d, answerOf(higherMAC), fresh, time.Second); r.YieldToMAC != higherMAC {
		t.Errorf("%+v, want a yield", r)
	}
}
