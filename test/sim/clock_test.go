package sim

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// A clock is as fast as it is to be, stands still while it is stopped, and jumps at no change of its rate.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, c := time.Now(), newClock()
		expect := func(want time.Duration) {
			t.Helper()
			if got := c.Now().Sub(begin).Round(time.Microsecond); got != want {
				t.Errorf("the clock says %s, want %s", got, want)
			}
		}
		time.Sleep(time.Second)
		c.SetRate(1.02)
		expect(time.Second)
		time.Sleep(c.wait(time.Second))
		expect(2 * time.Second)
		c.stop()
		time.Sleep(time.Minute)
		expect(2 * time.Second)
		c.start()
		time.Sleep(10 * time.Second)
		expect(12200 * time.Millisecond)
		if got := c.suspendedFor(); got != 61200*time.Millisecond {
			t.Errorf("stood still for %s", got)
		}
		if wrong := (dated{nil, &Clock{Offset: -time.Hour}}).date(
			[]byte(`{"a":"2026-01-01T00:30:00.000001Z","b":"2026-01-01T01:00:00Z"}`),
		); string(wrong) != `{"a":"2025-12-31T23:30:00.000001Z","b":"2026-01-01T00:00:00Z"}` {
			t.Errorf("dated %s", wrong)
		}
	})
}

// The machine of a holder sleeps, and another node gets the address. The holder wakes, by whose clock no time has
// passed, cannot reach the API server, and hears the other node claim the address: it yields.
func TestClaimHeardAfterSleep(t *testing.T) {
	playScenario(t, 3, func(t *testing.T, h *History) {
		h.create(Service{Group: GroupLocal, Families: []corev1.IPFamily{corev1.IPv4Protocol}})
		h.Run(10 * time.Second)
		var addr netip.Addr
		for a := range h.laws.owners {
			addr = a
		}
		old := h.HoldersOf(addr)[0]
		h.begin(h.laws.unreached, "asleep", []*Node{old}, doing(func() { h.Sleep(old) }), doing(func() {}))
		h.Run(20 * time.Second)
		now := h.HoldersOf(addr)
		if len(now) != 1 || now[0] == old {
			t.Fatalf("held by %v", namesOf(now))
		}
		old.SetCut(true)
		h.Wake(old)
		h.Run(time.Millisecond)
		frame, err := neigh.GratuitousARP(now[0].NICs[0].MAC, addr)
		if err != nil {
			t.Fatal(err)
		}
		now[0].NICs[0].port.Send(frame)
		h.Run(100 * time.Millisecond)
		if after := h.HoldersOf(addr); len(after) != 1 || after[0] != now[0] {
			t.Errorf("held by %v", namesOf(after))
		}
		old.SetCut(false)
	})
}
