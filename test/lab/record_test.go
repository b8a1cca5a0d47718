package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func TestFigures(t *testing.T) {
	const ms = time.Millisecond
	failed := errors.New("failed")
	r := Record{
		End: 400 * ms,
		Requests: []Request{
			{Start: 0, End: 2 * ms}, {Start: 10 * ms, End: 12 * ms},
			{Start: 15 * ms, End: 20 * ms, Err: failed}, // under way when b claims it, at 18 ms
			{Start: 19 * ms, End: 60 * ms, Err: failed}, // begun after it; b answers only the meter at 22 ms
			{Start: 70 * ms, End: 90 * ms, Err: failed}, // begun after it
			{Start: 60 * ms, End: 160 * ms, Err: failed},
			{Start: 150 * ms, End: 212 * ms}, {Start: 120 * ms, End: 222 * ms},
			{Start: 390 * ms, End: 395 * ms},
		},
		// busy, at 50 ms
		WireRequests: []time.Duration{0, 10 * ms, 20 * ms, 30 * ms, 40 * ms, 60 * ms, 290 * ms, 300 * ms, 390 * ms},
		WireAnswers: []Answer{
			{1 * ms, "a"}, {11 * ms, "a"}, {13 * ms, "a"}, {21 * ms, "a"}, {22 * ms, "b"}, {31 * ms, "b"}, {41 * ms, "b"},
			{45 * ms, "a"}, {291 * ms, "b"}, {301 * ms, "a"}, {399 * ms, "a"},
		},
		UnaskedClaims: []Answer{{18 * ms, "b"}},
	}
	got := r.Figures()
	want := Figures{
		Requests: 9, Failed: 3, InFlight: 1, Outage: 200 * ms, Silence: 231 * ms, Duplicate: 30 * ms, Changes: 2,
		Settled: 301 * ms, FirstError: failed, FirstFailure: 15 * ms,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, row := range []struct {
		name            string
		record          Record
		outage, silence time.Duration
	}{
		{"nobody answers", Record{End: 70 * ms, WireRequests: []time.Duration{0, 10 * ms}}, 70 * ms, 70 * ms},
		{"off the link", Record{End: 70 * ms, Requests: []Request{{Start: 0, End: 20 * ms}}}, 50 * ms, 0},
		{
			"late",
			Record{
				End: 90 * ms, WireRequests: []time.Duration{0}, WireAnswers: []Answer{{80 * ms, "a"}, {85 * ms, "a"}},
				Requests: []Request{{Start: 60 * ms, End: 65 * ms}},
			},
			65 * ms, 80 * ms,
		},
		{
			"at the end",
			Record{
				End: 90 * ms, WireRequests: []time.Duration{0}, WireAnswers: []Answer{{5 * ms, "a"}, {15 * ms, "a"}},
				Requests: []Request{{Start: 0, End: 20 * ms}},
			},
			70 * ms, 5 * ms,
		},
		{
			"asked no more",
			Record{
				End: 900 * ms, WireRequests: []time.Duration{0, 10 * ms, 500 * ms},
				WireAnswers: []Answer{{1 * ms, "a"}, {13 * ms, "a"}, {501 * ms, "a"}},
			},
			900 * ms, 3 * ms,
		},
		{
			"one that was under way",
			Record{End: 30 * ms, Requests: []Request{{Start: 0, End: 20 * ms}, {Start: 10 * ms, End: 35 * ms}}}, 20 * ms, 0,
		},
	} {
		if got := row.record.Figures(); got.Silence != row.silence || got.Outage != row.outage {
			t.Errorf("%s: %s", row.name, got)
		}
	}
}

// TestFiguresSettled checks since when one station answers alone.
func TestFiguresSettled(t *testing.T) {
	const ms = time.Millisecond
	asked := []time.Duration{0, 10 * ms, 20 * ms}
	for _, row := range []struct {
		name   string
		record Record
		want   time.Duration
	}{
		{"nobody answers", Record{WireRequests: asked}, 90 * ms},
		{"off the link", Record{}, 0},
		{"one from the beginning", Record{WireRequests: asked, WireAnswers: []Answer{{1 * ms, "a"}, {11 * ms, "a"}}}, 1 * ms},
		{"one after a silence", Record{WireRequests: asked, WireAnswers: []Answer{{21 * ms, "a"}}}, 21 * ms},
		{"another", Record{WireRequests: asked, WireAnswers: []Answer{{1 * ms, "a"}, {21 * ms, "b"}}}, 21 * ms},
		{
			"one of two",
			Record{
				WireRequests: asked,
				WireAnswers:  []Answer{{1 * ms, "b"}, {2 * ms, "a"}, {11 * ms, "a"}, {12 * ms, "b"}, {21 * ms, "b"}},
			},
			12 * ms,
		},
		{
			"two at the end", Record{WireRequests: asked, WireAnswers: []Answer{{1 * ms, "b"}, {21 * ms, "b"}, {22 * ms, "a"}}},
			22 * ms,
		},
	} {
		row.record.End = 90 * ms
		if got := row.record.Figures().Settled; got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// TestFiguresFromElsewhere checks that requests whose connections were reset count as in
// flight only from a host that hears no answers by ARP or ND.
func TestFiguresFromElsewhere(t *testing.T) {
	const ms = time.Millisecond
	reset := fmt.Errorf("dial: %w", syscall.ECONNRESET)
	r := Record{
		End: 40 * ms,
		Requests: []Request{
			{Start: 0, End: 2 * ms}, {Start: 10 * ms, End: 12 * ms, Err: reset},
			{Start: 20 * ms, End: 30 * ms, Err: errors.New("timeout")}, {Start: 30 * ms, End: 32 * ms},
		},
	}
	if got := r.Figures(); got.Failed != 1 || got.InFlight != 1 {
		t.Errorf("from elsewhere: %+v", got)
	}
	r.WireAnswers = []Answer{{At: 1 * ms, MAC: "a"}}
	if got := r.Figures(); got.Failed != 2 || got.InFlight != 0 {
		t.Errorf("on the link: %+v", got)
	}
}

// TestFiguresInFlight checks which failed requests count as under way when the station changed: the
// host hears of it by a claim, at 20 ms, not by what is answered to the meter.
func TestFiguresInFlight(t *testing.T) {
	const ms = time.Millisecond
	reset := fmt.Errorf("read: %w", syscall.ECONNRESET)
	for _, row := range []struct {
		name       string
		request    Request
		isInFlight bool
	}{
		{"over before the claim", Request{Start: 10 * ms, Connected: 11 * ms, End: 19 * ms, Err: reset}, false},
		{
			"begun between the answer and the claim", Request{Start: 18 * ms, Connected: 19 * ms, End: 21 * ms, Err: reset},
			true,
		},
		{"reset before it was connected", Request{Start: 18 * ms, End: 21 * ms, Err: reset}, true},
		{
			"begun before the kernel noted the claim", Request{Start: 22 * ms, Connected: 23 * ms, End: 24 * ms, Err: reset},
			true,
		},
		{"begun long after the claim", Request{Start: 31 * ms, Connected: 32 * ms, End: 33 * ms, Err: reset}, false},
		{"refused by the new station", Request{Start: 22 * ms, End: 24 * ms, Err: syscall.ECONNREFUSED}, false},
		{
			"timed out at the new station",
			Request{Start: 22 * ms, Connected: 23 * ms, End: 90 * ms, Err: errors.New("timeout")}, false,
		},
	} {
		r := Record{
			End: 100 * ms, Requests: []Request{row.request}, WireRequests: []time.Duration{0, 10 * ms, 17 * ms, 30 * ms},
			WireAnswers:   []Answer{{1 * ms, "a"}, {11 * ms, "a"}, {17 * ms, "b"}, {31 * ms, "b"}},
			UnaskedClaims: []Answer{{5 * ms, "a"}, {20 * ms, "b"}, {32 * ms, "b"}},
		}
		if got := r.Figures(); got.Failed+got.InFlight != 1 || got.InFlight == 1 != row.isInFlight {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
}

func TestWire(t *testing.T) {
	t.Parallel()
	holder := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	v4, v6 := netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")
	serialize := func(packets ...gopacket.SerializableLayer) []byte {
		buffer := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, packets...); err != nil {
			t.Fatal(err)
		}
		return buffer.Bytes()
	}
	arp := func(to net.HardwareAddr, operation uint16, says string) []byte {
		return serialize(&layers.Ethernet{SrcMAC: holder, DstMAC: to, EthernetType: layers.EthernetTypeARP}, &layers.ARP{
			AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
			Operation:       operation,
			SourceHwAddress: holder, SourceProtAddress: netip.MustParseAddr(says).AsSlice(), DstHwAddress: to,
			DstProtAddress: asker.v4.AsSlice(),
		})
	}
	na := func(to net.HardwareAddr, says string) []byte {
		target := netip.MustParseAddr(says).AsSlice()
		return serialize(&layers.Ethernet{SrcMAC: holder, DstMAC: to, EthernetType: layers.EthernetTypeIPv6},
			&layers.IPv6{
				Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: target, DstIP: asker.v6.AsSlice(),
			},
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)},
			&layers.ICMPv6NeighborAdvertisement{TargetAddress: target})
	}
	for _, row := range []struct {
		name  string
		frame []byte
		want  claim
	}{
		{"reply", arp(asker.mac, layers.ARPReply, "10.77.0.100"), claim{address: v4, answersAsker: true}},
		{"reply to another", arp(holder, layers.ARPReply, "10.77.0.100"), claim{address: v4}},
		{"request", arp(asker.mac, layers.ARPRequest, "10.77.0.100"), claim{address: v4}},
		{
			"announcement", arp(layers.EthernetBroadcast, layers.ARPRequest, "10.77.0.100"), claim{address: v4, isToAll: true},
		},
		{"advertisement", na(asker.mac, "fd00:77::100"), claim{address: v6, answersAsker: true}},
		{
			"advertisement to all", na(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, "fd00:77::100"),
			claim{address: v6, isToAll: true},
		},
		{"cut off", arp(asker.mac, layers.ARPReply, "10.77.0.100")[:20], claim{}},
		{
			"neither", serialize(&layers.Ethernet{SrcMAC: holder, DstMAC: asker.mac, EthernetType: layers.EthernetTypeIPv6}),
			claim{},
		},
	} {
		if row.want.address.IsValid() {
			row.want.mac = holder.String()
		}
		got, ok := parseClaim(row.frame)
		if ok != row.want.address.IsValid() || ok && got != row.want {
			t.Errorf("%s: %+v, %t", row.name, got, ok)
		}
	}
	for _, address := range []string{"10.77.0.100", "fd00:77::100"} {
		frame, err := requestFrame(netip.MustParseAddr(address))
		if err != nil || len(frame) < 42 {
			t.Errorf("the question for %s: %v, %v", address, frame, err)
		}
	}
}

// TestFiguresRetransmitted checks which requests count as those whose SYN was sent again.
func TestFiguresRetransmitted(t *testing.T) {
	const ms = time.Millisecond
	failed := errors.New("timeout")
	for _, row := range []struct {
		name                  string
		request               Request
		retransmitted, failed int
	}{
		{"connected at once", Request{Start: 5000 * ms, Connected: 5001 * ms, End: 5002 * ms}, 0, 0},
		{"connected at once, answered late", Request{Start: 5000 * ms, Connected: 5001 * ms, End: 6500 * ms}, 0, 0},
		{"connected a little late", Request{Start: 5000 * ms, Connected: 5999 * ms, End: 6000 * ms}, 0, 0},
		{"connected by the second SYN", Request{Start: 5000 * ms, Connected: 6000 * ms, End: 6001 * ms}, 1, 0},
		{
			"connected by the second SYN, and then failed",
			Request{Start: 5000 * ms, Connected: 6000 * ms, End: 6001 * ms, Err: failed}, 0, 1,
		},
		{"never connected", Request{Start: 5000 * ms, End: 8000 * ms, Err: failed}, 0, 1},
	} {
		if got := (Record{
			End: 9000 * ms, Requests: []Request{row.request},
		}).Figures(); got.Retransmitted != row.retransmitted || got.Failed != row.failed {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
}

func TestErrors(t *testing.T) {
	const ms = time.Millisecond
	const refused = "refused\n" // as the last line of a program's output
	r := Record{
		Requests: []Request{
			{Start: 1 * ms, End: 2 * ms}, {Start: 3 * ms, End: 5 * ms, Err: errors.New(refused)},
			{Start: 2 * ms, End: 3002 * ms, Err: errors.New("timeout")},
		},
	}
	if got, want := r.Errors(), []string{"3ms–5ms: refused", "2ms–3.002s: timeout"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
