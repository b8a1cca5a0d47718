package neigh

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

var (
	here  = MAC{0x02, 0, 0, 0, 0, 0x01}
	there = MAC{0x02, 0, 0, 0, 0, 0x02}
)

// The bytes on the wire, written out by hand from the RFCs.
func TestFrames(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		build func(MAC, netip.Addr) ([]byte, error)
		addr  string
		want  string
	}{
		"gratuitous ARP": {GratuitousARP, "192.0.2.1",
			"ffffffffffff 020000000001 0806" +
				"0001 0800 06 04 0001 020000000001 c0000201 000000000000 c0000201"},
		"ARP probe": {ARPProbe, "192.0.2.1",
			"ffffffffffff 020000000001 0806" +
				"0001 0800 06 04 0001 020000000001 00000000 000000000000 c0000201"},
		"unsolicited NA": {UnsolicitedNA, "2001:db8::1",
			"333300000001 020000000001 86dd" +
				"60000000 0020 3a ff 20010db8000000000000000000000001 ff020000000000000000000000000001" +
				"88 00 f92a 20000000 20010db8000000000000000000000001 02 01 020000000001"},
		"solicitation": {Solicitation, "2001:db8::a1:b2c3",
			"3333ffa1b2c3 020000000001 86dd" +
				"60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ffa1b2c3" +
				"87 00 e625 00000000 20010db80000000000000000 00a1b2c3"},
	} {
		frame, err := tc.build(here, netip.MustParseAddr(tc.addr))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := hex.EncodeToString(frame), strings.ReplaceAll(tc.want, " ", ""); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestFramesOfTheOtherFamily(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"gratuitous ARP for IPv6":     second(GratuitousARP(here, netip.MustParseAddr("2001:db8::1"))),
		"ARP probe for IPv6":          second(ARPProbe(here, netip.MustParseAddr("2001:db8::1"))),
		"unsolicited NA for IPv4":     second(UnsolicitedNA(here, netip.MustParseAddr("192.0.2.1"))),
		"solicitation of IPv4":        second(Solicitation(here, netip.MustParseAddr("192.0.2.1"))),
		"solicitation of mapped IPv4": second(Solicitation(here, netip.MustParseAddr("::ffff:192.0.2.1"))),
		"solicitation of nothing":     second(Solicitation(here, netip.Addr{})),
		"ARP probe for nothing":       second(ARPProbe(here, netip.Addr{})),
	} {
		if err == nil {
			t.Errorf("%s is built", name)
		}
	}
}

func second(_ []byte, err error) error { return err }

func frameOf(t *testing.T, build func(MAC, netip.Addr) ([]byte, error), addr string, edit ...func([]byte) []byte) []byte {
	t.Helper()
	frame, err := build(there, netip.MustParseAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edit {
		frame = e(frame)
	}
	return frame
}

func set(offset int, values ...byte) func([]byte) []byte {
	return func(frame []byte) []byte {
		copy(frame[offset:], values)
		return frame
	}
}

// summed puts the checksum right after other edits.
func summed(frame []byte) []byte {
	icmp := frame[headerEthernet+headerIPv6:]
	icmp[2], icmp[3] = 0, 0
	sum := checksum(frame[headerEthernet:], icmp)
	icmp[2], icmp[3] = byte(sum>>8), byte(sum)
	return frame
}

func cut(n int) func([]byte) []byte { return func(frame []byte) []byte { return frame[:n] } }

func TestParse(t *testing.T) {
	t.Parallel()
	const icmp = headerEthernet + headerIPv6
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, tc := range map[string]struct {
		frame []byte
		want  Message // the zero Message: refused
	}{
		"gratuitous ARP":      {frameOf(t, GratuitousARP, "192.0.2.1"), Message{Request, v4, there, true, false}},
		"with padding":        {append(frameOf(t, GratuitousARP, "192.0.2.1"), make([]byte, 18)...), Message{Request, v4, there, true, false}},
		"ARP reply":           {frameOf(t, GratuitousARP, "192.0.2.1", set(21, arpReply), set(38, 192, 0, 2, 9)), Message{Reply, v4, there, false, false}},
		"ARP reply to probe":  {frameOf(t, GratuitousARP, "192.0.2.1", set(21, arpReply), set(38, 0, 0, 0, 0)), Message{Reply, v4, there, false, false}},
		"ARP request":         {frameOf(t, GratuitousARP, "192.0.2.1", set(38, 192, 0, 2, 9)), Message{Request, v4, there, false, false}},
		"ARP probe":           {frame: frameOf(t, ARPProbe, "192.0.2.1")},
		"RARP":                {frame: frameOf(t, GratuitousARP, "192.0.2.1", set(21, 3))},
		"ARP not of Ethernet": {frame: frameOf(t, GratuitousARP, "192.0.2.1", set(15, 6))},
		"ARP cut off":         {frame: frameOf(t, GratuitousARP, "192.0.2.1", cut(headerEthernet+lengthARP-1))},
		"Ethernet cut off":    {frame: frameOf(t, GratuitousARP, "192.0.2.1", cut(headerEthernet-1))},
		"another type":        {frame: frameOf(t, GratuitousARP, "192.0.2.1", set(12, 0x08, 0x00))},

		"unsolicited NA":      {frameOf(t, UnsolicitedNA, "2001:db8::1"), Message{Advertisement, v6, there, true, true}},
		"without override":    {frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+4, 0), summed), Message{Advertisement, v6, there, true, false}},
		"solicited, to us":    {frameOf(t, UnsolicitedNA, "2001:db8::1", set(headerEthernet+24, 0x20, 0x01), set(icmp+4, flagSolicited), summed), Message{Advertisement, v6, there, false, false}},
		"solicited, to all":   {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+4, flagSolicited), summed)},
		"option of another":   {frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+24, 1), set(6, 2, 0, 0, 0, 0, 9), summed), Message{Advertisement, v6, MAC{2, 0, 0, 0, 0, 9}, true, true}},
		"option counts":       {frameOf(t, UnsolicitedNA, "2001:db8::1", set(6, 2, 0, 0, 0, 0, 9)), Message{Advertisement, v6, there, true, true}},
		"empty option":        {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+25, 0), summed)},
		"option cut off":      {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+25, 2), summed)},
		"wrong checksum":      {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+2, 0xff, 0xff))},
		"routed":              {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(headerEthernet+7, 254))},
		"multicast target":    {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(icmp+8, 0xff), summed)},
		"length beyond frame": {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(headerEthernet+4, 0xff, 0xff))},
		"length too short":    {frame: frameOf(t, UnsolicitedNA, "2001:db8::1", set(headerEthernet+4, 0, 8))},
		"solicitation":        {frame: frameOf(t, Solicitation, "2001:db8::1")},
		"nothing":             {},
	} {
		got, err := Parse(tc.frame)
		if got != tc.want || (err != nil) != (tc.want == Message{}) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
}

// Whatever address is announced, the announcement says so and nothing else.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, here[:])
	f.Add(netip.MustParseAddr("2001:db8::1").AsSlice(), there[:])
	f.Add(netip.MustParseAddr("::").AsSlice(), there[:])
	f.Fuzz(func(t *testing.T, address, source []byte) {
		addr, ok := netip.AddrFromSlice(address)
		if !ok || len(source) != 6 || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() {
			t.Skip()
		}
		announce, ask, kind := GratuitousARP, ARPProbe, Request
		if addr.Is6() {
			announce, ask, kind = UnsolicitedNA, Solicitation, Advertisement
		}
		frame, err := announce(MAC(source), addr)
		if err != nil {
			t.Fatal(err)
		}
		want := Message{Kind: kind, Addr: addr, MAC: MAC(source), Gratuitous: true, Override: addr.Is6()}
		if got, err := Parse(frame); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if frame, err = ask(MAC(source), addr); err != nil {
			t.Fatal(err)
		}
		if got, err := Parse(frame); err == nil {
			t.Errorf("a question is taken for %+v", got)
		}
		if addr.Is6() && checksum(frame[headerEthernet:], frame[headerEthernet+headerIPv6:]) != 0 {
			t.Error("wrong checksum")
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
		for _, build := range []func(MAC, netip.Addr) ([]byte, error){GratuitousARP, ARPProbe, UnsolicitedNA, Solicitation} {
			if frame, err := build(here, netip.MustParseAddr(addr)); err == nil {
				f.Add(frame)
			}
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := Parse(frame)
		if (err == nil) != m.Addr.IsValid() || err == nil && (m.Kind == 0 || m.Addr.IsMulticast() && m.Kind == Advertisement) {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
