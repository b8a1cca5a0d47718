package bfd_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

// FuzzSession has a session hear any packets at any times. Each step is two octets of milliseconds that
// pass, and a packet; a first octet of 255 changes the settings as well.
func FuzzSession(f *testing.F) {
	step := func(ms uint16, p bfd.Packet) []byte { return p.Append(binary.BigEndian.AppendUint16(nil, ms)) }
	down, init, up := heard(bfd.Down, 0), heard(bfd.Init, mine), heard(bfd.Up, mine)
	f.Add(append(append(step(1, down), step(2, init)...), step(50, up)...))
	f.Add(append(append(step(1, init), step(0xff00, up)...), step(3000, down)...))
	f.Add(append(step(1, init), step(2, heard(bfd.AdminDown, mine))...))
	f.Fuzz(func(t *testing.T, data []byte) {
		const stepLength, maxSteps = 2 + 24, 64
		data = data[:min(len(data), maxSteps*stepLength)]
		s, now := bfd.New(settings, mine, half), begin
		hasHeardMine := false
		var lastHeard time.Time
		var detection time.Duration
		// checks looks at what a step has done to a session that was in a state before it.
		checks := func(before bfd.State, o bfd.Outcome) {
			if o.HasChanged != (s.State() != before) || o.HasFailed && (before != bfd.Up || s.State() == bfd.Up) {
				t.Fatalf("%s, then %s: %+v", before, s.State(), o)
			}
			if s.State() == bfd.Up && !hasHeardMine {
				t.Fatal("Up, and the neighbour has never said that it hears the session")
			}
			if o.Send == nil {
				return
			}
			if o.Send.Poll && o.Send.Final || o.Send.MyDiscriminator != mine || o.Send.State != s.State() {
				t.Fatalf("%s sends %+v", s.State(), o.Send)
			}
			if s.State() != bfd.Up && o.Send.DesiredMinTx < time.Second {
				t.Fatalf("%s is too fast: %+v", s.State(), o.Send)
			}
			if got, err := bfd.Parse(o.Send.Append(nil), bfd.RequiredTTL); err != nil || got != *o.Send {
				t.Fatalf("%+v: %+v, %v", o.Send, got, err)
			}
		}
		for ; len(data) >= stepLength; data = data[stepLength:] {
			if data[0] == 255 {
				s.Set(bfd.Settings{Interval: time.Duration(1+data[1]) * 10 * time.Millisecond, Multiplier: 1 + data[1]%5})
			}
			end := now.Add(time.Duration(binary.BigEndian.Uint16(data)) * time.Millisecond)
			for range 1000 { // what is due meanwhile
				at := s.Deadline()
				if at.After(end) || at.IsZero() {
					break
				}
				if at.After(now) {
					now = at
				}
				before := s.State()
				o := s.Advance(now)
				checks(before, o)
				if before == bfd.Up && o.HasChanged && now.Sub(lastHeard) < detection {
					t.Fatalf("Down after %v of silence, before %v", now.Sub(lastHeard), detection)
				}
				if !s.Deadline().IsZero() && !s.Deadline().After(now) {
					t.Fatalf("%s waits for %v that has passed", s.State(), now.Sub(s.Deadline()))
				}
			}
			now = end
			p, err := bfd.Parse(data[2:stepLength], bfd.RequiredTTL)
			if err != nil {
				continue
			}
			before := s.State()
			hasHeardMine = hasHeardMine || p.YourDiscriminator == mine
			if p.YourDiscriminator == 0 || p.YourDiscriminator == mine {
				// The session's own limit is at least 10 ms, and the neighbour's is what it says.
				lastHeard, detection = now, time.Duration(p.Multiplier)*max(10*time.Millisecond, p.DesiredMinTx)
			}
			checks(before, s.Receive(p, now))
		}
	})
}
