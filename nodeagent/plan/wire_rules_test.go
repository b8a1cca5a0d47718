package plan

import (
	"math/rand/v2"
	"testing"
)

// hearings returns every Hearing there can be, in random order.
func hearings() []Hearing {
	var all []Hearing
	for _, statement := range []Statement{StatementAnswer, StatementUse, StatementAnnouncement} {
		for bits := range 1 << 9 {
			is := func(bit int) bool { return bits>>bit&1 == 1 }
			all = append(all, Hearing{
				Statement: statement, IsAgentFresh: is(0), IsUndefended: is(1), IsGateway: is(2), IsPreviousHolder: is(3),
				HasAnsweredSinceFresh: is(4), IsAsked: is(5),
				IsProvisional: is(6), HasHigherEpoch: is(7), HasLowerEpoch: is(8),
			})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// One case for each rule, in their order: the rule is the first that applies, and
// without it the verdict would be another.
func TestRules(t *testing.T) {
	t.Parallel()
	cases := []struct {
		rule    string
		hearing Hearing
		want    Verdict
	}{
		{
			"node with a higher epoch that was asked by itself answers",
			Hearing{Statement: StatementAnswer, HasHigherEpoch: true, IsAsked: true, IsAgentFresh: true}, Yield,
		},
		{
			"node with a higher epoch announces",
			Hearing{Statement: StatementAnnouncement, HasHigherEpoch: true, IsAgentFresh: true, IsGateway: true}, CheckClaim,
		},
		{
			"claim of a node with a higher epoch, or its answer, and the agent does not defend",
			Hearing{Statement: StatementUse, HasHigherEpoch: true, IsGateway: true}, CheckClaim,
		},
		{
			"gateway, and the agent does not defend", Hearing{Statement: StatementAnnouncement, IsGateway: true, IsAsked: true},
			Ignore,
		},
		{"answer of a gateway", Hearing{Statement: StatementAnswer, IsGateway: true, IsAgentFresh: true}, Ignore},
		{
			"node with a lower epoch",
			Hearing{Statement: StatementAnnouncement, HasLowerEpoch: true, IsProvisional: true, IsAsked: true}, Repeat,
		},
		{
			"the station that was asked by itself answers, and the agent does not defend",
			Hearing{Statement: StatementAnswer, IsAsked: true, HasAnsweredSinceFresh: true}, Yield,
		},
		{
			"node goes on from which the address was claimed",
			Hearing{Statement: StatementUse, IsProvisional: true, IsPreviousHolder: true}, Repeat,
		},
		{
			"previous holder goes on, whom the agent knows to be away",
			Hearing{Statement: StatementAnnouncement, IsPreviousHolder: true, IsAgentFresh: true}, Repeat,
		},
		{
			"previous holder goes on, and has all the time since the agent was fresh",
			Hearing{Statement: StatementUse, IsPreviousHolder: true, HasAnsweredSinceFresh: true}, Repeat,
		},
		{
			"claim, and the agent defends",
			Hearing{Statement: StatementUse, HasAnsweredSinceFresh: true, IsAgentFresh: true}, Defend,
		},
		{
			"claim, and the agent does not defend",
			Hearing{Statement: StatementAnnouncement, HasAnsweredSinceFresh: true, IsAgentFresh: true, IsUndefended: true},
			CheckClaim,
		},
		{"answer, and the agent is fresh", Hearing{Statement: StatementAnswer, IsAgentFresh: true}, Remember},
		{
			"answer of a station that answered while the agent was fresh",
			Hearing{Statement: StatementAnswer, HasAnsweredSinceFresh: true},
			Ignore,
		},
		{"answer", Hearing{Statement: StatementAnswer}, Suspect},
	}
	all := Rules()
	if len(cases) != len(all) {
		t.Fatalf("%d cases for %d rules", len(cases), len(all))
	}
	for i, c := range cases {
		if all[i].Name != c.rule {
			t.Errorf("rule %d is %q, want %q", i, all[i].Name, c.rule)
		}
		for j, rule := range all[:i+1] {
			if applies := rule.Applies(c.hearing); applies != (j == i) {
				t.Errorf("to %+v, the case of %q, rule %q applies: %v", c.hearing, c.rule, rule.Name, applies)
			}
		}
		if got := Judge(c.hearing); got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
	}
}

// What holds for whatever is heard.
func TestAttackJudgement(t *testing.T) {
	t.Parallel()
	for _, h := range hearings() {
		verdict := Judge(h)
		with := func(change func(*Hearing)) Verdict {
			other := h
			change(&other)
			return Judge(other)
		}
		for what, broken := range map[string]bool{
			"nothing is yielded to a station that was not asked by itself, and has not answered": verdict == Yield &&
				(!h.IsAsked || h.Statement != StatementAnswer),
			"an agent that is fresh yields nothing but what is undefended or provisional, " +
				"but to a higher epoch": verdict == Yield && h.IsAgentFresh &&
				!h.IsUndefended && !h.IsProvisional && !h.HasHigherEpoch,
			"a gateway is never yielded to, nor asked, but one with a higher epoch": h.IsGateway && !h.HasHigherEpoch &&
				(verdict == Yield || verdict == CheckClaim || verdict == Suspect),
			"what is provisional is not defended": h.IsProvisional && verdict == Defend,
			"a claim is never ignored, but that of a gateway": h.Statement != StatementAnswer &&
				!h.IsGateway && verdict == Ignore,
			"that a station is known silences no announcement": h.Statement == StatementAnnouncement &&
				verdict != with(func(o *Hearing) { o.HasAnsweredSinceFresh = !o.HasAnsweredSinceFresh }),
			"that a station is known silences no claim, but of a previous holder": h.Statement == StatementUse &&
				!h.IsPreviousHolder && verdict != with(func(o *Hearing) { o.HasAnsweredSinceFresh = !o.HasAnsweredSinceFresh }),
			"what is undefended is neither defended nor claimed, but against one that was displaced, " +
				"or has a lower epoch": h.IsUndefended && !h.IsPreviousHolder && !h.HasLowerEpoch &&
				(verdict == Defend || verdict == Repeat),
			"an agent that is fresh stands by its address against every claim, but of a higher epoch": h.IsAgentFresh &&
				!h.IsUndefended && !h.IsProvisional &&
				!h.HasHigherEpoch && h.Statement != StatementAnswer && verdict != Defend && verdict != Repeat,
		} {
			if broken {
				t.Errorf("%+v: %s: not true of: %s", h, verdict, what)
			}
		}
	}
}

// Judge follows the list, and without any one rule something is judged differently.
func TestRulesAreNeeded(t *testing.T) {
	t.Parallel()
	all := Rules()
	first := func(rules []Rule, h Hearing) Verdict {
		for _, rule := range rules {
			if rule.Applies(h) {
				return rule.Verdict
			}
		}
		return ""
	}
	for _, h := range hearings() {
		if got, want := Judge(h), first(all, h); got != want || want == "" {
			t.Errorf("%+v: %q, and %q by the list", h, got, want)
		}
	}
	for i, rule := range all {
		needed := false
		without := append(append([]Rule{}, all[:i]...), all[i+1:]...)
		for _, h := range hearings() {
			needed = needed || first(without, h) != first(all, h)
		}
		if !needed {
			t.Errorf("rule %q changes nothing", rule.Name)
		}
	}
}
