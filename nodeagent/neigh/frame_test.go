package neigh

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var (
	localMAC     = MAC{0x02, 0, 0, 0, 0, 0x01}
	neighbourMAC = MAC{0x02, 0, 0, 0, 0, 0x02}
)

// TestFrames compares frames with bytes written by hand from the RFCs.
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
		"ARP request with a sender": {withSender("192.0.2.9"), "192.0.2.1",
			"ffffffffffff 020000000001 0806" +
				"0001 0800 06 04 0001 020000000001 c0000209 000000000000 c0000201"},
		"ARP probe of one station": {toStation(""), "192.0.2.1",
			"020000000002 020000000001 0806" +
				"0001 0800 06 04 0001 020000000001 00000000 000000000000 c0000201"},
		"ARP probe of one station, whatever the sender": {toStation("192.0.2.9"), "192.0.2.1",
			"020000000002 020000000001 0806" +
				"0001 0800 06 04 0001 020000000001 00000000 000000000000 c0000201"},
		"solicitation with a sender": {withSender("fe80::9"), "2001:db8::a1:b2c3",
			"3333ffa1b2c3 020000000001 86dd" +
				"60000000 0020 3a ff fe800000000000000000000000000009 ff0200000000000000000001ffa1b2c3" +
				"87 00 e491 00000000 20010db80000000000000000 00a1b2c3 01 01 020000000001"},
		"solicitation of one station": {toStation("fe80::9"), "2001:db8::a1:b2c3",
			"020000000002 020000000001 86dd" +
				"60000000 0020 3a ff fe800000000000000000000000000009 ff0200000000000000000001ffa1b2c3" +
				"87 00 e491 00000000 20010db80000000000000000 00a1b2c3 01 01 020000000001"},
		"solicitation of one station, without a sender": {toStation(""), "2001:db8::a1:b2c3",
			"020000000002 020000000001 86dd" +
				"60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ffa1b2c3" +
				"87 00 e625 00000000 20010db80000000000000000 00a1b2c3"},
		"unsolicited NA": {UnsolicitedNA, "2001:db8::1",
			"333300000001 020000000001 86dd" +
				"60000000 0020 3a ff 20010db8000000000000000000000001 ff020000000000000000000000000001" +
				"88 00 f92a 20000000 20010db8000000000000000000000001 02 01 020000000001"},
		"solicitation": {NDProbe, "2001:db8::a1:b2c3",
			"3333ffa1b2c3 020000000001 86dd" +
				"60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ffa1b2c3" +
				"87 00 e625 00000000 20010db80000000000000000 00a1b2c3"},
	} {
		frame, err := tc.build(localMAC, netip.MustParseAddr(tc.addr))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := hex.EncodeToString(frame), strings.ReplaceAll(tc.want, " ", ""); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

// withSender builds the last of the frames with which a question with a sender asks the link.
func withSender(sender string) func(MAC, netip.Addr) ([]byte, error) {
	return func(source MAC, addr netip.Addr) ([]byte, error) {
		frames, err := Question{Target: Target{Addr: addr}, Sender: netip.MustParseAddr(sender)}.Frames(source)
		if err != nil {
			return nil, err
		}
		return frames[len(frames)-1], nil
	}
}

// toStation builds the frame that asks one station, and checks that it is the last of a
// question's frames.
func toStation(sender string) func(MAC, netip.Addr) ([]byte, error) {
	return func(source MAC, addr netip.Addr) ([]byte, error) {
		q := Question{Target: Target{Addr: addr}, NodeMACs: []MAC{neighbourMAC}}
		q.Sender, _ = netip.ParseAddr(sender)
		frame, err := q.FrameFor(source, neighbourMAC)
		if frames, _ := q.Frames(source); len(frames) == 0 || !bytes.Equal(frames[len(frames)-1], frame) {
			return nil, errors.New("it is not the last of the question's frames")
		}
		return frame, err
	}
}

// TestQuestionSender checks that neither an address of the other family nor the target is used
// as the sender.
func TestQuestionSender(t *testing.T) {
	t.Parallel()
	for _, sender := range []string{"", "192.0.2.1", "fe80::1", "0.0.0.0"} {
		q := Question{Target: Target{Addr: netip.MustParseAddr("192.0.2.1")}}
		q.Sender, _ = netip.ParseAddr(sender)
		if frames, err := q.Frames(localMAC); err != nil || len(frames) != 1 {
			t.Errorf("with sender %q: %d frames, %v", sender, len(frames), err)
		}
	}
	many := Question{Target: Target{Addr: netip.MustParseAddr("192.0.2.1")}, NodeMACs: make([]MAC, 64)}
	if frames, err := many.Frames(localMAC); err != nil || len(frames) != 1+maxNodes {
		t.Errorf("with many nodes: %d frames, %v", len(frames), err)
	}
}

// An ordinary question is a single frame, with the sender, also where nodes are expected to have the
// address. Without a sender it is not asked.
func TestOrdinaryQuestion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ addr, sender, other string }{
		{"192.0.2.1", "192.0.2.7", "fe80::1"}, {"2001:db8::1", "fe80::1", "192.0.2.7"},
	} {
		q := Question{
			Target: Target{Addr: netip.MustParseAddr(row.addr)}, Sender: netip.MustParseAddr(row.sender),
			IsAddressResolution: true,
		}
		want, err := withSender(row.sender)(localMAC, q.Addr)
		if err != nil {
			t.Fatal(err)
		}
		q.NodeMACs = []MAC{neighbourMAC}
		if frames, err := q.Frames(localMAC); err != nil || len(frames) != 1 || !bytes.Equal(frames[0], want) {
			t.Errorf("%s: %d frames, %x, want %x; %v", row.addr, len(frames), frames, want, err)
		}
		q.Sender = netip.MustParseAddr(row.other)
		if frames, err := q.Frames(localMAC); err == nil || len(frames) != 0 {
			t.Errorf("%s without a sender: %d frames, %v", row.addr, len(frames), err)
		}
	}
}

func TestParseMACs(t *testing.T) {
	t.Parallel()
	got := ParseMACs([]string{
		neighbourMAC.String(), "02:00:00:00:00:02", "nonsense", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00",
		"00:00:00:00:fe:80:00:00", "", "02:00:00:00:00:01",
	})
	if want := []MAC{neighbourMAC, localMAC}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFramesOfTheOtherFamily(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"gratuitous ARP for IPv6":     errorOf(GratuitousARP(localMAC, netip.MustParseAddr("2001:db8::1"))),
		"ARP probe for IPv6":          errorOf(ARPProbe(localMAC, netip.MustParseAddr("2001:db8::1"))),
		"unsolicited NA for IPv4":     errorOf(UnsolicitedNA(localMAC, netip.MustParseAddr("192.0.2.1"))),
		"solicitation of IPv4":        errorOf(NDProbe(localMAC, netip.MustParseAddr("192.0.2.1"))),
		"solicitation of mapped IPv4": errorOf(NDProbe(localMAC, netip.MustParseAddr("::ffff:192.0.2.1"))),
		"solicitation of nothing":     errorOf(NDProbe(localMAC, netip.Addr{})),
		"ARP probe for nothing":       errorOf(ARPProbe(localMAC, netip.Addr{})),
	} {
		if err == nil {
			t.Errorf("%s is built", name)
		}
	}
}

// errorOf returns the error of a function that builds a frame.
func errorOf(_ []byte, err error) error { return err }

// buildFrame builds a frame from the neighbour and applies edits to it.
func buildFrame(
	t *testing.T, build func(MAC, netip.Addr) ([]byte, error), addr string, edit ...func([]byte) []byte,
) []byte {
	t.Helper()
	frame, err := build(neighbourMAC, netip.MustParseAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edit {
		frame = e(frame)
	}
	return frame
}

// setBytes overwrites bytes at an offset.
func setBytes(offset int, values ...byte) func([]byte) []byte {
	return func(frame []byte) []byte {
		copy(frame[offset:], values)
		return frame
	}
}

// fixChecksum corrects the checksum after other edits.
func fixChecksum(frame []byte) []byte {
	icmp := frame[ethernetHeaderLength+ipv6HeaderLength:]
	icmp[2], icmp[3] = 0, 0
	sum := checksum(frame[ethernetHeaderLength:], icmp)
	icmp[2], icmp[3] = byte(sum>>8), byte(sum)
	return frame
}

// truncate keeps the first n bytes.
func truncate(n int) func([]byte) []byte { return func(frame []byte) []byte { return frame[:n] } }

func TestParse(t *testing.T) {
	t.Parallel()
	const icmp = ethernetHeaderLength + ipv6HeaderLength
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, tc := range map[string]struct {
		frame []byte
		want  Message // the zero Message if ParseMessage returns an error
	}{
		"gratuitous ARP": {
			buildFrame(t, GratuitousARP, "192.0.2.1"), Message{ARPRequest, v4, neighbourMAC, true, false, false},
		},
		"with padding": {
			append(buildFrame(t, GratuitousARP, "192.0.2.1"), make([]byte, 18)...),
			Message{ARPRequest, v4, neighbourMAC, true, false, false},
		},
		"ARP reply": {
			buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(21, arpReply), setBytes(38, 192, 0, 2, 9)),
			Message{ARPReply, v4, neighbourMAC, false, false, false},
		},
		"ARP reply to probe": {
			buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(21, arpReply), setBytes(38, 0, 0, 0, 0)),
			Message{ARPReply, v4, neighbourMAC, false, false, false},
		},
		"ARP request": {
			buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(38, 192, 0, 2, 9)),
			Message{ARPRequest, v4, neighbourMAC, false, false, false},
		},
		"ARP reply to us": {
			buildFrame(
				t, GratuitousARP, "192.0.2.1", setBytes(0, localMAC[:]...), setBytes(21, arpReply), setBytes(38, 0, 0, 0, 0),
			),
			Message{ARPReply, v4, neighbourMAC, false, false, true},
		},
		"ARP of no station": {frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(22, 0, 0, 0, 0, 0, 0))},
		"ARP of a group":    {frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(22, 3))},
		"ARP of all": {
			frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(22, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)),
		},
		"NA of no station": {
			frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+26, 0, 0, 0, 0, 0, 0), fixChecksum),
		},
		"NA of a group": {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+26, 0x33), fixChecksum)},
		"NA to us": {
			buildFrame(
				t, UnsolicitedNA, "2001:db8::1", setBytes(0, localMAC[:]...), setBytes(ethernetHeaderLength+24, 0x20, 0x01),
				setBytes(icmp+4, flagSolicited), fixChecksum,
			),
			Message{NeighbourAdvertisement, v6, neighbourMAC, false, false, true},
		},
		"ARP probe":           {frame: buildFrame(t, ARPProbe, "192.0.2.1")},
		"RARP":                {frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(21, 3))},
		"ARP not of Ethernet": {frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(15, 6))},
		"ARP cut off":         {frame: buildFrame(t, GratuitousARP, "192.0.2.1", truncate(ethernetHeaderLength+arpLength-1))},
		"Ethernet cut off":    {frame: buildFrame(t, GratuitousARP, "192.0.2.1", truncate(ethernetHeaderLength-1))},
		"another type":        {frame: buildFrame(t, GratuitousARP, "192.0.2.1", setBytes(12, 0x08, 0x00))},

		"unsolicited NA": {
			buildFrame(t, UnsolicitedNA, "2001:db8::1"), Message{NeighbourAdvertisement, v6, neighbourMAC, true, true, false},
		},
		"without override": {
			buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+4, 0), fixChecksum),
			Message{NeighbourAdvertisement, v6, neighbourMAC, true, false, false},
		},
		"solicited, to us": {
			buildFrame(
				t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength+24, 0x20, 0x01), setBytes(icmp+4, flagSolicited),
				fixChecksum,
			),
			Message{NeighbourAdvertisement, v6, neighbourMAC, false, false, false},
		},
		"solicited, to all": {
			frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+4, flagSolicited), fixChecksum),
		},
		"option of another": {
			buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+24, 1), setBytes(6, 2, 0, 0, 0, 0, 9), fixChecksum),
			Message{NeighbourAdvertisement, v6, MAC{2, 0, 0, 0, 0, 9}, true, true, false},
		},
		"option counts": {
			buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(6, 2, 0, 0, 0, 0, 9)),
			Message{NeighbourAdvertisement, v6, neighbourMAC, true, true, false},
		},
		"empty option":     {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+25, 0), fixChecksum)},
		"option cut off":   {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+25, 2), fixChecksum)},
		"wrong checksum":   {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+2, 0xff, 0xff))},
		"routed":           {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength+7, 254))},
		"multicast target": {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(icmp+8, 0xff), fixChecksum)},
		"length beyond frame": {
			frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength+4, 0xff, 0xff)),
		},
		"length too short": {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength+4, 0, 8))},
		"no option, shortest": {
			buildFrame(
				t, UnsolicitedNA, "2001:db8::1", truncate(icmp+ndLength), setBytes(ethernetHeaderLength+4, 0, ndLength),
				setBytes(6, 2, 0, 0, 0, 0, 9), fixChecksum,
			),
			Message{NeighbourAdvertisement, v6, MAC{2, 0, 0, 0, 0, 9}, true, true, false},
		},
		"odd length": {
			frame: buildFrame(
				t, UnsolicitedNA, "2001:db8::1", truncate(icmp+ndLength+1), setBytes(ethernetHeaderLength+4, 0, ndLength+1),
				fixChecksum,
			),
		},
		"IPv6 without header": {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", truncate(ethernetHeaderLength+1))},
		"IPv6 without ICMP":   {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", truncate(icmp))},
		"IPv4 by its version": {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength, 4<<4))},
		"another protocol":    {frame: buildFrame(t, UnsolicitedNA, "2001:db8::1", setBytes(ethernetHeaderLength+6, 17))},
		"solicitation":        {frame: buildFrame(t, NDProbe, "2001:db8::1")},
		"nothing":             {},
	} {
		got, err := ParseMessage(tc.frame)
		if got != tc.want || (err != nil) != (tc.want == Message{}) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tc.want)
		}
		if err == nil && got.Kind == 0 {
			t.Errorf("%s: the message has no kind", name)
		}
	}
}

// TestChecksum checks that the last byte of an odd number counts as if a byte of 0 followed
// (RFC 1071 section 4.1).
func TestChecksum(t *testing.T) {
	t.Parallel()
	const length, odd = 3, 0x0102 + 0x0300
	want := ^uint16(length + protocolICMPv6 + odd)
	if got := checksum(make([]byte, ipv6HeaderLength), []byte{1, 2, 3}); got != want {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

// FuzzRoundTrip checks that ParseMessage reads from an announcement what was announced, and no claim
// from a question.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, localMAC[:])
	f.Add(netip.MustParseAddr("2001:db8::1").AsSlice(), neighbourMAC[:])
	f.Fuzz(func(t *testing.T, address, source []byte) {
		addr, ok := netip.AddrFromSlice(address)
		if !ok || len(source) != 6 || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() ||
			!MAC(source).isStation() {
			t.Skip()
		}
		announce, ask, kind := GratuitousARP, ARPProbe, ARPRequest
		if addr.Is6() {
			announce, ask, kind = UnsolicitedNA, NDProbe, NeighbourAdvertisement
		}
		frame, err := announce(MAC(source), addr)
		if err != nil {
			t.Fatal(err)
		}
		want := Message{Kind: kind, Addr: addr, MAC: MAC(source), IsGratuitous: true, Override: addr.Is6()}
		if got, err := ParseMessage(frame); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if frame, err = ask(MAC(source), addr); err != nil {
			t.Fatal(err)
		}
		if got, err := ParseMessage(frame); err == nil {
			t.Errorf("a question is parsed as %+v", got)
		}
		if addr.Is6() && checksum(frame[ethernetHeaderLength:], frame[ethernetHeaderLength+ipv6HeaderLength:]) != 0 {
			t.Error("wrong checksum")
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
		for _, build := range []func(MAC, netip.Addr) ([]byte, error){GratuitousARP, ARPProbe, UnsolicitedNA, NDProbe} {
			if frame, err := build(localMAC, netip.MustParseAddr(addr)); err == nil {
				f.Add(frame)
			}
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := ParseMessage(frame)
		if (err == nil) != m.Addr.IsValid() ||
			err == nil && (m.Kind == 0 || m.Addr.IsMulticast() && m.Kind == NeighbourAdvertisement) {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
