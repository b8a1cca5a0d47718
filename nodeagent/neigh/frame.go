package neigh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String is lower case with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// broadcast is every station on the link.
var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// allNodes is ff02::1 (RFC 4291 section 2.7.1).
var allNodes = netip.IPv6LinkLocalAllNodes()

const (
	etherTypeARP  = 0x0806
	etherTypeIPv6 = 0x86dd

	headerEthernet = 14
	headerIPv6     = 40
	lengthARP      = 28
	lengthND       = 24 // of a solicitation or advertisement without options

	arpRequest = 1
	arpReply   = 2

	protocolICMPv6    = 58
	icmpSolicitation  = 135
	icmpAdvertisement = 136

	optionTargetLinkLayer = 2

	flagSolicited = 0x40
	flagOverride  = 0x20
)

// GratuitousARP is an ARP announcement (RFC 5227 section 2.3): a broadcast
// request whose sender and target are the address announced. The request form
// is the one that every implementation takes.
func GratuitousARP(source MAC, addr netip.Addr) ([]byte, error) {
	return arp(source, addr, addr)
}

// ARPProbe asks who has an address (RFC 5227 section 2.1.1): a broadcast
// request whose sender address is 0, so that nobody learns it.
func ARPProbe(source MAC, addr netip.Addr) ([]byte, error) {
	return arp(source, netip.IPv4Unspecified(), addr)
}

// arp is an ARP request for Ethernet and IPv4 (RFC 826), broadcast.
func arp(source MAC, sender, target netip.Addr) ([]byte, error) {
	if !target.Is4() {
		return nil, fmt.Errorf("%s is not an IPv4 address", target)
	}
	frame := ethernet(broadcast, source, etherTypeARP, lengthARP)
	frame = binary.BigEndian.AppendUint16(frame, 1)      // Ethernet
	frame = binary.BigEndian.AppendUint16(frame, 0x0800) // IPv4
	frame = append(frame, 6, 4)                          // lengths of their addresses
	frame = binary.BigEndian.AppendUint16(frame, arpRequest)
	frame = append(frame, source[:]...)
	frame = append(frame, sender.AsSlice()...)
	frame = append(frame, make([]byte, 6)...) // target's MAC: unknown
	return append(frame, target.AsSlice()...), nil
}

// UnsolicitedNA announces an address (RFC 4861 section 7.2.6): an advertisement
// to all nodes, with the override flag, so that they replace what they know.
func UnsolicitedNA(source MAC, addr netip.Addr) ([]byte, error) {
	if !isIPv6(addr) {
		return nil, fmt.Errorf("%s is not an IPv6 address", addr)
	}
	message := nd(icmpAdvertisement, flagOverride, addr)
	message = append(message, optionTargetLinkLayer, 1) // length in units of 8 bytes
	message = append(message, source[:]...)
	return ipv6(source, addr, allNodes, message), nil
}

// Solicitation asks who has an address, as duplicate address detection does
// (RFC 4862 section 5.4.2): from the unspecified address, so that nobody learns
// the sender, and therefore without a source link-layer option (RFC 4861
// section 4.3). Whoever has it advertises it to all nodes (RFC 4861 section
// 7.2.4), which every station hears.
func Solicitation(source MAC, addr netip.Addr) ([]byte, error) {
	if !isIPv6(addr) {
		return nil, fmt.Errorf("%s is not an IPv6 address", addr)
	}
	return ipv6(source, netip.IPv6Unspecified(), solicitedNode(addr), nd(icmpSolicitation, 0, addr)), nil
}

func isIPv6(addr netip.Addr) bool { return addr.Is6() && !addr.Is4In6() }

// solicitedNode is the multicast group of those that may have an address (RFC
// 4291 section 2.7.1).
func solicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// nd is a neighbour solicitation or advertisement without options (RFC 4861
// sections 4.3 and 4.4), its checksum 0.
func nd(kind, flags byte, target netip.Addr) []byte {
	message := make([]byte, 8, lengthND+8)
	message[0], message[4] = kind, flags
	return append(message, target.WithZone("").AsSlice()...)
}

// ipv6 wraps an ICMPv6 message in an IPv6 packet to a multicast group, and that
// in a frame. The hop limit of 255 proves that it was sent on this link (RFC
// 4861 section 7.1).
func ipv6(source MAC, from, to netip.Addr, message []byte) []byte {
	group := to.As16()
	multicast := MAC{0x33, 0x33, group[12], group[13], group[14], group[15]} // RFC 2464 section 7
	frame := ethernet(multicast, source, etherTypeIPv6, headerIPv6+len(message))
	frame = append(frame, 6<<4, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(message)))
	frame = append(frame, protocolICMPv6, 255)
	frame = append(frame, from.WithZone("").AsSlice()...)
	frame = append(frame, group[:]...)
	binary.BigEndian.PutUint16(message[2:], checksum(frame[headerEthernet:], message))
	return append(frame, message...)
}

func ethernet(to, from MAC, etherType uint16, payload int) []byte {
	frame := make([]byte, 0, headerEthernet+payload)
	frame = append(frame, to[:]...)
	frame = append(frame, from[:]...)
	return binary.BigEndian.AppendUint16(frame, etherType)
}

// checksum is that of an ICMPv6 message (RFC 4443 section 2.3): over it and a
// pseudo-header of the addresses, its length and the protocol number. Over a
// message that has its checksum it is 0.
func checksum(header, message []byte) uint16 {
	sum := uint32(len(message)) + protocolICMPv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(header[8:headerIPv6])
	add(message)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Kind is what a Message says.
type Kind int

// Kinds of messages.
const (
	// Request is an ARP request by the address's holder, gratuitous or not.
	Request Kind = iota + 1
	// Reply is an ARP reply.
	Reply
	// Advertisement is a neighbour advertisement.
	Advertisement
)

// Message is what a station says of an address: that it has it.
type Message struct {
	Kind Kind
	Addr netip.Addr
	// MAC that the address is said to be at.
	MAC MAC
	// Gratuitous means that nobody had asked: an ARP announcement, or an
	// unsolicited advertisement.
	Gratuitous bool
	// Override is the flag of an advertisement.
	Override bool
}

// errOther is a frame that says of no address that somebody has it.
var errOther = errors.New("not a claim of an address")

// Parse reads what an Ethernet frame says of an address. An ARP probe and a
// solicitation say nothing: their senders ask.
func Parse(frame []byte) (Message, error) {
	if len(frame) < headerEthernet {
		return Message{}, errOther
	}
	payload := frame[headerEthernet:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeARP:
		return parseARP(payload)
	case etherTypeIPv6:
		return parseIPv6(MAC(frame[6:12]), payload)
	}
	return Message{}, errOther
}

func parseARP(p []byte) (Message, error) {
	if len(p) < lengthARP || [6]byte(p) != [6]byte{0, 1, 0x08, 0, 6, 4} {
		return Message{}, errOther
	}
	sender, target := netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:]))
	if sender.IsUnspecified() {
		return Message{}, errOther
	}
	// Any ARP packet with the address as its sender counts (RFC 5227 section
	// 2.1.1).
	m := Message{Addr: sender, MAC: MAC(p[8:14]), Gratuitous: sender == target}
	switch binary.BigEndian.Uint16(p[6:]) {
	case arpRequest:
		m.Kind = Request
	case arpReply:
		m.Kind = Reply
	default:
		return Message{}, errOther
	}
	return m, nil
}

// parseIPv6 reads a neighbour advertisement, validated as RFC 4861 section
// 7.1.2 asks. Without a target link-layer option its sender speaks for itself.
func parseIPv6(source MAC, p []byte) (Message, error) {
	if len(p) < headerIPv6+lengthND || p[0]>>4 != 6 || p[6] != protocolICMPv6 || p[7] != 255 {
		return Message{}, errOther
	}
	length := int(binary.BigEndian.Uint16(p[4:]))
	if length < lengthND || len(p) < headerIPv6+length {
		return Message{}, errOther
	}
	icmp := p[headerIPv6 : headerIPv6+length]
	if icmp[0] != icmpAdvertisement || icmp[1] != 0 || checksum(p, icmp) != 0 {
		return Message{}, errOther
	}
	target := netip.AddrFrom16([16]byte(icmp[8:]))
	to := netip.AddrFrom16([16]byte(p[24:]))
	solicited := icmp[4]&flagSolicited != 0
	if target.IsMulticast() || to.IsMulticast() && solicited {
		return Message{}, errOther
	}
	m := Message{Kind: Advertisement, Addr: target, MAC: source, Gratuitous: !solicited, Override: icmp[4]&flagOverride != 0}
	for options := icmp[lengthND:]; len(options) > 0; {
		if len(options) < 8 || options[1] == 0 || len(options) < int(options[1])*8 {
			return Message{}, errOther
		}
		if options[0] == optionTargetLinkLayer && options[1] == 1 {
			m.MAC = MAC(options[2:8])
		}
		options = options[int(options[1])*8:]
	}
	return m, nil
}
