package neigh

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

func TestListen(t *testing.T) {
	neighbour := connectNeighbour(t)
	neighbour.Run(t, "ip addr add 192.0.2.1/24 dev eth0")
	neighbour.Run(t, "ip addr add 2001:db8::1/64 dev eth0 nodad")
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan Message, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- openEthernet(t).Listen(
			ctx, "eth0", func(a netip.Addr) bool { return a.String() != "192.0.2.7" }, func(m Message) { heard <- m },
		)
	}()
	// Listen may take a moment to open its sockets: provoke is called until a message comes. Each
	// call of expect has an address of its own, as a second answer may come late.
	expect := func(what string, provoke func(), want Message) {
		t.Helper()
		deadline := time.After(patience)
		for {
			provoke()
			select {
			case m := <-heard:
				if m == want {
					return
				}
				if m.Addr == want.Addr {
					t.Fatalf("%s: got %+v, want %+v", what, m, want)
				}
			case <-time.After(100 * time.Millisecond):
			case err := <-ended:
				t.Fatalf("%s: Listen has returned: %v", what, err)
			case <-deadline:
				t.Fatalf("%s: no message", what)
			}
		}
	}
	ask := func(address string) func() {
		return func() {
			if err := openEthernet(t).Ask(questionsFor("eth0", address)[0]); err != nil {
				t.Error(err)
			}
		}
	}
	expect(
		"an answer by ARP", ask("192.0.2.1"),
		Message{Kind: ARPReply, Addr: netip.MustParseAddr("192.0.2.1"), MAC: neighbourMAC, IsDirect: true},
	)
	// The answer to a solicitation without a sender goes to all nodes.
	expect(
		"an answer by ND", ask("2001:db8::1"),
		Message{
			Kind: NeighbourAdvertisement, Addr: netip.MustParseAddr("2001:db8::1"), MAC: neighbourMAC, IsGratuitous: true,
			Override: true,
		},
	)
	write := newFrameSender(t, neighbour)
	expect("a claim", func() { write(buildFrame(t, GratuitousARP, "192.0.2.3")) },
		Message{Kind: ARPRequest, Addr: netip.MustParseAddr("192.0.2.3"), MAC: neighbourMAC, IsGratuitous: true})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	heard = make(chan Message, 100)
	go func() {
		ended <- openEthernet(t).Listen(
			t.Context(), "eth0", func(netip.Addr) bool { return true }, func(m Message) { heard <- m },
		)
	}()
	expect(
		"an answer to the next Listen", ask("192.0.2.1"),
		Message{Kind: ARPReply, Addr: netip.MustParseAddr("192.0.2.1"), MAC: neighbourMAC, IsDirect: true},
	)
	nstest.Run(t, "ip link set eth0 down")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Listen returns no error when the interface goes down")
		}
	case <-time.After(patience):
		t.Error("Listen does not return when the interface goes down")
	}
	if err := openEthernet(t).Listen(t.Context(), "eth7", nil, nil); err == nil {
		t.Error("Listen returns no error without the interface")
	}
}
