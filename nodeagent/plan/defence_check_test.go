package plan

import (
	"fmt"
	"testing"
	"time"
)

// A station that claims an address, which an agent that is not fresh does not defend, is asked
// three times, and then reported.
func TestClaimantIsAskedThreeTimes(t *testing.T) {
	t.Parallel()
	for _, isClaimant := range []bool{true, false} {
		d := holding(heldOn("eth0", heldAddr))
		var r Reaction
		if isClaimant {
			r = hear(d, announcementOf(stranger), notFresh, 0)
		} else {
			r = hearAnswer(d, stranger, notFresh, 0)
		}
		if r.Check == nil || r.Check.Addr != heldAddr || r.Check.MAC != stranger || r.Check.IsClaimant != isClaimant {
			t.Fatalf("claimant %v: %+v", isClaimant, r)
		}
		var got []string
		for after, isOver := time.Duration(0), false; !isOver; {
			step := d.AdvanceCheck(r.Check, begin.Add(after))
			got = append(got, fmt.Sprintf("ask %v, next in %s, new rival %q", step.Ask, step.Next, step.Reaction.NewRivalMAC))
			after, isOver = after+step.Next, step.Next == 0
		}
		newRival := ""
		if isClaimant {
			newRival = stranger
		}
		want := []string{
			`ask true, next in 20ms, new rival ""`, `ask true, next in 20ms, new rival ""`,
			`ask true, next in 100ms, new rival ""`,
			fmt.Sprintf("ask false, next in 0s, new rival %q", newRival),
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("claimant %v: %q, want %q", isClaimant, got, want)
		}
		if hear(d, announcementOf(stranger), notFresh, 140*time.Millisecond).Check == nil {
			t.Errorf("claimant %v: a station whose check is over is not asked again", isClaimant)
		}
	}
}

func TestCheckEndsWithItsAddress(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	check := hear(d, announcementOf(stranger), notFresh, 0).Check
	d.SetHeld(nil)
	d.SetHeld([]Held{heldOn("eth0", heldAddr)})
	if step := d.AdvanceCheck(check, begin); step.Ask || step.Next != 0 {
		t.Errorf("%+v, want that the check is over", step)
	}
}

// A node that has just added the address, as another may have, waits before it asks that one.
func TestClaimAtTheSameTimeMakesTheAgentHesitate(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]time.Duration{
		0: 100 * time.Millisecond, time.Second - 1: 100 * time.Millisecond, time.Second: 0,
	} {
		d := holding(heldOn("eth0", heldAddr))
		d.NoteAdded(&Desired{Addr: heldAddr}, begin)
		if r := hear(d, announcementOf(stranger), notFresh, after); r.Check == nil || r.CheckWithin != want {
			t.Errorf("after %s: %+v, want a Check within %s", after, r, want)
		}
	}
	if r := hearAnswer(holding(heldOn("eth0", heldAddr)), stranger, notFresh, time.Hour); r.Check == nil ||
		r.CheckWithin != 100*time.Millisecond {
		t.Errorf("a suspect: %+v, want a Check within 100 ms", r)
	}
}

// The agent yields to the station that it has asked by itself, and which answers in time.
func TestYieldNeedsAnAnswerToAQuestion(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, c := range []struct {
		name       string
		asked      bool
		mac        string
		isGateway  bool
		isFresh    bool
		afterAsked time.Duration
		want       string
	}{
		{"not asked yet", false, stranger, false, notFresh, 0, ""},
		{"at once", true, stranger, false, notFresh, 0, stranger},
		{"in time", true, stranger, false, notFresh, 100 * ms, stranger},
		{"too late", true, stranger, false, notFresh, 100*ms + 1, ""},
		{"another station", true, otherStranger, false, notFresh, 0, ""},
		{"a gateway", true, stranger, true, notFresh, 0, ""},
		{"a fresh agent defends", true, stranger, false, fresh, 0, ""},
	} {
		d := holding(heldOn("eth0", heldAddr))
		check := hear(d, announcementOf(stranger), notFresh, 0).Check
		d.NoteHeldAsked(heldAddr, begin)
		if c.asked {
			d.AdvanceCheck(check, begin)
		}
		r := d.Hear("eth0", answerOf(c.mac), c.isFresh, c.isGateway, begin.Add(c.afterAsked))
		if r.YieldToMAC != c.want || r.MayLog != (c.want != "") {
			t.Errorf("%s: yields to %q, may log %v, want %q", c.name, r.YieldToMAC, r.MayLog, c.want)
		}
		_, isYielded := d.Yields[heldAddr]
		if _, isHeld := d.Held[heldAddr]; isYielded != (c.want != "") || isHeld == isYielded {
			t.Errorf("%s: held %v, yielded %v", c.name, isHeld, isYielded)
		}
	}
}

// However many stations claim addresses, the agent asks four for each at a time, and a thousand
// in a second.
func TestAttackChecksAreBounded(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	claim := func(d *Defence, i int, after time.Duration) *Check {
		return hear(d, announcementOf(fmt.Sprintf("02:00:00:00:01:%02x", i)), notFresh, after).Check
	}
	d := holding(heldOn("eth0", heldAddr))
	var checks []*Check
	for i := range 4 {
		checks = append(checks, claim(d, i, 0))
		if checks[i] == nil || claim(d, i, 0) != nil {
			t.Fatalf("station %d is not asked once", i)
		}
	}
	d.AdvanceCheck(checks[0], begin.Add(150*ms)) // the others wait for longer than they should
	for _, c := range []struct {
		station int
		after   time.Duration
		want    bool
	}{
		{4, 0, false}, {5, 200 * ms, false},
		{6, 200*ms + 1, true}, {7, 200*ms + 1, true}, {8, 200*ms + 1, true}, {9, 200*ms + 1, false},
		{10, 250 * ms, false}, {11, 250*ms + 1, true},
	} {
		if got := claim(d, c.station, c.after) != nil; got != c.want {
			t.Errorf("station %d after %s is asked: %v, want %v", c.station, c.after, got, c.want)
		}
	}

	var all []Held
	for i := range 251 {
		all = append(all, heldOn("eth0", nth(i)))
	}
	d = holding(all...)
	checks = nil
	for i := range all {
		for station := range 4 {
			f := Frame{Addr: nth(i), MAC: fmt.Sprintf("02:00:00:00:01:%02x", station), IsGratuitous: true}
			if c := hear(d, f, notFresh, 0).Check; c != nil {
				checks = append(checks, c)
			}
		}
	}
	if len(checks) != 1000 {
		t.Fatalf("%d checks in a moment, want 1000", len(checks))
	}
	if first := d.AdvanceCheck(checks[0], begin); !first.Ask {
		t.Error("a check that was begun asks nothing")
	}
	if second := d.AdvanceCheck(checks[0], begin); second.Ask || second.Next == 0 {
		t.Errorf("the rate is used up, and the next question: %+v", second)
	}
}

// A station that answered while the agent was fresh, and goes on, is nothing new when the agent
// is not fresh any more.
func TestAnswerersAreRemembered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		answers []time.Duration // after the answer to the fresh agent
		suspect bool            // at the last of them
	}{
		{"at once", []time.Duration{0}, false},
		{"6 s later", []time.Duration{6 * time.Second}, false},
		{"silent for longer", []time.Duration{6*time.Second + 1}, true},
		{"goes on", []time.Duration{5 * time.Second, 10 * time.Second}, false},
		{"goes on, and falls silent", []time.Duration{5 * time.Second, 12 * time.Second}, true},
	} {
		d := holding(heldOn("eth0", heldAddr))
		if r := hearAnswer(d, stranger, fresh, 0); r.Check != nil || r.Announce || r.NewRivalMAC != "" {
			t.Errorf("%s: the fresh agent: %+v", c.name, r)
		}
		var r Reaction
		for _, after := range c.answers {
			r = hearAnswer(d, stranger, notFresh, after)
		}
		if got := r.Check != nil; got != c.suspect {
			t.Errorf("%s: suspect %v", c.name, got)
		}
	}

	d := holding(heldOn("eth0", heldAddr))
	hear(d, announcementOf(stranger), fresh, 0)
	if hearAnswer(d, stranger, notFresh, time.Second).Check == nil {
		t.Error("a station that claimed the address counts as one that answered")
	}
}

func TestAttackAnswerersAreBounded(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	mac := func(i int) string { return fmt.Sprintf("02:00:00:00:01:%02x", i) }
	for i := range 17 {
		hearAnswer(d, mac(i), fresh, 0)
	}
	hearAnswer(d, mac(0), fresh, 3*time.Second) // one of 16 goes on
	if got := len(d.HeldStates[heldAddr].LastAnswerByMAC); got != 16 {
		t.Errorf("%d are remembered, want 16", got)
	}
	if hearAnswer(d, mac(16), notFresh, 3*time.Second).Check == nil {
		t.Error("the seventeenth is remembered")
	}
	hearAnswer(d, mac(16), fresh, 7*time.Second) // the silent ones are forgotten
	if got := len(d.HeldStates[heldAddr].LastAnswerByMAC); got != 2 {
		t.Errorf("%d are remembered, want the one that goes on and the last", got)
	}
	hearAnswer(d, mac(1), fresh, 3*time.Second+answererFor)
	if got := len(d.HeldStates[heldAddr].LastAnswerByMAC); got != 3 {
		t.Errorf("%d are remembered, want also the one whose time is just over", got)
	}
}
