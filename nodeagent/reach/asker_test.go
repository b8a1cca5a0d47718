package reach_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/reach"
)

const (
	holderMAC   = "02:00:00:00:00:02"
	witnessMAC  = "02:00:00:00:00:03"
	strangerMAC = "02:00:00:00:00:09"

	vip, holderAddr, witnessAddr = "192.0.2.1", "192.0.2.12", "192.0.2.13"
)

// askingOf asks node1, of askers, for addresses of node2.
func askingOf(epoch int64, askers string, addresses ...string) *v1.Announcement {
	ann := &v1.Announcement{}
	ann.Generation = 1
	ann.Spec.NodeName = "node1"
	ann.Spec.Asking = &v1.Asking{
		Holder:    v1.StandbyNode{NodeName: "node2", Addresses: []string{holderAddr, "fe80::2"}, MACs: []string{holderMAC}},
		Interface: "eth0",
	}
	for name := range strings.FieldsSeq(askers) {
		n := v1.StandbyNode{NodeName: name, MACs: []string{witnessMAC}}
		n.Addresses = []string{"192.0.2.1" + strings.TrimPrefix(name, "node"), "fe80::" + strings.TrimPrefix(name, "node")}
		ann.Spec.Asking.Askers = append(ann.Spec.Asking.Askers, n)
	}
	for _, address := range addresses {
		ann.Spec.Asking.Addresses = append(ann.Spec.Asking.Addresses, v1.AskedAddress{Address: address, Epoch: epoch})
	}
	return ann
}

// link is an asker, and the stations on its link.
type link struct {
	t        *testing.T
	asker    *reach.Asker
	ann      *v1.Announcement
	now      time.Time
	stations map[string]string // MACs by address
	err      error
	// questions are those of the last round, and rounds when there was one.
	questions []string
	rounds    []time.Duration
	start     time.Time
	writes    int
}

func newLink(t *testing.T, ann *v1.Announcement) *link {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := &link{
		t: t, asker: reach.New(), now: start, start: start,
		stations: map[string]string{vip: holderMAC, holderAddr: holderMAC, witnessAddr: witnessMAC},
	}
	l.set(ann)
	return l
}

func (l *link) set(ann *v1.Announcement) {
	if l.ann != nil {
		ann.Status = l.ann.Status
	}
	l.ann = ann
	l.asker.SetTargets(
		reach.Targets([]v1.Announcement{*ann}, "node1", func(string, netip.Addr) bool { return true }), l.now,
	)
	l.report()
}

// report writes the status as the agent does.
func (l *link) report() {
	status := l.asker.Status(l.ann, metav1.NewTime(l.now))
	if !cmp.Equal(status, l.ann.Status) {
		l.ann.Status = status
		l.writes++
	}
}

// round begins the next round when it is due, and ends it.
func (l *link) round() {
	at, isAny := l.asker.NextRoundAt()
	if !isAny {
		l.t.Fatal("nothing is asked for")
	}
	if at.After(l.now) {
		l.now = at
	}
	l.rounds = append(l.rounds, l.now.Sub(l.start))
	due, questions := l.asker.BeginRound(l.now)
	answers := map[reach.Key]reach.Answer{}
	l.questions = nil
	for _, q := range questions {
		l.questions = append(l.questions, q.Addr.String())
		answers[q.Key] = reach.Answer{MAC: l.stations[q.Addr.String()], Err: l.err}
	}
	if l.asker.EndRound(due, answers, l.now) {
		l.report()
	}
}

// runFor has all rounds of a while.
func (l *link) runFor(while time.Duration) {
	end := l.now.Add(while)
	for at, isAny := l.asker.NextRoundAt(); isAny && at.Before(end); at, isAny = l.asker.NextRoundAt() {
		l.round()
	}
	l.now = end
}

func (l *link) expect(when, want string) {
	l.t.Helper()
	got := ""
	for _, r := range l.ann.Status.Reachability {
		got += strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Reachable, r.Reason, r.MAC)) + "\n"
	}
	if diff := cmp.Diff(want, strings.TrimSuffix(got, "\n")); diff != "" {
		l.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func TestAskerVerdicts(t *testing.T) {
	dies := func(l *link) { clear(l.stations) }
	for _, row := range []struct {
		name   string
		askers string
		before func(*link) // from the beginning
		change func(*link) // after the address was asked for ten minutes
		want   string
	}{
		{"all is well", "node1 node3", nil, func(*link) {}, "True Answered"},
		{"the address is not answered for, and the holder's own is", "node1 node3", nil, func(l *link) {
			delete(l.stations, vip)
		}, "False NoAnswer"},
		{"the same, and there is no other asker", "node1", nil, func(l *link) { delete(l.stations, vip) }, "False NoAnswer"},
		{"the holder is cut off", "node1 node3", nil, func(l *link) {
			delete(l.stations, vip)
			delete(l.stations, holderAddr)
		}, "False HolderSilent"},
		{"this node is cut off", "node1 node3", nil, dies, "Unknown NoWitness"},
		{"the holder is silent, and there is no other asker", "node1", nil, dies, "Unknown NoWitness"},
		{"nothing can be asked", "node1 node3", nil, func(l *link) { l.err = errors.New("no carrier") }, "Unknown NotAsked"},
		{"another station answers", "node1 node3", nil, func(l *link) { l.stations[vip] = strangerMAC },
			"False OtherStation " + strangerMAC},
		{"the network never lets the holder's answers through", "node1 node3", func(l *link) {
			delete(l.stations, vip)
			delete(l.stations, holderAddr)
		}, func(*link) {}, "Unknown HolderSilent"},
		{"the network answers no such questions", "node1 node3", dies, func(*link) {}, "Unknown NoWitness"},
		{"the address was never answered for, and the holder's own is", "node1 node3", func(l *link) {
			delete(l.stations, vip)
		}, func(*link) {}, "False NoAnswer"},
		{"the holder's MACs are unknown", "node1 node3", func(l *link) {
			l.ann.Spec.Asking.Holder.MACs = nil
			l.stations[vip] = strangerMAC
			l.set(l.ann)
		}, func(*link) {}, "True Answered"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := newLink(t, askingOf(3, row.askers, vip))
			l.expect("at first", "Unknown NotAsked")
			if row.before != nil {
				row.before(l)
			}
			l.runFor(10 * time.Minute)
			row.change(l)
			l.runFor(10 * time.Minute)
			l.expect("then", row.want)
			l.stations[vip], l.stations[holderAddr], l.err = holderMAC, holderMAC, nil
			l.runFor(3 * time.Minute)
			l.expect("once the holder answers again", "True Answered")
		})
	}
}

// Two rounds that remain unanswered are no alarm, and silence that does not count begins the count anew.
func TestAskerForgetsSilence(t *testing.T) {
	l := newLink(t, askingOf(3, "node1 node3", vip))
	l.round()
	l.expect("after an answer", "True Answered")
	for range 5 {
		delete(l.stations, vip)
		for range 3 { // the first one without other questions
			l.round()
			l.expect("after no more than two silent rounds that count", "True Answered")
		}
		l.stations[vip] = holderMAC
		l.round()
	}
	delete(l.stations, vip)
	for range 10 {
		l.round()
		l.round()
		delete(l.stations, holderAddr)
		delete(l.stations, witnessAddr)
		l.round()
		if r := l.ann.Status.Reachability[0]; r.Reachable == metav1.ConditionFalse {
			t.Fatalf("unreachable after two silent rounds that count")
		}
		l.stations[holderAddr], l.stations[witnessAddr] = holderMAC, witnessMAC
	}
}

// Of three askers each has a minute in three, and a question asks for the address alone while its
// holder answers.
func TestAskerTurns(t *testing.T) {
	const hours, perHour = 10, 20
	var turns []time.Duration // of all askers
	for _, name := range []string{"node1", "node3", "node4"} {
		asker, now := reach.New(), time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
		asker.SetTargets(reach.Targets(
			[]v1.Announcement{*askingOf(3, "node1 node3 node4", vip)}, name, func(string, netip.Addr) bool { return true },
		), now)
		for range hours * perHour {
			due, questions := asker.BeginRound(now)
			if len(due) != 1 || len(questions) != 1 {
				t.Fatalf("%s asks %v for %v", name, questions, due)
			}
			asker.EndRound(due, map[reach.Key]reach.Answer{questions[0].Key: {MAC: holderMAC}}, now)
			last := now
			now, _ = asker.NextRoundAt()
			if len(turns)%(hours*perHour) > 0 && now.Sub(last) != 3*time.Minute {
				t.Errorf("%s asks again after %s", name, now.Sub(last))
			}
			turns = append(turns, now.Sub(now.Truncate(3*time.Minute)))
		}
	}
	slices.Sort(turns)
	turns = slices.Compact(turns)
	if len(turns) != 3 || turns[1]-turns[0] != time.Minute || turns[2]-turns[1] != time.Minute {
		t.Errorf("turns at %v", turns)
	}
}

// An asker waits for its turn by the monotonic clock: if the node's clock is set back meanwhile, it does not wait for
// as much longer.
func TestAskerTurnsByMonotonicClock(t *testing.T) {
	asker, now := reach.New(), time.Now()
	asker.SetTargets(reach.Targets(
		[]v1.Announcement{*askingOf(3, "node1 node3", vip)}, "node1", func(string, netip.Addr) bool { return true },
	), now)
	due, questions := asker.BeginRound(now)
	asker.EndRound(due, map[reach.Key]reach.Answer{questions[0].Key: {MAC: holderMAC}}, now)
	at, _ := asker.NextRoundAt()
	if !strings.Contains(at.String(), " m=") { // so it says if it has a reading of that clock
		t.Errorf("the next turn is at %s, by a clock that may be set", at)
	}
}

// While all is well an asker of many addresses writes its status once in some eight minutes.
func TestAskerWritesLittle(t *testing.T) {
	var addresses []string
	for i := range v1.MaxAddressesPerAnnouncement {
		addresses = append(addresses, fmt.Sprintf("192.0.2.%d", 100+i))
	}
	l := newLink(t, askingOf(3, "node1 node3", addresses...))
	for _, a := range addresses {
		l.stations[a] = holderMAC
	}
	l.runFor(10 * time.Minute)
	l.writes = 0
	l.runFor(10 * time.Hour)
	if l.writes < 60 || l.writes > 80 { // each time some were answered for just before their turn
		t.Errorf("%d writes in ten hours, want about one each eight minutes", l.writes)
	}
	for _, r := range l.ann.Status.Reachability {
		if age := l.now.Sub(r.LastReachable.Time); age > 13*time.Minute {
			t.Errorf("%s was last reachable %s ago", r.Address, age)
		}
	}
	seconds := map[time.Duration]int{}
	for _, at := range l.rounds[len(l.rounds)-len(addresses):] {
		seconds[at.Truncate(time.Second)]++
	}
	if len(seconds) < len(addresses)/2 {
		t.Errorf("%d addresses are asked for in %d different seconds", len(addresses), len(seconds))
	}
}

// After a move the address is asked for at once, and what was found out about the last holder does
// not count.
func TestAskerAsksAtOnceAfterMove(t *testing.T) {
	l := newLink(t, askingOf(3, "node1 node3", vip))
	l.runFor(time.Minute)
	delete(l.stations, vip)
	l.runFor(10 * time.Minute)
	l.expect("before", "False NoAnswer")
	last := l.ann.Status.Reachability[0].LastReachable
	if last == nil || l.now.Sub(last.Time) < 10*time.Minute {
		t.Errorf("last reachable at %v, it is %v", last, l.now)
	}
	l.set(askingOf(4, "node1 node3", vip))
	l.expect("at first", "Unknown NotAsked")
	l.stations[vip] = holderMAC
	now := l.now
	l.round()
	l.expect("after the first round", "True Answered")
	if l.now != now {
		t.Errorf("asked %s later", l.now.Sub(now))
	}
}

// A new process begins with what the last one has reported, and with all questions.
func TestAskerBeginsWithReport(t *testing.T) {
	l := newLink(t, askingOf(3, "node1 node3", vip))
	l.runFor(time.Minute)
	delete(l.stations, vip)
	delete(l.stations, holderAddr)
	l.runFor(10 * time.Minute)
	l.expect("before", "False HolderSilent")
	l.writes, l.asker = 0, reach.New()
	l.set(l.ann)
	l.runFor(10 * time.Minute)
	l.expect("after", "False HolderSilent")
	if l.writes != 0 {
		t.Errorf("%d writes though nothing has changed", l.writes)
	}
}

// However many addresses there are, a round asks for few, and each has its round.
func TestAskerPacesRounds(t *testing.T) {
	var anns []v1.Announcement
	const count = 250
	for i := range count {
		anns = append(anns, *askingOf(1, "node1", fmt.Sprintf("198.51.100.%d", i)))
	}
	asker, now := reach.New(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	asker.SetTargets(reach.Targets(anns, "node1", func(string, netip.Addr) bool { return true }), now)
	seen := map[reach.Key]bool{}
	for range count / 50 {
		due, questions := asker.BeginRound(now)
		answers := map[reach.Key]reach.Answer{}
		for _, q := range questions {
			answers[q.Key] = reach.Answer{MAC: holderMAC}
		}
		for _, key := range due {
			seen[key] = true
		}
		if len(questions) > 50 {
			t.Errorf("%d questions in a round", len(questions))
		}
		asker.EndRound(due, answers, now)
	}
	if len(seen) != count {
		t.Errorf("%d of %d addresses were asked for", len(seen), count)
	}
}

func TestTargets(t *testing.T) {
	older, newer := askingOf(3, "node1 node3 node4", vip, "2001:db8::1"), askingOf(4, "node3 node1", vip)
	newer.Status.Reachability = []v1.Reachability{{Address: vip, Epoch: 4, Reachable: metav1.ConditionTrue}}
	addr := netip.MustParseAddr
	hasSenderFor := func(iface string, a netip.Addr) bool { return iface == "eth0" && a != addr("192.0.2.14") }
	want := map[reach.Key]reach.Target{
		{Interface: "eth0", Addr: addr(vip)}: {
			Holder: "node2", HolderMACs: []string{holderMAC}, Epoch: 4, Turn: 1, Turns: 2, HolderAddr: addr(holderAddr),
			WitnessAddrs: []netip.Addr{addr(witnessAddr)}, Stored: newer.Status.Reachability[0],
		},
		{Interface: "eth0", Addr: addr("2001:db8::1")}: {
			Holder: "node2", HolderMACs: []string{holderMAC}, Epoch: 3, Turn: 0, Turns: 3, HolderAddr: addr("fe80::2"),
			WitnessAddrs: []netip.Addr{addr("fe80::3"), addr("fe80::4")},
		},
	}
	for _, anns := range [][]v1.Announcement{{*older, *newer}, {*newer, *older}} {
		got := reach.Targets(anns, "node1", hasSenderFor)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("targets (-want +got):\n%s", diff)
		}
	}
}
