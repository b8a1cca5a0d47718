package bfd_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

// wire is a packet as it goes on the wire: Up, multiplier 3, 300 ms and 800 ms.
var wire = []byte{
	0x23, 0xc0, 0x03, 24,
	0x01, 0x02, 0x03, 0x04,
	0x0a, 0x0b, 0x0c, 0x0d,
	0x00, 0x04, 0x93, 0xe0,
	0x00, 0x0c, 0x35, 0x00,
	0x00, 0x00, 0x00, 0x00,
}

var parsed = bfd.Packet{
	State: bfd.Up, Diagnostic: bfd.NeighbourSignalsDown, Multiplier: 3,
	MyDiscriminator: 0x01020304, YourDiscriminator: 0x0a0b0c0d,
	DesiredMinTx: 300 * time.Millisecond, RequiredMinRx: 800 * time.Millisecond,
}

func TestParse(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func([]byte) []byte
		ttl    int
		want   func(*bfd.Packet)
		err    string
	}{
		{name: "as it is"},
		{name: "poll", change: set(1, 0xe0), want: func(p *bfd.Packet) { p.Poll = true }},
		{name: "final", change: set(1, 0xd0), want: func(p *bfd.Packet) { p.Final = true }},
		{name: "independent of the control plane", change: set(1, 0xc8)},
		{name: "on demand", change: set(1, 0xc2), want: func(p *bfd.Packet) { p.Demand = true }},
		{name: "down, for nobody", change: func(b []byte) []byte { return set(1, 0x40)(zero(8)(b)) },
			want: func(p *bfd.Packet) { p.State, p.YourDiscriminator = bfd.Down, 0 }},
		{name: "admin down, for nobody", change: func(b []byte) []byte { return set(1, 0x00)(zero(8)(b)) },
			want: func(p *bfd.Packet) { p.State, p.YourDiscriminator = bfd.AdminDown, 0 }},
		{name: "more in the datagram", change: func(b []byte) []byte { return append(b, 0, 0) }},
		{name: "the largest numbers", change: func(b []byte) []byte {
			for i := 12; i < 20; i++ {
				b[i] = 0xff
			}
			return b
		}, want: func(p *bfd.Packet) {
			p.DesiredMinTx, p.RequiredMinRx = 4294967295*time.Microsecond, 4294967295*time.Microsecond
		}},

		{name: "from beyond the link", ttl: 254, err: "TTL 254"},
		{name: "nothing", change: func([]byte) []byte { return nil }, err: "datagram of 0 octets"},
		{name: "cut off", change: func(b []byte) []byte { return b[:23] }, err: "datagram of 23 octets"},
		{name: "version 0", change: set(0, 0x03), err: "version 0"},
		{name: "version 2", change: set(0, 0x43), err: "version 2"},
		{name: "too short, as it says", change: set(3, 23), err: "length 23"},
		{name: "longer than it is", change: set(3, 25), err: "length 25"},
		{name: "multiplier", change: set(2, 0), err: "multiplier 0"},
		{name: "multipoint", change: set(1, 0xc1), err: "multipoint"},
		{name: "authenticated", change: set(1, 0xc4), err: "authenticated"},
		{name: "no discriminator", change: zero(4), err: "no discriminator"},
		{name: "init, for nobody", change: func(b []byte) []byte { return set(1, 0x80)(zero(8)(b)) }, err: "state Init"},
		{name: "up, for nobody", change: zero(8), err: "state Up"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b, ttl, want := append([]byte{}, wire...), bfd.RequiredTTL, parsed
			if row.change != nil {
				b = row.change(b)
			}
			if row.ttl != 0 {
				ttl = row.ttl
			}
			got, err := bfd.Parse(b, ttl)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Errorf("%v, and not %s", err, row.err)
				}
				return
			}
			if row.want != nil {
				row.want(&want)
			}
			if err != nil || got != want {
				t.Errorf("%v\n%s", err, cmp.Diff(want, got))
			}
		})
	}
}

func set(at int, value byte) func([]byte) []byte {
	return func(b []byte) []byte { b[at] = value; return b }
}

func zero(at int) func([]byte) []byte {
	return func(b []byte) []byte { clear(b[at : at+4]); return b }
}

func TestAppend(t *testing.T) {
	p := parsed
	if diff := cmp.Diff(hex.EncodeToString(wire), hex.EncodeToString(p.Append(nil))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, flags := range []bfd.Packet{{Poll: true}, {Final: true}, {Demand: true}} {
		p.Poll, p.Final, p.Demand = flags.Poll, flags.Final, flags.Demand
		if got, err := bfd.Parse(p.Append(nil), bfd.RequiredTTL); err != nil || got != p {
			t.Errorf("%v\n%s", err, cmp.Diff(p, got))
		}
	}
}

func TestStateString(t *testing.T) {
	for state, want := range map[bfd.State]string{
		bfd.AdminDown: "AdminDown", bfd.Down: "Down", bfd.Init: "Init", bfd.Up: "Up",
	} {
		if got := state.String(); got != want {
			t.Errorf("%q, and not %q", got, want)
		}
	}
}
