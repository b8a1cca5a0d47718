package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// TestDefenceHistories plays random frames to a listener that holds some addresses. At all times:
// an address is yielded only to a station that was asked by itself and has answered, by an agent
// that does not defend the address, and never to a gateway; a yielded address is not held; claims
// keep their gap; what is remembered is bounded; and the same history leads to the same reactions.
func TestDefenceHistories(t *testing.T) {
	t.Parallel()
	yields := 0
	for seed := range uint64(10) {
		first, n := playDefence(t, seed)
		again, _ := playDefence(t, seed)
		if !reflect.DeepEqual(first, again) {
			t.Errorf("seed %d: the same history leads to other reactions", seed)
		}
		yields += n
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if yields == 0 {
		t.Error("no history has a yield: it shows nothing")
	}
}

func playDefence(t *testing.T, seed uint64) (reactions []string, yields int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 2))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const gateway, previous = "02:00:00:00:00:fe", "02:00:00:00:00:01"
	stations := []string{gateway, previous, "02:00:00:00:00:02", "02:00:00:00:00:03"}
	for i := range 2 * MaxAnswerers {
		stations = append(stations, fmt.Sprintf("02:00:00:00:01:%02x", i))
	}
	d := NewDefence()
	var held []Held
	for i := range 4 {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)}), 32)
		held = append(
			held,
			Held{
				Address: Address{Interface: "eth0", Prefix: prefix, IsOurs: true}, Epoch: 1, IsUndefended: i == 3,
				PreviousMACs: []string{previous},
			},
		)
	}
	d.NoteAdded(&Desired{Addr: held[0].Prefix.Addr(), PreviousMACs: []string{previous}}, now)
	d.SetHeld(held)
	var checks []*Check
	claimedAt := map[netip.Addr]time.Time{}
	wasAsked := map[string]time.Time{} // by address and station
	for range 3000 {
		now = now.Add(time.Duration(random.IntN(40)) * time.Millisecond)
		isFresh := now.Second()%20 < 10
		h := held[random.IntN(len(held))]
		addr := h.Prefix.Addr()
		switch random.IntN(10) {
		case 0:
			d.NoteHeldAsked(addr, now)
			continue
		case 1:
			d.SetHeld(held)
			continue
		case 2, 3:
			if len(checks) == 0 {
				continue
			}
			i := random.IntN(len(checks))
			step := d.AdvanceCheck(checks[i], now)
			if step.Ask {
				wasAsked[checks[i].Addr.String()+checks[i].MAC] = now
			}
			if step.Next == 0 {
				checks = slices.Delete(checks, i, i+1)
			}
			continue
		}
		mac := stations[random.IntN(len(stations))]
		if random.IntN(2) == 0 {
			mac = stations[random.IntN(4)]
		}
		f := Frame{
			Addr: addr, MAC: mac, IsRequest: random.IntN(3) == 0, IsGratuitous: random.IntN(3) == 0,
			IsDirect: random.IntN(2) == 0,
		}
		r := d.Hear("eth0", f, isFresh, mac == gateway, now)
		reactions = append(
			reactions,
			fmt.Sprintf(
				"%s %s claim %v yield %q check %v new rival %q", addr, mac, r.Announce, r.YieldToMAC, r.Check != nil, r.NewRivalMAC,
			),
		)
		if r.Check != nil {
			checks = append(checks, r.Check)
		}
		if r.Announce && now.Sub(claimedAt[addr]) < repeatGap {
			t.Errorf("%s is claimed %s after the last time", addr, now.Sub(claimedAt[addr]))
		}
		if r.Announce {
			claimedAt[addr] = now
		}
		if r.YieldToMAC != "" {
			yields++
			askedAt, isAsked := wasAsked[addr.String()+mac]
			if !isAsked || now.Sub(askedAt) > CheckWindow || f.IsGratuitous || f.IsRequest || isFresh && !h.IsUndefended ||
				mac == gateway {
				t.Errorf("%s is yielded to %s: %+v, fresh %v", addr, mac, f, isFresh)
			}
			if _, isHeld := d.Held[addr]; isHeld {
				t.Errorf("%s is yielded and held", addr)
			}
			if _, isAllowed := d.AllowChange(&Desired{Addr: addr, Epoch: 1}, false, now); isAllowed {
				t.Errorf("%s may be added unasked", addr)
			}
			d.UpdateYields(nil)
			d.SetHeld(held)
		}
		for watchedAddr, w := range d.HeldStates {
			if len(w.LastAnswerByMAC) > MaxAnswerers || len(w.Checks) > MaxChecks {
				t.Errorf("of %s %d stations are remembered, and %d asked", watchedAddr, len(w.LastAnswerByMAC), len(w.Checks))
			}
		}
	}
	return reactions, yields
}
