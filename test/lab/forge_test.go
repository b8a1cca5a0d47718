package lab

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// TestForge checks that frames of a Forger are heard as claims and answers of the station in
// whose name it sends them, by one who asks as the Meter does.
func TestForge(t *testing.T) {
	victim := net.HardwareAddr{2, 0, 0, 0x77, 0, 0x12}
	for _, address := range []netip.Addr{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("fd00:77::100")} {
		frame, err := requestFrame(address)
		if err != nil {
			t.Fatal(err)
		}
		q, ok := parseQuestion(frame)
		from := asker.v4
		if address.Is6() {
			from = asker.v6
		}
		if !ok || q.address != address || q.from != from || q.mac.String() != asker.mac.String() {
			t.Errorf("the question for %s: %+v, %t", address, q, ok)
		}
		probe := q
		if probe.from = netip.IPv4Unspecified(); address.Is6() {
			probe.from = netip.IPv6Unspecified()
		}
		for _, row := range []struct {
			name         string
			frame        func() ([]byte, error)
			answersAsker bool
		}{
			{"claim", func() ([]byte, error) { return claimFrame(victim, address) }, false},
			{"answer", func() ([]byte, error) { return answerFrame(victim, q) }, true},
			{"answer to a probe", func() ([]byte, error) { return answerFrame(victim, probe) }, address.Is4()}, // by ND to all
		} {
			frame, err := row.frame()
			if err != nil {
				t.Fatal(err)
			}
			want := claim{
				address: address, mac: victim.String(), answersAsker: row.answersAsker, isToAll: !row.answersAsker,
			}
			if got, ok := parseClaim(frame); !ok || got != want {
				t.Errorf("%s for %s: %+v, %t", row.name, address, got, ok)
			}
			if q, ok := parseQuestion(frame); ok {
				t.Errorf("%s for %s is taken for a question: %+v", row.name, address, q)
			}
		}
	}
}

// TestForgedAdvertisement checks the flags and the option by which a station believes an
// advertisement (RFC 4861 section 7.2.5).
func TestForgedAdvertisement(t *testing.T) {
	victim, address := net.HardwareAddr{2, 0, 0, 0x77, 0, 0x12}, netip.MustParseAddr("fd00:77::100")
	frame, err := answerFrame(victim, question{address: address, mac: asker.mac, from: asker.v6})
	if err != nil {
		t.Fatal(err)
	}
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	na, ok := packet.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	if !ok || !na.Solicited() || !na.Override() || na.Router() || len(na.Options) != 1 {
		t.Fatalf("%v", packet)
	}
	if got := net.HardwareAddr(na.Options[0].Data).String(); got != victim.String() {
		t.Errorf("%v", packet)
	}
	if ip := packet.Layer(layers.LayerTypeIPv6).(*layers.IPv6); ip.HopLimit != 255 || !ip.DstIP.Equal(asker.v6.AsSlice()) {
		t.Errorf("%v", packet)
	}
}
