package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
)

func isUp(string) bool { return true }

// yielding is the Defence of an agent that has yielded an address on eth0 to the stranger.
func yielding(edit ...func(*Held)) *Defence {
	d := NewDefence()
	d.NoteYield(heldOn("eth0", heldAddr, edit...), stranger, begin)
	return d
}

func TestForgetYields(t *testing.T) {
	t.Parallel()
	desired := func(edit ...func(*Desired)) []Desired {
		d := Desired{Addr: heldAddr, Interface: "eth1", IsLocal: true, Epoch: 3}
		for _, e := range edit {
			e(&d)
		}
		return []Desired{d, {Addr: nth(1), Interface: "eth0", IsLocal: true, Epoch: 9}}
	}
	epoch := func(epoch int64) func(*Desired) { return func(d *Desired) { d.Epoch = epoch } }
	for name, c := range map[string]struct {
		desired []Desired
		want    []string // interfaces on which yields are left
	}{
		"under the same epoch":        {desired(), []string{"eth1"}},
		"under an epoch before":       {desired(epoch(2)), []string{"eth1"}},
		"under a higher epoch":        {desired(epoch(4)), nil},
		"leaving: not claimed again":  {desired(func(d *Desired) { d.IsHandingOver = true }), []string{""}},
		"desired as a Virtual one":    {desired(func(d *Desired) { d.IsLocal = false }), nil},
		"not desired any more":        {nil, nil},
		"another address is desired ": {desired()[1:], nil},
	} {
		d := yielding()
		d.NoteYield(heldOn("eth0", nth(2)), stranger, begin) // is not desired at all
		d.UpdateYields(c.desired)
		var got []string
		for _, y := range d.Yields {
			got = append(got, y.Interface)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A yield counts for the Announcements that the node had then, wherever the entry is now.
func TestYieldOfAnotherAnnouncement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		yield types.UID
		node  []types.UID // of its Announcements; the last one has the entry
		want  bool
	}{
		{"the same", "a", []types.UID{"a"}, true},
		{"made anew", "a", []types.UID{"b"}, false},
		{"the entry has moved", "a", []types.UID{"a", "b"}, true},
		{"the yield is of an earlier version of the agent", "", []types.UID{"a"}, true},
		{"the checkpoint is of an earlier version of the agent", "a", nil, true},
	} {
		desired := Desired{Addr: heldAddr, Interface: "eth0", IsLocal: true, Epoch: 3, NodeAnnouncements: c.node}
		if len(c.node) > 0 {
			desired.Announcement = c.node[len(c.node)-1]
		}
		d := yielding(func(h *Held) { h.Announcement = c.yield })
		if _, may := d.AllowChange(&desired, false, begin); may == c.want {
			t.Errorf("%s: may have the address %v", c.name, may)
		}
		d.UpdateYields([]Desired{desired})
		y, got := d.Yields[heldAddr]
		if got != c.want {
			t.Errorf("%s: is still yielded %v, want %v", c.name, got, c.want)
		}
		if got && desired.Announcement != "" && y.Announcement != desired.Announcement {
			t.Errorf("%s: yielded under %q", c.name, y.Announcement)
		}
	}
}

// What the API server has just listed is later than the yields: there an entry has a lower epoch
// only if it was made anew.
func TestYieldsOfEarlierEntries(t *testing.T) {
	t.Parallel()
	epoch := func(epoch int64) func(*purelbv1.AnnouncedAddress) {
		return func(a *purelbv1.AnnouncedAddress) { a.Epoch = epoch }
	}
	for name, c := range map[string]struct {
		listed []purelbv1.Announcement
		want   bool
	}{
		"under the same epoch": {[]purelbv1.Announcement{announcement(local("192.0.2.1", 24))}, true},
		"under a lower epoch":  {[]purelbv1.Announcement{announcement(local("192.0.2.1", 24, epoch(2)))}, false},
		// UpdateYields forgets it
		"under a higher epoch": {[]purelbv1.Announcement{announcement(local("192.0.2.1", 24, epoch(4)))}, true},
		"moved to another Announcement": {
			[]purelbv1.Announcement{announcement(local("192.0.2.1", 24, epoch(2))), announcement(local("192.0.2.1", 24))}, true,
		},
		"another address": {[]purelbv1.Announcement{announcement(local("192.0.2.2", 24, epoch(2)))}, true},
		"no Announcement": {nil, true},
	} {
		d := yielding()
		d.ForgetYieldsAboveListedEpochs(c.listed)
		if _, got := d.Yields[heldAddr]; got != c.want {
			t.Errorf("%s: is still yielded %v, want %v", name, got, c.want)
		}
	}
}

func TestYieldedMayBeHadAgain(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	desired := &Desired{Addr: heldAddr, Interface: "eth0", IsLocal: true, Epoch: 3}
	higher := &Desired{Addr: heldAddr, Interface: "eth0", IsLocal: true, Epoch: 4}
	for _, c := range []struct {
		name      string
		desired   *Desired
		isReclaim bool
		questions int
		after     time.Duration
		want      bool
		isOver    bool
	}{
		{"at once", desired, true, 0, 0, false, false},
		{"two questions unanswered for 200 ms", desired, true, 2, 200 * ms, true, true},
		{"two questions unanswered for less", desired, true, 2, 200*ms - 1, false, false},
		{"one question unanswered", desired, true, 1, time.Hour, false, false},
		{"silent, but for another operation than a claim", desired, false, 2, time.Hour, false, false},
		{"under a higher epoch", higher, false, 0, 0, true, false},
		{"another address", &Desired{Addr: nth(1), Epoch: 3}, false, 0, 0, true, false},
	} {
		d := yielding()
		for range c.questions {
			d.BeginReclaimQuestions(isUp, begin)
		}
		result, got := d.AllowChange(c.desired, c.isReclaim, begin.Add(c.after))
		if got != c.want || got && result.State != "" || !got && result.State != purelbv1.StateYielded {
			t.Errorf("%s: %v %+v, want %v", c.name, got, result, c.want)
		}
		if _, isYielded := d.Yields[heldAddr]; isYielded == c.isOver {
			t.Errorf("%s: still yielded %v", c.name, isYielded)
		}
	}
}

// What shows that a station still has an address that was yielded.
func TestAnswersForYielded(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for _, c := range []struct {
		name      string
		iface     string
		frame     Frame
		isGateway bool
		after     time.Duration
		counts    bool
	}{
		{"an answer", "eth0", answerOf(otherStranger), false, second, true},
		{"an answer, too late", "eth0", answerOf(otherStranger), false, second + 1, false},
		{"an answer by another interface", "eth1", answerOf(otherStranger), false, 0, false},
		{"an answer of a gateway", "eth0", answerOf(gateway), true, 0, false},
		{"an announcement", "eth0", announcementOf(otherStranger), false, 0, false},
		{"about another address", "eth0", Frame{Addr: nth(1), MAC: otherStranger, IsDirect: true}, false, 0, false},
	} {
		d := yielding()
		d.BeginReclaimQuestions(isUp, begin)
		d.Hear(c.iface, c.frame, notFresh, c.isGateway, begin.Add(c.after))
		want := YieldedAddress{Epoch: 3, MAC: stranger, Interface: "eth0", AnsweredAt: begin, Unanswered: 1, AskedAt: begin}
		if c.counts {
			want.MAC, want.AnsweredAt, want.Unanswered = otherStranger, begin.Add(c.after), 0
		}
		if diff := cmp.Diff(map[netip.Addr]YieldedAddress{heldAddr: want}, d.Yields, compareDecisions); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}

	d := yielding()
	d.BeginReclaimQuestions(isUp, begin)
	for _, addr := range []netip.Addr{heldAddr, nth(1)} {
		d.NoteProbeAnswer(addr, ProbeState{MAC: otherStranger, AnsweredAt: begin.Add(second)})
	}
	want := YieldedAddress{Epoch: 3, MAC: otherStranger, Interface: "eth0", AnsweredAt: begin.Add(second), AskedAt: begin}
	if diff := cmp.Diff(map[netip.Addr]YieldedAddress{heldAddr: want}, d.Yields, compareDecisions); diff != "" {
		t.Errorf("an answer to a probe (-want +got):\n%s", diff)
	}
}

func TestSilenceIsReportedOnce(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	d := yielding()
	for _, c := range []struct {
		after    time.Duration
		isSilent bool
	}{{0, false}, {100 * ms, false}, {200 * ms, true}, {300 * ms, false}} {
		questions, newlySilent := d.BeginReclaimQuestions(isUp, begin.Add(c.after))
		want := []ReclaimQuestion{{heldAddr, "eth0", stranger}}
		if diff := cmp.Diff(want, questions, compareDecisions); diff != "" || newlySilent != c.isSilent {
			t.Errorf("after %s: newly silent %v, questions (-want +got):\n%s", c.after, newlySilent, diff)
		}
	}
	// It answers, and falls silent again.
	hear(d, answerOf(stranger), notFresh, 300*ms)
	if _, newlySilent := d.BeginReclaimQuestions(isUp, begin.Add(400*ms)); newlySilent {
		t.Error("a station that has answered is silent")
	}
	d.BeginReclaimQuestions(isUp, begin.Add(500*ms))
	if _, newlySilent := d.BeginReclaimQuestions(isUp, begin.Add(600*ms)); !newlySilent {
		t.Error("a station that has fallen silent again is not reported")
	}
}

func TestNobodyIsAskedInVain(t *testing.T) {
	t.Parallel()
	if questions, _ := yielding(isUndefended).BeginReclaimQuestions(isUp, begin); len(questions) > 0 {
		t.Errorf("about an address that is not claimed again: %v", questions)
	}
	d := yielding()
	for i := range 20 {
		d.NoteYield(heldOn("eth0", nth(i), isUndefended), stranger, begin)
	}
	for range 5 { // in whatever order
		if questions, _ := d.BeginReclaimQuestions(isUp, begin); len(questions) != 1 || questions[0].Addr != heldAddr {
			t.Errorf("beside others that are not claimed again: %v", questions)
		}
	}
	d = yielding()
	isEth1Up := func(iface string) bool { return iface == "eth1" }
	for range 3 {
		questions, newlySilent := d.BeginReclaimQuestions(isEth1Up, begin.Add(time.Hour))
		if len(questions) > 0 || newlySilent {
			t.Errorf("by an interface that is down: %v, newly silent %v", questions, newlySilent)
		}
	}
}

func TestQuestionsThatWereNotSentDoNotCount(t *testing.T) {
	t.Parallel()
	d := yielding()
	d.NoteReclaimQuestionNotSent(nth(1)) // was not yielded
	for i, c := range []struct {
		wasSent bool
		want    int
	}{{false, 0}, {true, 1}, {true, 2}, {false, 1}, {true, 2}} {
		if c.wasSent {
			d.BeginReclaimQuestions(isUp, begin)
		} else {
			d.NoteReclaimQuestionNotSent(heldAddr)
		}
		if y := d.Yields[heldAddr]; y.Unanswered != c.want || len(d.Yields) != 1 {
			t.Errorf("step %d: %d questions are unanswered, want %d", i, y.Unanswered, c.want)
		}
	}
}

// However many addresses were yielded, the agent asks a thousand questions in a second, and each
// in turn.
func TestAttackYieldQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	d := NewDefence()
	for i := range 200 {
		d.NoteYield(heldOn("eth0", nth(i)), stranger, begin)
	}
	for step, first := range []int{0, 100, 0, 100} {
		questions, _ := d.BeginReclaimQuestions(isUp, begin.Add(time.Duration(step)*time.Millisecond))
		if len(questions) != 100 {
			t.Fatalf("%d questions at once, want 100", len(questions))
		}
		for i, q := range questions {
			if q.Addr != nth(first+i) {
				t.Fatalf("question %d of call %d is about %s, want %s", i, step, q.Addr, nth(first+i))
			}
		}
	}
}

// What the checkpoint says of yields holds until the stations have been asked.
func TestRestoredYieldsCountFromNow(t *testing.T) {
	t.Parallel()
	d := NewDefence()
	d.RestoreYields(map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 3, MAC: stranger}}, begin)
	want := map[netip.Addr]YieldedAddress{heldAddr: {Epoch: 3, MAC: stranger, AnsweredAt: begin}}
	if diff := cmp.Diff(want, d.Yields, compareDecisions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
