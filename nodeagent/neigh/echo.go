package neigh

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

const (
	etherTypeIPv4    = 0x0800
	ipv4HeaderLength = 20 // without options
	echoHeaderLength = 8

	protocolICMP      = 1
	icmpEchoReply     = 0
	icmpEchoRequest   = 8
	icmpv6EchoRequest = 128
	icmpv6EchoReply   = 129

	// echoTTL is the hop limit of echo requests: a router that receives one by mistake does not
	// forward the packet.
	echoTTL = 1
)

// Echo is an ICMP or ICMPv6 echo request for one station (RFC 792, RFC 4443 section 4.1), or the
// answer to it. The station's kernel answers, whatever its programs do.
type Echo struct {
	// Addr is the address of the station, and Sender one of the node's own of the same family,
	// to which the station answers. An answer has no Sender.
	Addr, Sender netip.Addr
	// MAC of the station.
	MAC MAC
	// ID and Token tell the requests of one sender apart from all others, and Sequence those of
	// one sender from each other.
	ID, Sequence uint16
	Token        [8]byte
}

// errNoEcho means that a frame is no answer to an echo request.
var errNoEcho = errors.New("not an echo reply")

// RequestFrame builds the frame.
func (e Echo) RequestFrame(source MAC) ([]byte, error) {
	if !e.Addr.IsValid() || !e.Sender.IsValid() || e.Addr.Is4() != e.Sender.Is4() || e.Addr.Is4In6() || e.Sender.Is4In6() {
		return nil, errors.New("an echo request needs two addresses of one family")
	}
	message := make([]byte, echoHeaderLength, echoHeaderLength+len(e.Token))
	binary.BigEndian.PutUint16(message[4:], e.ID)
	binary.BigEndian.PutUint16(message[6:], e.Sequence)
	message = append(message, e.Token[:]...)
	if e.Addr.Is6() {
		message[0] = icmpv6EchoRequest
		return wrapUnicastIPv6(e.MAC, source, e.Sender, e.Addr, message), nil
	}
	message[0] = icmpEchoRequest
	binary.BigEndian.PutUint16(message[2:], internetChecksum(0, message))
	return wrapIPv4(e.MAC, source, e.Sender, e.Addr, message), nil
}

// wrapUnicastIPv6 wraps an ICMPv6 message in an IPv6 packet for one station, and the packet in a
// frame.
func wrapUnicastIPv6(station, source MAC, from, to netip.Addr, message []byte) []byte {
	frame := wrapIPv6(station, source, from, to.WithZone(""), message)
	frame[ethernetHeaderLength+7] = echoTTL
	return frame
}

// wrapIPv4 wraps an ICMP message in an IPv4 packet (RFC 791), and the packet in a frame.
func wrapIPv4(station, source MAC, from, to netip.Addr, message []byte) []byte {
	frame := ethernetHeader(station, source, etherTypeIPv4)
	frame = append(frame, 4<<4|ipv4HeaderLength/4, 0)
	length := uint16(ipv4HeaderLength + len(message)) //nolint:gosec // some tens of bytes
	frame = binary.BigEndian.AppendUint16(frame, length)
	frame = append(frame, 0, 0, 0x40, 0) // never fragmented
	frame = append(frame, echoTTL, protocolICMP, 0, 0)
	frame = append(frame, from.AsSlice()...)
	frame = append(frame, to.AsSlice()...)
	binary.BigEndian.PutUint16(frame[ethernetHeaderLength+10:], internetChecksum(0, frame[ethernetHeaderLength:]))
	return append(frame, message...)
}

// ParseEcho reads the answer to an echo request in an Ethernet frame. Its MAC is the station
// that sent the frame.
func ParseEcho(frame []byte) (Echo, error) {
	if len(frame) < ethernetHeaderLength {
		return Echo{}, errNoEcho
	}
	var message []byte
	var from netip.Addr
	p, reply := frame[ethernetHeaderLength:], byte(icmpEchoReply)
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeIPv4:
		if len(p) < ipv4HeaderLength || p[0] != 4<<4|ipv4HeaderLength/4 || p[9] != protocolICMP ||
			binary.BigEndian.Uint16(p[6:])&0x3fff != 0 {
			return Echo{}, errNoEcho
		}
		from, message = netip.AddrFrom4([4]byte(p[12:])),
			slicePacket(p, ipv4HeaderLength, int(binary.BigEndian.Uint16(p[2:])))
	case etherTypeIPv6:
		if len(p) < ipv6HeaderLength || p[0]>>4 != 6 || p[6] != protocolICMPv6 {
			return Echo{}, errNoEcho
		}
		reply = icmpv6EchoReply
		from, message = netip.AddrFrom16([16]byte(p[8:])),
			slicePacket(p, ipv6HeaderLength, ipv6HeaderLength+int(binary.BigEndian.Uint16(p[4:])))
	}
	e := Echo{Addr: from, MAC: MAC(frame[6:12])}
	if len(message) < echoHeaderLength+len(e.Token) || message[0] != reply || message[1] != 0 || !e.MAC.isStation() {
		return Echo{}, errNoEcho
	}
	e.ID, e.Sequence = binary.BigEndian.Uint16(message[4:]), binary.BigEndian.Uint16(message[6:])
	copy(e.Token[:], message[echoHeaderLength:])
	return e, nil
}

// slicePacket returns a part of a packet; nil if the packet does not hold it.
func slicePacket(packet []byte, from, to int) []byte {
	if from > to || to > len(packet) {
		return nil
	}
	return packet[from:to]
}
