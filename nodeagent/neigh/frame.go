package neigh

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address in lower case with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// isStation reports whether an address can be that of a station.
func (m MAC) isStation() bool { return m != MAC{} && !isGroup(m[0]) }

// isGroup reports whether the first byte of an Ethernet address marks it as an address of
// many stations: broadcast or multicast (IEEE 802).
func isGroup(first byte) bool { return first&1 != 0 }

// broadcast addresses every station on the link.
var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// allNodes is ff02::1 (RFC 4291 section 2.7.1).
var allNodes = netip.IPv6LinkLocalAllNodes()

const (
	etherTypeARP  = 0x0806
	etherTypeIPv6 = 0x86dd

	ethernetHeaderLength = 14
	ipv6HeaderLength     = 40
	arpLength            = 28
	ndLength             = 24 // of a solicitation or advertisement without options
	maxFrameLength       = 86 // of the longest frame that is built here: neighbour discovery with one option

	arpRequest = 1
	arpReply   = 2

	protocolICMPv6    = 58
	icmpSolicitation  = 135
	icmpAdvertisement = 136

	optionSourceLinkLayer = 1
	optionTargetLinkLayer = 2

	flagSolicited = 0x40
	flagOverride  = 0x20
)

// GratuitousARP builds an ARP announcement (RFC 5227 section 2.3): a broadcast request
// whose sender and target are the announced address. Every implementation accepts the
// request form.
func GratuitousARP(source MAC, addr netip.Addr) ([]byte, error) {
	return buildARPRequest(broadcast, source, addr, addr)
}

// ARPProbe builds a question for an address (RFC 5227 section 2.1.1): a broadcast request
// whose sender address is 0, so that no station learns a sender from it.
func ARPProbe(source MAC, addr netip.Addr) ([]byte, error) {
	return buildARPRequest(broadcast, source, netip.IPv4Unspecified(), addr)
}

// buildARPRequest builds an ARP request for Ethernet and IPv4 (RFC 826), in a frame for
// one station or for all.
func buildARPRequest(to, source MAC, sender, target netip.Addr) ([]byte, error) {
	if !target.Is4() || !sender.Is4() {
		return nil, fmt.Errorf("%s and %s must both be IPv4 addresses", sender, target)
	}
	frame := ethernetHeader(to, source, etherTypeARP)
	frame = binary.BigEndian.AppendUint16(frame, 1)      // Ethernet
	frame = binary.BigEndian.AppendUint16(frame, 0x0800) // IPv4
	frame = append(frame, 6, 4)                          // lengths of their addresses
	frame = binary.BigEndian.AppendUint16(frame, arpRequest)
	frame = append(frame, source[:]...)
	frame = append(frame, sender.AsSlice()...)
	frame = append(frame, make([]byte, 6)...) // the target's MAC, which is unknown
	return append(frame, target.AsSlice()...), nil
}

// UnsolicitedNA builds an announcement of an address (RFC 4861 section 7.2.6): an
// advertisement to all nodes, with the override flag, so that they replace the entries in
// their caches.
func UnsolicitedNA(source MAC, addr netip.Addr) ([]byte, error) {
	if !isIPv6(addr) {
		return nil, fmt.Errorf("%s is not an IPv6 address", addr)
	}
	message := buildND(icmpAdvertisement, flagOverride, addr)
	message = append(message, optionTargetLinkLayer, 1) // length in units of 8 bytes
	message = append(message, source[:]...)
	return wrapIPv6(multicastMAC(allNodes), source, addr, allNodes, message), nil
}

// NDProbe builds a question for an address as duplicate address detection asks it
// (RFC 4862 section 5.4.2): from the unspecified address, so that no station learns a
// sender from it, and therefore without a source link-layer option (RFC 4861 section 4.3).
// The station that has the address answers with an advertisement to all nodes (RFC 4861
// section 7.2.4), which every station receives.
func NDProbe(source MAC, addr netip.Addr) ([]byte, error) {
	return buildSolicitation(multicastMAC(solicitedNodeGroup(addr)), source, netip.IPv6Unspecified(), addr)
}

// buildSolicitation builds a neighbour solicitation, in a frame for one station or for the
// multicast group. A solicitation with a sender has a source link-layer option, so that the
// answer goes to the sender alone (RFC 4861 section 7.2.4). The packet in the frame is for
// the multicast group in either case: a station without the address drops such a packet,
// and does not forward it.
func buildSolicitation(to, source MAC, sender, target netip.Addr) ([]byte, error) {
	if !isIPv6(target) || !isIPv6(sender) {
		return nil, fmt.Errorf("%s and %s must both be IPv6 addresses", sender, target)
	}
	message := buildND(icmpSolicitation, 0, target)
	if !sender.IsUnspecified() {
		message = append(message, optionSourceLinkLayer, 1) // length in units of 8 bytes
		message = append(message, source[:]...)
	}
	return wrapIPv6(to, source, sender, solicitedNodeGroup(target), message), nil
}

func isIPv6(addr netip.Addr) bool { return addr.Is6() && !addr.Is4In6() }

// solicitedNodeGroup returns the multicast group of the nodes that may have an address (RFC
// 4291 section 2.7.1). For what is no IPv6 address it returns any group, because
// buildSolicitation refuses such an address.
func solicitedNodeGroup(addr netip.Addr) netip.Addr {
	if !isIPv6(addr) {
		return allNodes
	}
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// buildND builds a neighbour solicitation or advertisement without options (RFC 4861
// sections 4.3 and 4.4), with a checksum of 0.
func buildND(icmpType, flags byte, target netip.Addr) []byte {
	return append([]byte{icmpType, 0, 0, 0, flags, 0, 0, 0}, target.WithZone("").AsSlice()...)
}

// multicastMAC returns the Ethernet address of a multicast group (RFC 2464 section 7).
func multicastMAC(group netip.Addr) MAC {
	g := group.As16()
	return MAC{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// wrapIPv6 wraps an ICMPv6 message in an IPv6 packet to a multicast group, and the packet
// in a frame. The hop limit of 255 proves to the receiver that the packet was sent on this
// link (RFC 4861 section 7.1).
func wrapIPv6(station, source MAC, from, to netip.Addr, message []byte) []byte {
	group := to.As16()
	frame := ethernetHeader(station, source, etherTypeIPv6)
	frame = append(frame, 6<<4, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(message))) //nolint:gosec // some tens of bytes
	frame = append(frame, protocolICMPv6, 255)
	frame = append(frame, from.WithZone("").AsSlice()...)
	frame = append(frame, group[:]...)
	binary.BigEndian.PutUint16(message[2:], checksum(frame[ethernetHeaderLength:], message))
	return append(frame, message...)
}

// ethernetHeader begins a frame, with room for its payload.
func ethernetHeader(to, from MAC, etherType uint16) []byte {
	frame := make([]byte, 0, maxFrameLength)
	frame = append(frame, to[:]...)
	frame = append(frame, from[:]...)
	return binary.BigEndian.AppendUint16(frame, etherType)
}

// checksum returns the checksum of an ICMPv6 message (RFC 4443 section 2.3): over the
// message and a pseudo-header of the addresses, its length and the protocol number. Over a
// message that contains its checksum the result is 0.
func checksum(ipv6Header, message []byte) uint16 {
	length := uint32(len(message)) //nolint:gosec // some tens of bytes
	return internetChecksum(length+protocolICMPv6, ipv6Header[8:ipv6HeaderLength], message)
}

// internetChecksum returns the checksum of RFC 1071 over parts, of which only the last may have an
// odd length, added to an earlier sum.
func internetChecksum(sum uint32, parts ...[]byte) uint16 {
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
