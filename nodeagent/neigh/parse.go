package neigh

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Kind is the kind of packet in which a Message came.
type Kind int

// Kinds of messages.
const (
	// ARPRequest is an ARP request, gratuitous or not, from the station that has the address.
	ARPRequest Kind = iota + 1
	// ARPReply is an ARP reply.
	ARPReply
	// NeighbourAdvertisement is a neighbour advertisement.
	NeighbourAdvertisement
)

// Message is a station's claim that it has an address.
type Message struct {
	Kind Kind
	Addr netip.Addr
	// MAC is where the address is, as the message claims.
	MAC MAC
	// IsGratuitous means that the message answers no question: an ARP announcement, or an
	// unsolicited advertisement.
	IsGratuitous bool
	// Override is the flag of an advertisement.
	Override bool
	// IsDirect means that the frame was for one station, and not for all: usually an answer.
	IsDirect bool
}

// errNoClaim means that a frame claims no address for any station.
var errNoClaim = errors.New("not a claim of an address")

// ParseMessage reads the claim in an Ethernet frame. ARP probes and solicitations claim nothing,
// because their senders ask; nor does a packet that names no station, or a group, as the
// station that has the address.
func ParseMessage(frame []byte) (Message, error) {
	if len(frame) < ethernetHeaderLength {
		return Message{}, errNoClaim
	}
	m, err := Message{}, errNoClaim
	payload := frame[ethernetHeaderLength:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeARP:
		m, err = parseARP(payload)
	case etherTypeIPv6:
		m, err = parseAdvertisement(MAC(frame[6:12]), payload)
	}
	if err != nil || !m.MAC.isStation() {
		return Message{}, errNoClaim
	}
	m.IsDirect = !isGroup(frame[0])
	return m, nil
}

// parseARP reads an ARP packet. Any packet with the address as its sender is a claim (RFC
// 5227 section 2.1.1).
func parseARP(p []byte) (Message, error) {
	if len(p) < arpLength || [6]byte(p) != [6]byte{0, 1, 0x08, 0, 6, 4} {
		return Message{}, errNoClaim
	}
	sender, target := netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:]))
	if sender.IsUnspecified() {
		return Message{}, errNoClaim
	}
	m := Message{Addr: sender, MAC: MAC(p[8:14]), IsGratuitous: sender == target}
	switch binary.BigEndian.Uint16(p[6:]) {
	case arpRequest:
		m.Kind = ARPRequest
	case arpReply:
		m.Kind = ARPReply
	default:
		return Message{}, errNoClaim
	}
	return m, nil
}

// parseAdvertisement reads an IPv6 packet with a neighbour advertisement, and validates it
// as RFC 4861 section 7.1.2 requires. An advertisement without a target link-layer option
// claims the address for the station that sent the frame.
func parseAdvertisement(source MAC, p []byte) (Message, error) {
	if len(p) < ipv6HeaderLength || p[0]>>4 != 6 || p[6] != protocolICMPv6 || p[7] != 255 {
		return Message{}, errNoClaim
	}
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length < ndLength || len(p) < ipv6HeaderLength+length {
		return Message{}, errNoClaim
	}
	icmp := p[ipv6HeaderLength : ipv6HeaderLength+length]
	if icmp[0] != icmpAdvertisement || icmp[1] != 0 || checksum(p, icmp) != 0 {
		return Message{}, errNoClaim
	}
	target := netip.AddrFrom16([16]byte(icmp[8:]))
	to := netip.AddrFrom16([16]byte(p[24:]))
	solicited := icmp[4]&flagSolicited != 0
	if target.IsMulticast() || to.IsMulticast() && solicited {
		return Message{}, errNoClaim
	}
	m := Message{
		Kind: NeighbourAdvertisement, Addr: target, MAC: source, IsGratuitous: !solicited,
		Override: icmp[4]&flagOverride != 0,
	}
	for options := icmp[ndLength:]; len(options) > 0; {
		if len(options) < 8 || options[1] == 0 || len(options) < int(options[1])*8 {
			return Message{}, errNoClaim
		}
		if options[0] == optionTargetLinkLayer && options[1] == 1 {
			m.MAC = MAC(options[2:8])
		}
		options = options[int(options[1])*8:]
	}
	return m, nil
}
