package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// begin is when the tests of the listener begin.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// MACs of stations.
const (
	stranger      = "02:00:00:00:00:0a"
	otherStranger = "02:00:00:00:00:0b"
	gateway       = "02:00:00:00:00:fe"
	previous      = "02:00:00:00:00:01"
)

var heldAddr = netip.MustParseAddr("192.0.2.1")

// heldOn is an address that the node holds under epoch 3.
func heldOn(iface string, addr netip.Addr, edit ...func(*Held)) Held {
	h := Held{Address: Address{Interface: iface, Prefix: netip.PrefixFrom(addr, addr.BitLen()), IsOurs: true}, Epoch: 3}
	for _, e := range edit {
		e(&h)
	}
	return h
}

func isUndefended(h *Held) { h.IsUndefended = true }
func hasPrevious(h *Held)  { h.PreviousMACs = []string{previous} }

// holding is the Defence of an agent that holds addresses.
func holding(held ...Held) *Defence {
	d := NewDefence()
	d.SetHeld(held)
	return d
}

// Frames about heldAddr.
func announcementOf(mac string) Frame { return Frame{Addr: heldAddr, MAC: mac, IsGratuitous: true} }
func answerOf(mac string) Frame       { return Frame{Addr: heldAddr, MAC: mac, IsDirect: true} }
func requestOf(mac string) Frame      { return Frame{Addr: heldAddr, MAC: mac, IsRequest: true} }

const fresh, notFresh = true, false

// hear lets the agent hear a frame by eth0, of a station that is no gateway.
func hear(d *Defence, f Frame, isFresh bool, after time.Duration) Reaction {
	return d.Hear("eth0", f, isFresh, false, begin.Add(after))
}

// hearAnswer lets the agent hear an answer to a question that it asked the whole link.
func hearAnswer(d *Defence, mac string, isFresh bool, after time.Duration) Reaction {
	d.NoteHeldAsked(heldAddr, begin.Add(after))
	return hear(d, answerOf(mac), isFresh, after)
}

func nth(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i / 256), byte(i)}) }

func TestHoldKeepsWhatWasHeard(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	d.NoteHeldAsked(heldAddr, begin)
	d.NoteAdded(&Desired{Addr: heldAddr}, begin)
	d.NoteHeldAsked(nth(1), begin) // not held: of no interest
	d.SetHeld([]Held{heldOn("eth0", heldAddr), heldOn("eth0", nth(2))})
	if w := d.HeldStates[heldAddr]; w == nil || !w.AskedAt.Equal(begin) || !w.AddedAt.Equal(begin) {
		t.Errorf("what was heard of an address that is still held: %+v", w)
	}
	if len(d.HeldStates) != 2 || d.HeldStates[nth(2)] == nil {
		t.Errorf("%d addresses are watched, want the 2 that are held", len(d.HeldStates))
	}
	d.SetHeld(nil)
	if len(d.HeldStates) != 0 || len(d.AllHeld()) != 0 {
		t.Errorf("nothing is held, and %d are watched, %d held", len(d.HeldStates), len(d.AllHeld()))
	}
}

func TestYieldedIsNotHeldUnderItsEpoch(t *testing.T) {
	t.Parallel()
	for epoch, isHeld := range map[int64]bool{2: false, 3: false, 4: true} {
		d := NewDefence()
		d.NoteYield(heldOn("eth0", heldAddr), stranger, begin)
		d.SetHeld([]Held{heldOn("eth0", heldAddr, func(h *Held) { h.Epoch = epoch }), heldOn("eth0", nth(1))})
		if _, got := d.Held[heldAddr]; got != isHeld {
			t.Errorf("yielded under epoch 3, and held under epoch %d: %v", epoch, got)
		}
		if _, isOtherHeld := d.Held[nth(1)]; !isOtherHeld {
			t.Error("an address after the yielded one is not held")
		}
	}
}

func TestListenerListensWhereItMatters(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	d.NoteYield(heldOn("eth1", nth(1)), stranger, begin)
	d.NoteYield(heldOn("eth2", nth(2), isUndefended), stranger, begin) // is not claimed again
	if diff := cmp.Diff(map[string]bool{"eth0": true, "eth1": true}, d.ListenInterfaces()); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	for addr, want := range map[netip.Addr]bool{heldAddr: true, nth(1): true, nth(2): true, nth(3): false} {
		if got := d.IsListenedFor(addr); got != want {
			t.Errorf("%s is watched: %v", addr, got)
		}
	}
}

// The kernel of a previous holder may go on answering until the address has faded from it.
func TestPreviousHolderIsAskedForAWhile(t *testing.T) {
	t.Parallel()
	add := func(previousMACs ...string) *Defence {
		d := holding(heldOn("eth0", heldAddr, hasPrevious))
		d.NoteAdded(&Desired{Addr: heldAddr, PreviousMACs: previousMACs}, begin)
		return d
	}
	for _, c := range []struct {
		name    string
		defence *Defence
		after   time.Duration
		want    int
	}{
		{"just added", add(previous), 0, 1},
		{"added nearly five minutes ago", add(previous), 300*time.Second - 1, 1},
		{"added five minutes ago", add(previous), 300 * time.Second, 0},
		{"added without a previous holder", add(), 0, 0},
	} {
		if got := len(c.defence.HeldWithPreviousHolder(begin.Add(c.after))); got != c.want {
			t.Errorf("%s: asks for %d addresses, want %d", c.name, got, c.want)
		}
	}
	d := add(previous)
	d.SetHeld([]Held{heldOn("eth0", heldAddr, hasPrevious, isUndefended)})
	if len(d.HeldWithPreviousHolder(begin)) != 0 {
		t.Error("asks for an address that the previous holder may be getting back")
	}
}

func TestStatements(t *testing.T) {
	t.Parallel()
	v6 := netip.MustParseAddr("2001:db8::1")
	const advertisement, gratuitous, direct, request = 1, 2, 4, 8
	frame := func(addr netip.Addr, is int) Frame {
		return Frame{
			Addr: addr, IsAdvertisement: is&advertisement > 0, IsGratuitous: is&gratuitous > 0, IsDirect: is&direct > 0,
			IsRequest: is&request > 0,
		}
	}
	d := NewDefence()
	d.NodeAddresses = []Address{on("eth0", "192.0.2.11/24", notOurs), on("eth1", "2001:db8::11/64", notOurs)}
	for _, c := range []struct {
		name  string
		iface string
		frame Frame
		after time.Duration // since the question
		want  Statement
	}{
		{"an ARP reply", "eth0", frame(heldAddr, direct), time.Second, StatementAnswer},
		{"an ARP reply, too late", "eth0", frame(heldAddr, direct), time.Second + 1, StatementUse},
		{"an ARP reply to all", "eth0", frame(heldAddr, 0), 0, StatementUse},
		{"an ARP request for this node", "eth0", frame(heldAddr, request|direct), 0, StatementUse},
		{"an ARP announcement", "eth0", frame(heldAddr, gratuitous), 0, StatementAnnouncement},
		{"an ARP announcement for this node", "eth0", frame(heldAddr, gratuitous|direct), 0, StatementAnnouncement},
		{"an advertisement for this node", "eth0", frame(v6, advertisement|direct), time.Second, StatementAnswer},
		{"an advertisement for this node, too late", "eth0", frame(v6, advertisement|direct), 2 * time.Second, StatementUse},
		{
			"an advertisement for all after a question without a sender", "eth0", frame(v6, advertisement|gratuitous),
			250 * time.Millisecond, StatementAnswer,
		},
		{
			"an advertisement for all, too late", "eth0", frame(v6, advertisement|gratuitous), 250*time.Millisecond + 1,
			StatementAnnouncement,
		},
		{
			"an advertisement for all after a question with a sender", "eth1", frame(v6, advertisement|gratuitous), 0,
			StatementAnnouncement,
		},
	} {
		if got := d.statementOf(c.iface, c.frame, begin, begin.Add(c.after)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// The agent renews its Lease because of a claim, and not because of what it does not take for one.
func TestContested(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[Verdict]bool{
		Ignore: false, Repeat: false, Defend: true, CheckClaim: true, Remember: false, Suspect: false, Yield: false,
	} {
		d := holding(heldOn("eth0", heldAddr))
		if r := d.reactionTo(verdict, d.Held[heldAddr], d.HeldStates[heldAddr], stranger, begin); r.IsContested != want {
			t.Errorf("%s: contested %t", verdict, r.IsContested)
		}
	}
}

func TestDefenceKeepsItsInterval(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {10*time.Second - 1, false}, {10 * time.Second, true}, {11 * time.Second, false}} {
		if r := hear(d, announcementOf(stranger), fresh, c.after); r.Announce != c.want {
			t.Errorf("after %s: defends %v, want %v", c.after, r.Announce, c.want)
		}
	}
}

func TestClaimIsRepeatedAgainstThePreviousHolder(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr, hasPrevious))
	d.NoteAdded(&Desired{Addr: heldAddr, PreviousMACs: []string{previous}}, begin)
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Second - 1, false}, {time.Second, true}} {
		r := hear(d, requestOf(previous), fresh, c.after)
		if r.Announce != c.want || r.NewRivalMAC != "" || r.Check != nil {
			t.Errorf("after %s: %+v, want Claim %v and nothing else", c.after, r, c.want)
		}
	}
	// What the agent knew while it was fresh still counts when it is not.
	if r := hear(d, requestOf(previous), notFresh, 5*time.Second); !r.Announce || r.Check != nil {
		t.Errorf("not fresh any more: %+v, want a Claim", r)
	}
	if r := d.Hear("eth0", requestOf(previous), fresh, true, begin.Add(10*time.Second)); !r.Announce {
		t.Errorf("the previous holder is the gateway: %+v, want a Claim", r)
	}
	if r := d.Hear("eth0", answerOf(previous), notFresh, true, begin.Add(12*time.Second)); !r.Announce {
		t.Errorf("the previous holder is the gateway, and the agent is not fresh: %+v, want a Claim", r)
	}
	if r := hear(d, requestOf(stranger), fresh, 20*time.Second); r.NewRivalMAC != stranger {
		t.Errorf("a stranger claims the address meanwhile: %+v", r)
	}
	if r := hear(d, requestOf(previous), fresh, 300*time.Second); r.NewRivalMAC != previous {
		t.Errorf("the previous holder after five minutes: %+v, want that it is a new rival", r)
	}
}

// However many addresses stations claim, the agent claims no more than 200 in a second.
func TestAttackClaimsAreBounded(t *testing.T) {
	t.Parallel()
	var all []Held
	for i := range 201 {
		all = append(all, heldOn("eth0", nth(i)))
	}
	d := holding(all...)
	claims, logs := 0, 0
	for i := range all {
		r := hear(d, Frame{Addr: nth(i), MAC: stranger, IsGratuitous: true}, fresh, 0)
		if r.Announce {
			claims++
		}
		if r.MayLog {
			logs++
		}
	}
	if claims != 200 || logs != 50 {
		t.Errorf("%d claims and %d log lines, want 200 and 50", claims, logs)
	}
	if r := hear(d, Frame{Addr: nth(200), MAC: stranger, IsGratuitous: true}, fresh, time.Second); !r.Announce {
		t.Error("the address that was not claimed counts as claimed")
	}
}

func TestRivals(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr), heldOn("eth0", nth(1)))
	for _, c := range []struct {
		name     string
		mac      string
		after    time.Duration
		newRival string        // reported now
		rival    string        // in the status
		left     time.Duration // in the status, from now
	}{
		{"first claim", stranger, 0, stranger, stranger, 30 * time.Second},
		{"again", stranger, 5 * time.Second, "", stranger, 30 * time.Second},
		{"another, too soon to be reported", otherStranger, 10*time.Second - 1, "", stranger, 25*time.Second + 1},
		{"another", otherStranger, 10 * time.Second, otherStranger, otherStranger, 30 * time.Second},
		{"goes on", otherStranger, 40 * time.Second, "", otherStranger, 30 * time.Second},
		{"begins again after silence", otherStranger, 70*time.Second + 1, otherStranger, otherStranger, 30 * time.Second},
	} {
		r := hear(d, announcementOf(c.mac), fresh, c.after)
		if r.NewRivalMAC != c.newRival || r.MayLog != (c.newRival != "") {
			t.Errorf("%s: reports %q, may log %v, want %q", c.name, r.NewRivalMAC, r.MayLog, c.newRival)
		}
		want := map[netip.Addr]Rival{heldAddr: {MAC: c.rival, Left: c.left}}
		if diff := cmp.Diff(want, d.Rivals(begin.Add(c.after)), compareDecisions); diff != "" {
			t.Errorf("%s: rivals (-want +got):\n%s", c.name, diff)
		}
	}
	last := 70*time.Second + 1
	if got := d.Rivals(begin.Add(last + 30*time.Second - 1)); got[heldAddr].Left != 1 {
		t.Errorf("after nearly 30 s: %+v", got)
	}
	if got := d.Rivals(begin.Add(last + 30*time.Second)); len(got) > 0 {
		t.Errorf("after 30 s: %+v", got)
	}
}

func TestFramesByOtherInterfacesDoNotMatter(t *testing.T) {
	t.Parallel()
	d := holding(heldOn("eth0", heldAddr))
	if r := d.Hear("eth1", announcementOf(stranger), fresh, false, begin); r.Announce || r.NewRivalMAC != "" {
		t.Errorf("by another interface: %+v", r)
	}
	if r := hear(d, announcementOf(stranger), fresh, 0); !r.Announce || r.NewRivalMAC == "" || r.Held.Epoch != 3 {
		t.Errorf("by its interface: %+v", r)
	}
}
