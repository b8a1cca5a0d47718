package sim

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
)

// Where the parts of frames begin, and what they say.
const (
	typeAt, payloadAt            = 12, 14
	typeIPv4, typeARP, typeIPv6  = 0x0800, 0x0806, 0x86dd
	lengthARP, headerIPv4        = 28, 20
	headerIPv6, lengthND         = 40, 24
	arpRequest, arpReply         = 1, 2
	protocolICMP, protocolICMPv6 = 1, 58
	flagSolicited, flagOverride  = 0x40, 0x20
)

// etherTypeOf returns the type of a frame's payload, and the payload; 0 if there is none.
func etherTypeOf(frame []byte) (uint16, []byte) {
	if len(frame) < payloadAt {
		return 0, nil
	}
	return binary.BigEndian.Uint16(frame[typeAt:]), frame[payloadAt:]
}

// icmpIn returns the ICMP message in the payload of a frame, its sender and its destination; nil if it is
// of another type.
func icmpIn(frame []byte) (message *icmp.Message, from, to netip.Addr) {
	etherType, p := etherTypeOf(frame)
	protocol := protocolICMP
	switch {
	case etherType == typeIPv4 && len(p) >= headerIPv4 && p[0] == 4<<4|headerIPv4/4 && p[9] == protocolICMP:
		from, to, p = netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:])), p[headerIPv4:]
	case etherType == typeIPv6 && len(p) >= headerIPv6 && p[6] == protocolICMPv6:
		protocol = protocolICMPv6
		from, to, p = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:])), p[headerIPv6:]
	default:
		return nil, from, to
	}
	message, err := icmp.ParseMessage(protocol, p)
	if err != nil {
		return nil, from, to
	}
	return message, from, to
}

// askedFor returns the address for which a frame asks by ARP or neighbour discovery.
func askedFor(frame []byte) (netip.Addr, bool) {
	if etherType, p := etherTypeOf(frame); etherType == typeARP {
		if len(p) < lengthARP || binary.BigEndian.Uint16(p[6:]) != arpRequest {
			return netip.Addr{}, false
		}
		sender, target := netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:]))
		return target, sender != target
	}
	if m, _, _ := icmpIn(frame); m != nil && m.Type == ipv6.ICMPTypeNeighborSolicitation {
		if body := bodyOf(m); len(body) >= lengthND-4 {
			return netip.AddrFrom16([16]byte(body[4:])), true
		}
	}
	return netip.Addr{}, false
}

// bodyOf returns the body of an ICMP message of which the package knows no more.
func bodyOf(m *icmp.Message) []byte {
	if raw, isRaw := m.Body.(*icmp.RawBody); isRaw {
		return raw.Data
	}
	return nil
}

// claimTo returns the answer to a question for an address: a station has it.
func claimTo(question []byte, mac neigh.MAC, target netip.Addr) []byte {
	asker := neigh.MAC(question[6:12])
	if target.Is4() {
		p := question[payloadAt:]
		answer := header(asker, mac, typeARP)
		answer = append(answer, 0, 1, 8, 0, 6, 4, 0, arpReply)
		answer = append(answer, mac[:]...)
		answer = append(answer, target.AsSlice()...)
		return append(answer, p[8:18]...) // the asker, with its address
	}
	_, from, _ := icmpIn(question)
	flags, to := byte(flagSolicited|flagOverride), from
	if from.IsUnspecified() {
		flags, to, asker = flagOverride, netip.IPv6LinkLocalAllNodes(), neigh.MAC{0x33, 0x33, 0, 0, 0, 1}
	}
	body := append([]byte{flags, 0, 0, 0}, target.AsSlice()...)
	body = append(body, 2, 1)
	body = append(body, mac[:]...)
	m := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: body}}
	return packet6(asker, mac, target, to, m)
}

// echoTo returns the address to which a frame sends an echo request.
func echoTo(frame []byte) (netip.Addr, bool) {
	m, _, to := icmpIn(frame)
	return to, m != nil && (m.Type == ipv4.ICMPTypeEcho || m.Type == ipv6.ICMPTypeEchoRequest)
}

// echoReply returns the answer to an echo request.
func echoReply(request []byte, mac neigh.MAC) []byte {
	m, from, to := icmpIn(request)
	asker := neigh.MAC(request[6:12])
	if to.Is6() {
		return packet6(asker, mac, to, from, icmp.Message{Type: ipv6.ICMPTypeEchoReply, Body: m.Body})
	}
	message, err := (&icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: m.Body}).Marshal(nil)
	if err != nil {
		return nil
	}
	answer := header(asker, mac, typeIPv4)
	answer = append(answer, 4<<4|headerIPv4/4, 0)
	answer = binary.BigEndian.AppendUint16(answer, uint16(headerIPv4+len(message))) //nolint:gosec // some tens of bytes
	answer = append(answer, 0, 0, 0, 0, 64, protocolICMP, 0, 0)
	answer = append(answer, to.AsSlice()...)
	answer = append(answer, from.AsSlice()...)
	return append(answer, message...)
}

// packet6 returns a frame with an ICMPv6 message.
func packet6(station, source neigh.MAC, from, to netip.Addr, m icmp.Message) []byte {
	message, err := m.Marshal(icmp.IPv6PseudoHeader(net.IP(from.AsSlice()), net.IP(to.AsSlice())))
	if err != nil {
		return nil
	}
	frame := header(station, source, typeIPv6)
	frame = append(frame, 6<<4, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(message))) //nolint:gosec // some tens of bytes
	frame = append(frame, protocolICMPv6, 255)
	frame = append(frame, from.AsSlice()...)
	frame = append(frame, to.AsSlice()...)
	return append(frame, message...)
}

// header begins a frame.
func header(to, from neigh.MAC, etherType uint16) []byte {
	return binary.BigEndian.AppendUint16(slices.Concat(to[:], from[:]), etherType)
}
