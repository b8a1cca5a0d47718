package check

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

const (
	mac1, mac2 = "02:00:00:77:00:11", "02:00:00:77:00:12"
	period     = 100 * time.Millisecond
)

var (
	addr  = netip.MustParseAddr("10.77.0.100")
	begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	calm  = Weather{Able: []string{"node1", "node2"}}
)

func newWatch() *Watch {
	return NewWatch(map[string]string{mac1: "node1", mac2: "node2"})
}

// answer plays the answers of macs for a time.
func answer(w *Watch, begin time.Time, d time.Duration, weather Weather, macs ...string) time.Time {
	for at := begin; at.Before(begin.Add(d)); at = at.Add(period) {
		w.Answered(at, addr, macs, period, weather)
	}
	return begin.Add(d)
}

func expect(t *testing.T, w *Watch, parts ...string) {
	t.Helper()
	if len(parts) == 0 && len(w.Violations()) > 0 {
		t.Errorf("violations: %v", w.Violations())
	}
	for _, part := range parts {
		if !strings.Contains(strings.Join(w.Violations(), "\n"), part) {
			t.Errorf("violations are %q, want one with %q", w.Violations(), part)
		}
	}
}

func TestTwoHolders(t *testing.T) {
	for _, c := range []struct {
		name    string
		d       time.Duration
		weather Weather
		bad     bool
	}{
		{"a handover", 200 * time.Millisecond, calm, false},
		{"two holders", 1500 * time.Millisecond, calm, true},
		{"a node returns", 3 * time.Second, Weather{Cut: []string{"node1"}}, false},
		{"a node returns and does not yield", 5 * time.Second, Weather{Cut: []string{"node1"}}, true},
		{"another node was cut off", 2 * time.Second, Weather{Cut: []string{"node3"}}, true},
		{"two holders on a busy machine", 1500 * time.Millisecond, Weather{Late: 100 * time.Millisecond}, false},
		{"two holders on a machine that stands still", 7 * time.Second, Weather{Late: time.Hour}, true},
		{"an agent is away", 300 * time.Second, Weather{Deaf: []string{"node2"}}, false},
		{"an agent is away and the address does not fade", 340 * time.Second, Weather{Deaf: []string{"node2"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch()
			answer(w, begin, c.d, c.weather, mac1, mac2)
			if c.bad {
				expect(t, w, "node1 and node2 answered for 10.77.0.100")
			} else {
				expect(t, w)
			}
		})
	}
}

// Handovers one after the other do not add up, but a flapping pair does.
func TestTwoHoldersInEpisodes(t *testing.T) {
	w := newWatch()
	at := begin
	for range 20 {
		at = answer(w, at, 200*time.Millisecond, calm, mac1, mac2)
		at = answer(w, at, 15*time.Second, calm, mac1)
	}
	expect(t, w)
	for range 20 {
		at = answer(w, at, 200*time.Millisecond, calm, mac1, mac2)
		at = answer(w, at, time.Second, calm, mac1)
	}
	expect(t, w, "node1 and node2 answered")
}

func TestStrangersDoNotCount(t *testing.T) {
	w := newWatch()
	answer(w, begin, 10*time.Second, calm, mac1, "02:00:00:77:00:50")
	expect(t, w)
}

func TestSilence(t *testing.T) {
	cut := Weather{Cut: []string{"node1"}, Able: []string{"node1", "node2"}}
	claimed := Weather{Cut: cut.Cut, Able: cut.Able, Watched: true}
	for _, c := range []struct {
		name    string
		settled bool
		d       time.Duration
		weather Weather
		bad     bool
	}{
		{"for a moment", true, time.Second, calm, false},
		{"nobody answers", true, 3 * time.Second, calm, true},
		{"an address that may have been released", false, time.Minute, calm, false},
		{"nobody answers, though the API server is only away", true, 3 * time.Second, Weather{NoDecisions: true}, true},
		{"a failover", true, 10 * time.Second, cut, false},
		{"no failover", true, 30 * time.Second, cut, true},
		{"nobody decides", true, time.Minute, Weather{Cut: cut.Cut, Able: cut.Able, NoDecisions: true}, false},
		{"no other node", true, time.Minute, Weather{Cut: cut.Cut, Able: []string{"node1"}, Watched: true}, false},
		{"a claim", true, 2 * time.Second, claimed, false},
		{"no claim, though a manager could decide", true, 4 * time.Second, claimed, true},
		{"no claim, and nobody decides", true, 4 * time.Second,
			Weather{Cut: cut.Cut, Able: cut.Able, Watched: true, NoDecisions: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch()
			if c.settled {
				w.Settle(addr)
			}
			answer(w, begin, c.d, c.weather)
			if c.bad {
				expect(t, w, "nobody answers for 10.77.0.100")
			} else {
				expect(t, w)
			}
		})
	}
}

func TestLostAddress(t *testing.T) {
	other := netip.MustParseAddr("10.77.0.101")
	w := newWatch()
	w.Ingress(begin, "s1", nil)
	w.Ingress(begin, "s1", []netip.Addr{addr})
	w.Ingress(begin, "s1", []netip.Addr{addr, other})
	expect(t, w)
	w.Edited("s1")
	w.Ingress(begin, "s1", []netip.Addr{other})
	expect(t, w)
	w.Pin("s1", []netip.Addr{other})
	w.Ingress(begin, "s1", []netip.Addr{addr})
	expect(t, w, "s1 has lost 10.77.0.101")
}

func TestMissingVirtual(t *testing.T) {
	w := newWatch()
	play := func(n int, weather Weather) {
		for range n {
			w.Holds(begin, "node1", addr, false, time.Second, weather)
		}
	}
	play(5, calm)
	w.Holds(begin, "node1", addr, true, time.Second, calm)
	play(5, calm)
	play(60, Weather{Cut: []string{"node1"}})
	expect(t, w)
	play(6, calm)
	expect(t, w, "node1 is without 10.77.0.100")
}

func TestLog(t *testing.T) {
	const prefix = "2026-11-22T12:00:00.000000001Z stderr F "
	e := &Errors{}
	e.Line(begin, "agent/x", prefix+`{"level":"info","msg":"hello"}`, true)
	e.Line(begin, "agent/x", prefix+`{"level":"error","msg":"The Lease is not renewed","error":"timeout"}`, false)
	if len(e.Violations()) != 0 || e.Counts["agent: The Lease is not renewed"] != 1 {
		t.Errorf("violations %v, counts %v", e.Violations(), e.Counts)
	}
	e.Line(begin, "agent/x", prefix+`{"level":"error","msg":"The Lease is not renewed","error":"timeout"}`, true)
	e.Line(begin, "agent/x", prefix+"panic: runtime error: index out of range", false)
	e.Line(begin, "agent/x", prefix+`{"level":"error","msg":"Observed a panic","error":"x"}`, false)
	if len(e.Violations()) != 3 {
		t.Errorf("violations: %v", e.Violations())
	}
}
