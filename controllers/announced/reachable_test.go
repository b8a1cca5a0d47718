package announced_test

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// asker is a node that is to ask for 10.0.0.1 of n1, and what it reports: "2 1 False NoAnswer" is the
// epoch that it is to ask for, the epoch that it reports on, and what.
func asker(name, text string) v1.Announcement {
	words := strings.Fields(text)
	epoch := func(word string) int64 { return int64(word[0] - '0') }
	a := v1.Announcement{Spec: v1.AnnouncementSpec{NodeName: name, Asking: &v1.Asking{
		Holder:    v1.StandbyNode{NodeName: "n1"},
		Addresses: []v1.AskedAddress{{Address: "10.0.0.1", Epoch: epoch(words[0]), Services: []string{"a/b"}}},
	}}}
	if len(words) > 1 {
		a.Status.Reachability = []v1.Reachability{{
			Address: "10.0.0.1", Epoch: epoch(words[1]), Reachable: metav1.ConditionStatus(words[2]), Reason: words[3],
		}}
	}
	return a
}

func TestReach(t *testing.T) {
	for _, row := range []struct {
		name   string
		askers map[string]string
		want   string
	}{
		{"nobody can ask", nil, "Unknown NoAsker: there is no other node on the link of n1 that could ask for 10.0.0.1"},
		{"not asked yet", map[string]string{"n2": "2"},
			"Unknown NotAsked: no node has found out yet whether n1 answers for 10.0.0.1: it has not been asked for"},
		{"one answer", map[string]string{"n2": "2 2 True Answered"}, "True Reachable: n1 answers for 10.0.0.1"},
		{"an answer of the last holder", map[string]string{"n2": "2 1 True Answered"},
			"Unknown NotAsked: no node has found out yet whether n1 answers for 10.0.0.1: it has not been asked for"},
		{"asks for another epoch", map[string]string{"n2": "1 1 True Answered"},
			"Unknown NoAsker: there is no other node on the link of n1 that could ask for 10.0.0.1"},
		{"one of one gets no answer", map[string]string{"n2": "2 2 False NoAnswer"},
			"Unknown NoAnswer: n2 cannot reach 10.0.0.1 of n1: n1 answers for its own address, and not for this one; no " +
				"other node has found out about it, and one may be mistaken"},
		{"one of two, and the other has not found out", map[string]string{
			"n2": "2 2 False NoAnswer", "n3": "2 2 Unknown NoWitness",
		}, "Unknown NoAnswer: n2 cannot reach 10.0.0.1 of n1: n1 answers for its own address, and not for this one; no " +
			"node answers, so this one may be cut off itself; no other node has found out about it, and one may be mistaken"},
		{"one of two, and the other gets answers", map[string]string{
			"n2": "2 2 False NoAnswer", "n3": "2 2 True Answered",
		}, "True Reachable: n1 answers for 10.0.0.1, but n2: n1 answers for its own address, and not for this one"},
		{"two of three, and the third gets answers", map[string]string{
			"n2": "2 2 False NoAnswer", "n3": "2 2 True Answered", "n4": "2 2 False NoAnswer",
		}, "True Reachable: n1 answers for 10.0.0.1, but n2 and n4: n1 answers for its own address, and not for this " +
			"one"},
		{"two of two", map[string]string{"n3": "2 2 False HolderSilent", "n2": "2 2 False HolderSilent"},
			"False Unreachable: n1 announces 10.0.0.1, and n2 and n3 cannot reach it: n1 answers for no address, and other " +
				"nodes do for theirs"},
		{"two of three, and the third has not found out", map[string]string{
			"n2": "2 2 False NoAnswer", "n3": "2 2 False NoAnswer", "n4": "2",
		}, "False Unreachable: n1 announces 10.0.0.1, and n2 and n3 cannot reach it: n1 answers for its own address, and " +
			"not for this one; it has not been asked for"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := on("n1", [3]string{"10.0.0.1", "Local", "Announced"})
			a.Spec.LBNodeAgent = "default"
			for _, entries := range []*int64{&a.Spec.Addresses[0].Epoch, &a.Status.Addresses[0].Epoch} {
				*entries = 2
			}
			places := announced.PlacesOf("a/b", []v1.Announcement{a}, nil, nil)
			var askings []v1.Announcement
			for name, text := range row.askers {
				askings = append(askings, asker(name, text))
			}
			asks := func(lbNodeAgent string) bool { return lbNodeAgent == "default" }
			c := announced.ReachableCondition(announced.ReachVerdicts(places, askings, asks))
			if diff := cmp.Diff(row.want, string(c.Status)+" "+c.Reason+": "+c.Message); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
			off := announced.ReachableCondition(announced.ReachVerdicts(places, askings, func(string) bool { return false }))
			if diff := cmp.Diff(metav1.Condition{}, off); diff != "" {
				t.Errorf("the condition while it is off (-want +got):\n%s", diff)
			}
		})
	}
}

// The condition is of Local addresses that are announced, and the worst of them counts.
func TestSummariseReach(t *testing.T) {
	yes, no, unknown := metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	reached := func(statuses ...metav1.ConditionStatus) (all []announced.ReachVerdict) {
		for i, s := range statuses {
			all = append(all, announced.ReachVerdict{Reachable: s, Reason: string(s), Message: string(rune('a' + i))})
		}
		return all
	}
	for _, row := range []struct {
		all  []announced.ReachVerdict
		want string
	}{
		{nil, " "},
		{reached(yes, yes), "True a; b"},
		{reached(yes, unknown), "Unknown b; a"},
		{reached(yes, unknown, no, yes, yes), "False c; b; a; and 2 more"},
	} {
		c := announced.ReachableCondition(row.all)
		if got := c.Reason + " " + c.Message; got != row.want || string(c.Status) != c.Reason {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
	virtual := on("n1", [3]string{"10.0.0.1", "Virtual", "Announced"})
	pending := on("n1", [3]string{"10.0.0.1", "Local", "Pending"})
	for _, a := range []v1.Announcement{virtual, pending} {
		places := announced.PlacesOf("a/b", []v1.Announcement{a}, nil, nil)
		if all := announced.ReachVerdicts(places, nil, func(string) bool { return true }); len(all) != 0 {
			t.Errorf("%+v", all)
		}
	}
}

// An agent's report holds sequences that command a terminal, and is long. The condition quotes it cut.
func TestAttackUnprintableReachability(t *testing.T) {
	a := on("n1", [3]string{"10.0.0.1", "Local", "Announced"})
	n2, n3 := asker("n2", "2 2 False x"), asker("n3", "2 2 False x")
	n2.Status.Reachability[0].Reason = "no\x1b]52;c;cm0=\x07\u202e" + strings.Repeat("x", 5000)
	n3.Status.Reachability[0].Reason = v1.ReasonOtherStation
	n3.Status.Reachability[0].MAC = "\x1b[2K" + strings.Repeat("y", 5000)
	places := announced.PlacesOf("a/b", []v1.Announcement{a}, nil, nil)
	c := announced.ReachableCondition(
		announced.ReachVerdicts(places, []v1.Announcement{n2, n3}, func(string) bool { return true }),
	)
	if c.Status != metav1.ConditionFalse || len(c.Message) > 400 ||
		strings.ContainsFunc(c.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%d bytes: %q", len(c.Message), c.Message)
	}
}

// A change of when a holder last answered concerns no Service, and one of whether it answers does.
func TestServicesOfReach(t *testing.T) {
	before, later, silent := asker("n2", "2 2 True Answered"), asker("n2", "2 2 True Answered"),
		asker("n2", "2 2 False NoAnswer")
	at := metav1.NewTime(time.Unix(1000, 0))
	later.Status.Reachability[0].LastReachable = &at
	moved, gone := asker("n2", "3 2 True Answered"), v1.Announcement{}
	for _, row := range []struct {
		name          string
		before, after v1.Announcement
		want          string
	}{
		{"nothing", before, before, ""},
		{"later", before, later, ""},
		{"silent", before, silent, "a/b"},
		{"another epoch", before, moved, "a/b"},
		{"gone", before, gone, "a/b"},
		{"new", gone, before, "a/b"},
	} {
		if got := strings.Join(announced.ServicesOfChangedEntries(&row.before, &row.after), " "); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	if got := strings.Join(announced.ServicesOfAnnouncement(&before), " "); got != "a/b" {
		t.Errorf("the Services are %q", got)
	}
}
