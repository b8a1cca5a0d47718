package plan

import (
	"testing"
	"time"
)

func isProvisional(h *Held) { h.IsProvisional, h.PreviousMACs = true, []string{previous} }

// answersWhenAsked lets a station that is being checked be asked, and answer.
func answersWhenAsked(d *Defence, c *Check, isFresh bool, after time.Duration) Reaction {
	d.ContinueCheck(c, begin.Add(after))
	return hear(d, answerOf(c.MAC), isFresh, after)
}

// A claim is provisional: it is repeated against the node from which the address was claimed and
// against the other successor if that one's epoch is lower. It is yielded to all others that claim
// the address and have it.
func TestProvisionalClaim(t *testing.T) {
	t.Parallel()
	rivals := func(h *Held) { h.HigherMACs, h.LowerMACs = []string{higherMAC}, []string{lowerMAC} }
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
			d.NoteAsked(heldAddr, begin.Add(late))
			r, got := hear(d, c.frame, isFresh, late), "nothing"
			switch {
			case r.Claim && r.Check == nil && r.Contested == "":
				got = "claims"
			case r.Check != nil && !r.Claim && r.Contested == "":
				got = "checks"
			}
			if got != c.want {
				t.Errorf("fresh %v, %s: %s (%+v), want %s", isFresh, name, got, r, c.want)
			}
			if r.Check == nil {
				continue
			}
			if r = answersWhenAsked(d, r.Check, isFresh, late); r.YieldTo != c.frame.MAC {
				t.Errorf("fresh %v, %s: %+v, want a yield", isFresh, name, r)
			}
		}
	}
}
