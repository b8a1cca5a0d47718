package neigh

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// replyTo makes of an echo request the answer to it.
func replyTo(request []byte) []byte {
	reply := append([]byte{}, request...)
	copy(reply, request[6:12])
	copy(reply[6:], request[:6])
	if reply[12] == etherTypeIPv4>>8 && reply[13] == etherTypeIPv4&0xff {
		copy(reply[ethernetHeaderLength+12:], request[ethernetHeaderLength+16:ethernetHeaderLength+20])
		copy(reply[ethernetHeaderLength+16:], request[ethernetHeaderLength+12:ethernetHeaderLength+16])
		reply[offsetTypeIPv4] = icmpEchoReply
		return reply
	}
	copy(reply[ethernetHeaderLength+8:], request[ethernetHeaderLength+24:ethernetHeaderLength+40])
	copy(reply[ethernetHeaderLength+24:], request[ethernetHeaderLength+8:ethernetHeaderLength+24])
	reply[offsetTypeICMP] = icmpv6EchoReply
	return reply
}

func TestEchoFrames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ addr, sender string }{
		{"192.0.2.1", "192.0.2.11"}, {"2001:db8::1", "2001:db8::11"}, {"fe80::1", "fe80::11"},
	} {
		e := Echo{
			Addr: netip.MustParseAddr(c.addr), Sender: netip.MustParseAddr(c.sender), MAC: neighbourMAC,
			ID: 0x1234, Sequence: 0xfffe, Token: [8]byte{1, 2, 3, 4, 5, 6, 7, 8},
		}
		request, err := e.RequestFrame(localMAC)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseEcho(request); err == nil {
			t.Errorf("a request is parsed as %+v", got)
		}
		want := e
		want.Sender = netip.Addr{}
		got, err := ParseEcho(replyTo(request))
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		for n := range len(request) {
			if got, err := ParseEcho(replyTo(request)[:n]); err == nil {
				t.Errorf("%d bytes are parsed as %+v", n, got)
			}
		}
	}
	for _, c := range []struct{ addr, sender string }{
		{"192.0.2.1", "2001:db8::11"}, {"2001:db8::1", "192.0.2.11"}, {"::ffff:192.0.2.1", "2001:db8::11"},
	} {
		e := Echo{Addr: netip.MustParseAddr(c.addr), Sender: netip.MustParseAddr(c.sender), MAC: neighbourMAC}
		if _, err := e.RequestFrame(localMAC); err == nil {
			t.Errorf("a request from %s to %s is built", c.sender, c.addr)
		}
	}
	if _, err := (Echo{Addr: netip.MustParseAddr("192.0.2.1")}).RequestFrame(localMAC); err == nil {
		t.Error("a request without a sender is built")
	}
}

func FuzzParseEcho(f *testing.F) {
	for _, addrs := range [][2]string{{"192.0.2.1", "192.0.2.11"}, {"2001:db8::1", "2001:db8::11"}} {
		e := Echo{Addr: netip.MustParseAddr(addrs[0]), Sender: netip.MustParseAddr(addrs[1]), MAC: neighbourMAC}
		request, err := e.RequestFrame(localMAC)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(request)
		f.Add(replyTo(request))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if e, err := ParseEcho(frame); (err == nil) != e.Addr.IsValid() || err == nil && !e.MAC.isStation() {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

func TestExchange(t *testing.T) {
	neighbour := connectNeighbour(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	neighbour.Run(t, "ip addr add 2001:db8::1/64 dev eth0 nodad")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	ethernet := openEthernet(t)
	x, err := ethernet.OpenExchange("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	other, err := ethernet.OpenExchange("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()

	// ask sends until the answer has come.
	ask := func(what string, send func() error, want ExchangeAnswer) {
		t.Helper()
		waitUntil(t, what, func() bool {
			if err := send(); err != nil {
				t.Fatal(err)
			}
			hasCome := false
			for end := time.Now().Add(100 * time.Millisecond); !hasCome && time.Now().Before(end); time.Sleep(time.Millisecond) {
				err := x.Drain(func(h ExchangeAnswer) { hasCome = hasCome || h == want })
				if err != nil {
					t.Fatal(err)
				}
			}
			return hasCome
		})
	}
	for target, sender := range map[string]string{"192.0.2.1": "192.0.2.11", "2001:db8::1": "2001:db8::11"} {
		addr := netip.MustParseAddr(target)
		ask("an echo of "+target, func() error { return x.SendEcho(addr, netip.MustParseAddr(sender), neighbourMAC, 7) },
			ExchangeAnswer{Sequence: 7, IsEcho: true, Addr: addr, MAC: neighbourMAC})
		question := Question{Target: Target{Interface: "eth0", Addr: addr}, Sender: netip.MustParseAddr(sender)}
		ask("an answer of "+target, func() error { return ethernet.AskStation(question, neighbourMAC) },
			ExchangeAnswer{Addr: addr, MAC: neighbourMAC, IsDirectAnswer: true})
	}
	write := newFrameSender(t, neighbour)
	for target, build := range map[string]func(MAC, netip.Addr) ([]byte, error){
		"192.0.2.3": GratuitousARP, "2001:db8::3": UnsolicitedNA,
	} {
		frame := buildFrame(t, build, target)
		ask("what "+target+" says to all", func() error { write(frame); return nil },
			ExchangeAnswer{Addr: netip.MustParseAddr(target), MAC: neighbourMAC})
	}
	toThis := buildFrame(t, GratuitousARP, "192.0.2.4")
	own, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	copy(toThis, own.HardwareAddr)
	ask("a request to this station", func() error { write(toThis); return nil },
		ExchangeAnswer{Addr: netip.MustParseAddr("192.0.2.4"), MAC: neighbourMAC})
	if err := other.Drain(func(h ExchangeAnswer) {
		if h.IsEcho {
			t.Errorf("another exchange hears %+v", h)
		}
	}); err != nil {
		t.Error(err)
	}

	frame := buildFrame(t, GratuitousARP, "192.0.2.3")
	for range maxDrained + 1 {
		write(frame)
	}
	if err := x.Drain(func(ExchangeAnswer) {}); !errors.Is(err, ErrLost) {
		t.Errorf("more frames than one Drain reads: %v", err)
	}
	waitUntil(t, "everything has been read", func() bool { return x.Drain(func(ExchangeAnswer) {}) == nil })

	nstest.Run(t, "ip link set eth0 down")
	waitUntil(t, "the interface is down", func() bool {
		err := x.Drain(func(ExchangeAnswer) {})
		return err != nil && !errors.Is(err, ErrLost)
	})
	if _, err := ethernet.OpenExchange("eth7"); err == nil {
		t.Error("an exchange is opened without the interface")
	}
}
