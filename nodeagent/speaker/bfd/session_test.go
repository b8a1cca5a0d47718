package bfd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

const (
	mine, theirs = 11, 22
	// fast is an interval that only a session that is Up has.
	fast = 100 * time.Millisecond
)

var (
	settings = bfd.Settings{Interval: fast, Multiplier: 3}
	begin    = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
)

// half is a random number in the middle.
func half() float64 { return 0.5 }

// heard is a packet of the neighbour, with more said by change.
func heard(state bfd.State, yours uint32, change ...func(*bfd.Packet)) bfd.Packet {
	p := bfd.Packet{
		State: state, MyDiscriminator: theirs, YourDiscriminator: yours, Multiplier: 3,
		DesiredMinTx: time.Second, RequiredMinRx: fast,
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// sessionIn returns a session that has come to a state, at begin.
func sessionIn(state bfd.State) *bfd.Session {
	s := bfd.New(settings, mine, half)
	switch state {
	case bfd.AdminDown:
		s.Stop()
	case bfd.Init:
		s.Receive(heard(bfd.Down, 0), begin)
	case bfd.Up:
		s.Receive(heard(bfd.Init, mine), begin)
	}
	s.Advance(begin)
	return s
}

// TestReceive has each state and each packet of section 6.8.6 of RFC 5880: what the neighbour's session is
// in, and whether it says that it hears this one, another one, or none. Packets of Init and Up without a
// discriminator are not packets: TestParse. This test shows the row "it, or somebody else, sends any BFD packets" of
// docs/trust.md.
func TestReceive(t *testing.T) {
	const other = 99
	type outcome struct {
		next    bfd.State
		because bfd.Diagnostic
		failed  bool
		answers bool
	}
	stays := func(s bfd.State) outcome {
		because := bfd.NoDiagnostic
		if s == bfd.AdminDown {
			because = bfd.AdministrativelyDown
		}
		return outcome{next: s, because: because}
	}
	begins, isUp := outcome{next: bfd.Init, answers: true}, outcome{next: bfd.Up, answers: true}
	ends := outcome{next: bfd.Down, because: bfd.NeighbourSignalsDown, answers: true}
	fails := ends
	fails.failed = true
	states := []bfd.State{bfd.AdminDown, bfd.Down, bfd.Init, bfd.Up}
	table := map[bfd.State]map[bfd.State]outcome{ // by the packet's state, and the session's
		bfd.AdminDown: {bfd.Down: stays(bfd.Down), bfd.Init: ends, bfd.Up: ends},
		bfd.Down:      {bfd.Down: begins, bfd.Init: stays(bfd.Init), bfd.Up: fails},
		bfd.Init:      {bfd.Down: isUp, bfd.Init: isUp, bfd.Up: stays(bfd.Up)},
		bfd.Up:        {bfd.Down: stays(bfd.Down), bfd.Init: isUp, bfd.Up: stays(bfd.Up)},
	}
	for _, before := range states {
		for _, state := range states {
			for _, yours := range []uint32{0, mine, other} {
				if yours == 0 && state >= bfd.Init {
					continue
				}
				want, found := table[state][before]
				if !found || yours == other {
					want = stays(before)
				}
				s := sessionIn(before)
				got := s.Receive(heard(state, yours), begin)
				if s.State() != want.next || s.Diagnostic() != want.because || got.HasFailed != want.failed ||
					got.HasChanged != (before != want.next) || (got.Send != nil) != want.answers {
					t.Errorf("%s hears %s for %d: now %s (%d), %+v; want %+v",
						before, state, yours, s.State(), s.Diagnostic(), got, want)
				}
				if sent := got.Send; sent != nil &&
					(sent.State != want.next || sent.YourDiscriminator != theirs || sent.MyDiscriminator != mine) {
					t.Errorf("%s hears %s for %d: sends %+v", before, state, yours, got.Send)
				}
			}
		}
	}
}

// TestFailure has what a neighbour whose session is down says of the reason, to a session that is up.
func TestFailure(t *testing.T) {
	for diagnostic := range bfd.Diagnostic(32) {
		s := sessionIn(bfd.Up)
		want := diagnostic != bfd.NeighbourSignalsDown // this side has not
		got := s.Receive(heard(bfd.Down, mine, func(p *bfd.Packet) { p.Diagnostic = diagnostic }), begin)
		if got.HasFailed != want || s.State() != bfd.Down {
			t.Errorf("diagnostic %d: failed: %t, %s", diagnostic, got.HasFailed, s.State())
		}
	}
}

// A neighbour that makes its session anew has another discriminator.
func TestNeighbourBeginsAnew(t *testing.T) {
	anew := heard(bfd.Down, 0, func(p *bfd.Packet) { p.MyDiscriminator = 33 })
	for _, before := range []bfd.State{bfd.Down, bfd.Init, bfd.Up} {
		s := sessionIn(before)
		got := s.Receive(anew, begin)
		if got.HasFailed {
			t.Errorf("%s: it counts as a failure", before)
		}
		if before == bfd.Up && (s.State() != bfd.Down || got.Send == nil || got.Send.State != bfd.Down) {
			t.Errorf("%s: then %s, and sends %+v", before, s.State(), got.Send)
		}
		s.Receive(anew, begin)
		init := anew
		init.State, init.YourDiscriminator = bfd.Init, mine
		if got = s.Receive(init, begin); s.State() != bfd.Up || got.Send == nil || got.Send.YourDiscriminator != 33 {
			t.Errorf("%s: in the end %s, and sends %+v", before, s.State(), got.Send)
		}
	}
}

// TestSilence lets neighbours be silent, and wants to know when that counts.
func TestSilence(t *testing.T) {
	for _, row := range []struct {
		name  string
		state bfd.State
		says  func(*bfd.Packet)
		after time.Duration
	}{
		{"the neighbour is slower", bfd.Up, func(p *bfd.Packet) { p.DesiredMinTx = 2 * time.Second }, 6 * time.Second},
		{"the neighbour would be faster", bfd.Up, func(p *bfd.Packet) { p.DesiredMinTx = fast / 2 }, 3 * fast},
		{"the neighbour allows more losses", bfd.Up, func(p *bfd.Packet) { p.DesiredMinTx, p.Multiplier = fast, 7 },
			7 * fast},
		{"not up yet", bfd.Init, func(p *bfd.Packet) { p.DesiredMinTx = fast }, 3 * fast},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := sessionIn(row.state)
			yours, at := uint32(mine), begin.Add(time.Minute)
			state := bfd.Up
			if row.state == bfd.Init {
				yours, state = 0, bfd.Down
			}
			for range 2 {
				s.Receive(heard(state, yours, row.says), at)
			}
			if o := s.Advance(at.Add(row.after - 1)); o.HasChanged || s.State() != row.state {
				t.Fatalf("too early: %s", s.State())
			}
			o := s.Advance(at.Add(row.after))
			if !o.HasChanged || o.HasFailed != (row.state == bfd.Up) || s.State() != bfd.Down ||
				s.Diagnostic() != bfd.DetectionTimeExpired {
				t.Fatalf("%s (%d), %+v", s.State(), s.Diagnostic(), o)
			}
			want := bfd.Packet{
				State: bfd.Down, Diagnostic: bfd.DetectionTimeExpired, MyDiscriminator: mine, Multiplier: 3,
				DesiredMinTx: time.Second, RequiredMinRx: fast,
			}
			if diff := cmp.Diff(&want, o.Send); diff != "" {
				t.Errorf("what it says then (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a neighbour becomes faster, and says so before", func(t *testing.T) {
		s, now := sessionIn(bfd.Up), begin
		faster := func(p *bfd.Packet) { p.DesiredMinTx = fast }
		for _, step := range []struct {
			says func(*bfd.Packet)
			wait time.Duration
		}{
			{func(p *bfd.Packet) { p.DesiredMinTx, p.Final = fast, true }, 3 * time.Second},
			{faster, 3 * time.Second},
			{faster, 3 * fast},
			{func(p *bfd.Packet) { p.DesiredMinTx = 4 * fast }, 12 * fast},
			{func(p *bfd.Packet) { p.DesiredMinTx, p.Final = 6*fast, true }, 18 * fast},
			{faster, 12 * fast},
			{faster, 3 * fast},
		} {
			s.Receive(heard(bfd.Up, mine, step.says), now)
			now = now.Add(step.wait - 1)
			if o := s.Advance(now); o.HasChanged {
				t.Fatalf("it fails before %v", step.wait)
			}
		}
		if o := s.Advance(now.Add(1)); !o.HasFailed {
			t.Fatal("it does not fail")
		}
	})
	t.Run("a neighbour that was AdminDown is forgotten", func(t *testing.T) {
		s := sessionIn(bfd.Down)
		s.Receive(heard(bfd.AdminDown, 0, func(p *bfd.Packet) { p.RequiredMinRx = 0 }), begin)
		if got, want := s.Deadline(), begin.Add(3*time.Second); !got.Equal(want) {
			t.Fatalf("deadline %v", got.Sub(begin))
		}
		if o := s.Advance(begin.Add(3 * time.Second)); o.HasChanged || o.Send == nil || o.Send.YourDiscriminator != 0 {
			t.Errorf("%+v", o)
		}
	})
}

// TestPace wants to know how long a session waits between its packets.
func TestPace(t *testing.T) {
	number := func(n float64) func() float64 { return func() float64 { return n } }
	for _, row := range []struct {
		name     string
		settings bfd.Settings
		random   float64
		hears    []bfd.Packet
		want     time.Duration // 0 is for ever
	}{
		{"not up", settings, 0, nil, time.Second},
		{"not up, at random", settings, 1, nil, 750 * time.Millisecond},
		{"not up, slow", bfd.Settings{Interval: 10 * time.Second, Multiplier: 3}, 0, nil, 10 * time.Second},
		{"init", settings, 0, []bfd.Packet{heard(bfd.Down, 0)}, time.Second},
		{"up", settings, 0, []bfd.Packet{heard(bfd.Init, mine)}, fast},
		{"up, at random", settings, 1, []bfd.Packet{heard(bfd.Init, mine)}, 75 * time.Millisecond},
		{"none may be lost", bfd.Settings{Interval: fast, Multiplier: 1}, 0, []bfd.Packet{heard(bfd.Init, mine)},
			90 * time.Millisecond},
		{"none may be lost, at random", bfd.Settings{Interval: fast, Multiplier: 1}, 1, []bfd.Packet{heard(bfd.Init, mine)},
			75 * time.Millisecond},
		{"the neighbour cannot receive as fast", settings, 0,
			[]bfd.Packet{heard(bfd.Init, mine, func(p *bfd.Packet) { p.RequiredMinRx = 4 * fast })}, 4 * fast},
		{"the neighbour becomes faster", settings, 0, []bfd.Packet{
			heard(bfd.Init, mine, func(p *bfd.Packet) { p.RequiredMinRx = 4 * fast }),
			heard(bfd.Up, mine, func(p *bfd.Packet) { p.RequiredMinRx = 2 * fast }),
		}, 2 * fast},
		{"the neighbour wants none", settings, 0,
			[]bfd.Packet{heard(bfd.Init, mine, func(p *bfd.Packet) { p.RequiredMinRx = 0 })}, 0},
		{"the neighbour polls instead", settings, 0, []bfd.Packet{
			heard(bfd.Init, mine), heard(bfd.Up, mine, func(p *bfd.Packet) { p.Demand, p.Final = true, true }),
		}, 0},
		{"the neighbour would poll, but has not answered", settings, 0, []bfd.Packet{
			heard(bfd.Init, mine), heard(bfd.Up, mine, func(p *bfd.Packet) { p.Demand = true }),
		}, fast},
		{"the neighbour would poll, but is not up yet", settings, 0, []bfd.Packet{
			heard(bfd.Init, mine), heard(bfd.Init, mine, func(p *bfd.Packet) { p.Demand, p.Final = true, true }),
		}, fast},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := bfd.New(row.settings, mine, number(row.random))
			if o := s.Advance(begin); o.Send == nil {
				t.Fatal("it does not begin")
			}
			for _, p := range row.hears {
				s.Receive(p, begin)
			}
			// The neighbour's silence is not what this is about.
			waits := row.want > 0 && row.want <= 3*time.Second
			for now := begin; now.Sub(begin) < 2*row.want+time.Second && waits; now = s.Deadline() {
				if o := s.Advance(now); o.Send != nil && now.After(begin) {
					if got := now.Sub(begin); got != row.want {
						t.Fatalf("after %v, and not %v", got, row.want)
					}
					return
				}
			}
			if row.want == 0 {
				if o := s.Advance(begin.Add(3*time.Second - 1)); o.Send != nil {
					t.Fatalf("it sends %+v", o.Send)
				}
				return
			}
			if got := s.Deadline().Sub(begin); got != row.want {
				t.Fatalf("after %v, and not %v", got, row.want)
			}
		})
	}
}

// TestPoll changes limits while the session is up: the neighbour has to know of a slower pace first.
func TestPoll(t *testing.T) {
	s := sessionIn(bfd.Up)
	now := begin
	next := func() *bfd.Packet {
		t.Helper()
		for range 3 {
			now = s.Deadline()
			if o := s.Advance(now); o.Send != nil {
				return o.Send
			}
		}
		t.Fatal("it sends nothing")
		return nil
	}
	hear := func(p bfd.Packet) {
		p.DesiredMinTx = fast
		s.Receive(p, now)
	}
	answer := heard(bfd.Up, mine, func(p *bfd.Packet) { p.Final = true })
	wants := func(what string, p *bfd.Packet, isPoll bool, advertised time.Duration) {
		t.Helper()
		if p.Poll != isPoll || p.Final || p.DesiredMinTx != advertised || p.RequiredMinRx != advertised {
			t.Fatalf("%s: %+v", what, p)
		}
	}
	hear(heard(bfd.Up, mine))
	wants("the session has become faster", next(), true, fast)
	hear(heard(bfd.Up, mine))
	wants("nothing has been answered", next(), true, fast)
	hear(answer)
	wants("that has been answered", next(), false, fast)

	s.Set(bfd.Settings{Interval: fast, Multiplier: 5})
	if p := next(); p.Poll || p.Multiplier != 5 {
		t.Fatalf("another multiplier: %+v", p)
	}
	const slow = 300 * time.Millisecond
	s.Set(bfd.Settings{Interval: slow, Multiplier: 3})
	if s.State() != bfd.Up {
		t.Fatal("an edit takes the session down")
	}
	hear(heard(bfd.Up, mine))
	sent := now
	wants("slower", next(), true, slow)
	if waited := now.Sub(sent); waited > fast {
		t.Fatalf("it was slower before the neighbour knew: %v", waited)
	}
	hear(answer)
	sent = now
	wants("the neighbour knows", next(), false, slow)
	if waited := now.Sub(sent); waited < slow*3/4 {
		t.Fatalf("it stays fast: %v", waited)
	}

	hear(heard(bfd.Up, mine))
	s.Set(settings)
	now = now.Add(3*slow - 1)
	if o := s.Advance(now); o.HasChanged {
		t.Fatal("it expects a faster neighbour before that knows")
	}
	hear(heard(bfd.Up, mine))
	s.Set(bfd.Settings{Interval: slow, Multiplier: 3})
	wants("changed once more", next(), true, slow)
	hear(answer)
	wants("the answer to the question before", next(), true, slow)
	hear(answer)
	wants("the answer", next(), false, slow)

	s.Set(settings)
	s.Receive(heard(bfd.AdminDown, mine), now)
	if p := next(); p.Poll || p.DesiredMinTx != time.Second {
		t.Fatalf("down, it polls on: %+v", p)
	}
}

// A poll is answered at once, also by a session that becomes Up with it and has a poll of its own.
func TestAnswerToPoll(t *testing.T) {
	for _, before := range []bfd.State{bfd.Down, bfd.Init, bfd.Up} {
		s := sessionIn(before)
		got := s.Receive(heard(bfd.Init, mine, func(p *bfd.Packet) { p.Poll = true }), begin)
		want := bfd.Packet{
			State: bfd.Up, Final: true, MyDiscriminator: mine, YourDiscriminator: theirs, Multiplier: 3,
			DesiredMinTx: fast, RequiredMinRx: fast,
		}
		if diff := cmp.Diff(&want, got.Send); diff != "" {
			t.Errorf("%s (-want +got):\n%s", before, diff)
		}
		if o := s.Advance(begin.Add(fast)); o.Send == nil || !o.Send.Poll || o.Send.Final {
			t.Errorf("%s: then it sends %+v", before, o.Send)
		}
	}
}

func TestStop(t *testing.T) {
	s := sessionIn(bfd.Up)
	want := bfd.Packet{
		State: bfd.AdminDown, Diagnostic: bfd.AdministrativelyDown,
		MyDiscriminator: mine, YourDiscriminator: theirs, Multiplier: 3,
		DesiredMinTx: fast, RequiredMinRx: fast,
	}
	if diff := cmp.Diff(want, s.Stop()); diff != "" {
		t.Errorf("the last packet (-want +got):\n%s", diff)
	}
	if o := s.Advance(begin.Add(time.Hour)); !s.Deadline().IsZero() || o != (bfd.Outcome{}) {
		t.Errorf("afterwards: %v, %+v", s.Deadline(), o)
	}
}

// side is one of two sessions that hear each other.
type side struct {
	*bfd.Session
	settings bfd.Settings
	// heardAt is when it last heard the other one, and failures how often it failed.
	heardAt  time.Time
	failures int
}

// link carries packets of two sides, of which it loses some. Its clock is the test's.
type link struct {
	now    time.Time
	random *rand.Rand
	sides  [2]*side
	// loss is the part of the packets that are lost, of each side.
	loss [2]float64
	wire []flight
}

type flight struct {
	to     int
	bytes  []byte
	arrive time.Time
}

const delay = time.Millisecond

func newLink(seed uint64, a, b bfd.Settings) *link {
	l := &link{now: begin, random: rand.New(rand.NewPCG(seed, 0))}
	for i, settings := range []bfd.Settings{a, b} {
		l.sides[i] = &side{Session: bfd.New(settings, uint32(i+1), l.random.Float64), settings: settings}
	}
	return l
}

func (l *link) take(t *testing.T, from int, o bfd.Outcome) {
	t.Helper()
	if o.HasFailed {
		l.sides[from].failures++
	}
	if o.Send != nil && l.random.Float64() >= l.loss[from] {
		l.wire = append(l.wire, flight{1 - from, o.Send.Append(nil), l.now.Add(delay)})
	}
}

// run lets time pass.
func (l *link) run(t *testing.T, d time.Duration) {
	t.Helper()
	for end := l.now.Add(d); ; {
		next := end
		for _, s := range l.sides {
			if at := s.Deadline(); !at.IsZero() && at.Before(next) {
				next = at
			}
		}
		if len(l.wire) > 0 && l.wire[0].arrive.Before(next) {
			next = l.wire[0].arrive
		}
		if !next.Before(end) {
			l.now = end
			return
		}
		if next.After(l.now) {
			l.now = next
		}
		for len(l.wire) > 0 && !l.wire[0].arrive.After(l.now) {
			f := l.wire[0]
			l.wire = l.wire[1:]
			p, err := bfd.Parse(f.bytes, bfd.RequiredTTL)
			if err != nil {
				t.Fatal(err)
			}
			l.sides[f.to].heardAt = l.now
			l.take(t, f.to, l.sides[f.to].Receive(p, l.now))
		}
		for i, s := range l.sides {
			before := s.State()
			o := s.Advance(l.now)
			if before == bfd.Up && o.HasFailed {
				other := l.sides[1-i].settings
				least := time.Duration(other.Multiplier) * max(s.settings.Interval, other.Interval)
				if silent := l.now.Sub(s.heardAt); silent < least {
					t.Fatalf("side %d fails after %v of silence, before %v", i, silent, least)
				}
			}
			l.take(t, i, o)
		}
	}
}

// TestTwoSessions has two sessions with the same and with other settings, and a link that loses packets,
// dies in one or both directions, and comes back.
func TestTwoSessions(t *testing.T) {
	for _, pair := range [][2]bfd.Settings{
		{{Interval: fast, Multiplier: 3}, {Interval: fast, Multiplier: 3}},
		{{Interval: fast, Multiplier: 3}, {Interval: 400 * time.Millisecond, Multiplier: 5}},
		{{Interval: 50 * time.Millisecond, Multiplier: 1}, {Interval: 2 * time.Second, Multiplier: 2}},
	} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%v-%v-%d", pair[0].Interval, pair[1].Interval, seed), func(t *testing.T) {
				l := newLink(seed, pair[0], pair[1])
				wants := func(when string, state bfd.State, failures int) {
					t.Helper()
					for i, s := range l.sides {
						if s.State() != state || s.failures != failures {
							t.Fatalf("%s: side %d is %s and has failed %d times", when, i, s.State(), s.failures)
						}
					}
				}
				l.loss = [2]float64{0.3, 0.3}
				for n := 0; l.sides[0].State() != bfd.Up || l.sides[1].State() != bfd.Up; n++ {
					if l.run(t, 10*time.Millisecond); n > 10_000 {
						t.Fatal("they do not come up on a link that loses a third")
					}
				}
				l.loss = [2]float64{}
				l.run(t, time.Minute)
				for _, s := range l.sides {
					s.failures = 0
				}
				l.run(t, 10*time.Minute)
				wants("ten minutes later", bfd.Up, 0)
				l.loss = [2]float64{1, 1}
				l.run(t, time.Minute)
				wants("the link is dead", bfd.Down, 1)
				l.loss = [2]float64{}
				l.run(t, time.Minute)
				wants("the link is back", bfd.Up, 1)
				l.loss[seed%2] = 1
				l.run(t, time.Minute)
				for i, s := range l.sides {
					if s.State() == bfd.Up || s.failures != 2 {
						t.Fatalf("one direction is dead: side %d is %s and has failed %d times", i, s.State(), s.failures)
					}
				}
				l.loss = [2]float64{}
				l.run(t, time.Minute)
				wants("both directions are back", bfd.Up, 2)
				l.sides[1].settings.Interval *= 2
				l.sides[1].Set(l.sides[1].settings)
				l.run(t, time.Minute)
				wants("one has become slower", bfd.Up, 2)
				last := l.sides[0].Stop()
				l.take(t, 0, bfd.Outcome{Send: &last})
				l.run(t, time.Minute)
				if l.sides[1].State() != bfd.Down || l.sides[1].failures != 2 {
					t.Fatalf("a planned end: %s, %d", l.sides[1].State(), l.sides[1].failures)
				}
			})
		}
	}
}
