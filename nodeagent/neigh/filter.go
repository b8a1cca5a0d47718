package neigh

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Offsets at which a socket filter finds the kernel's own data about a frame
// (linux/filter.h: SKF_AD_OFF with SKF_AD_PKTTYPE and SKF_AD_IFINDEX).
const (
	filterPacketType = 0xfffff000 + 4
	filterInterface  = 0xfffff000 + 8
)

const (
	offsetSource      = 6                                           // of the Ethernet header
	offsetSenderIP    = ethernetHeaderLength + 14                   // of ARP
	offsetProtocol    = ethernetHeaderLength + 9                    // of IPv4
	offsetTypeIPv4    = ethernetHeaderLength + ipv4HeaderLength     // of an ICMP message
	offsetNextHeader  = ethernetHeaderLength + 6                    // of IPv6
	offsetTypeICMP    = ethernetHeaderLength + ipv6HeaderLength     //
	offsetTargetND    = ethernetHeaderLength + ipv6HeaderLength + 8 //
	filterWholeFrame  = 0xffff                                      // a filter returns this for a frame that passes
	filterJumpToEnd   = 0xff                                        // program replaces this by the real distance
	lengthFilterWords = 4                                           // of an IPv6 address
)

// filter is a socket filter (classic BPF) under construction. A frame that fails a test is
// dropped.
type filter []unix.SockFilter

// load loads a value of the frame for the tests that follow.
func (f *filter) load(size uint16, offset uint32) {
	*f = append(*f, unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: offset})
}

// dropUnless drops the frame unless the loaded value is this one.
func (f *filter) dropUnless(value uint32) {
	*f = append(*f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: filterJumpToEnd})
}

// dropIf drops the frame if the loaded value is this one.
func (f *filter) dropIf(value uint32) {
	*f = append(*f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: filterJumpToEnd})
}

// dropAbove drops the frame if the loaded value is greater than this one.
func (f *filter) dropAbove(value uint32) {
	*f = append(*f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: value, Jt: filterJumpToEnd})
}

// skipUnless skips the next n instructions unless the loaded value is this one.
func (f *filter) skipUnless(value uint32, n uint8) {
	*f = append(*f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: n})
}

// dropUnlessPrefixed drops the frame unless the address at an offset begins with the bits
// with which all of these addresses begin.
func (f *filter) dropUnlessPrefixed(offset uint32, addrs []netip.Addr) {
	values, masks := commonBits(addrs)
	for i, mask := range masks {
		if mask == 0 {
			return
		}
		f.load(unix.BPF_W, offset+uint32(4*i))
		*f = append(*f, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask})
		f.dropUnless(values[i])
	}
}

// program completes the filter: a frame that no test has dropped passes.
func (f *filter) program() []unix.SockFilter {
	*f = append(*f,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: filterWholeFrame},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
	last := len(*f) - 1
	for i := range *f {
		jump := &(*f)[i]
		if jump.Jt == filterJumpToEnd {
			jump.Jt = uint8(last - i - 1) //nolint:gosec // a filter has some tens of instructions
		}
		if jump.Jf == filterJumpToEnd {
			jump.Jf = uint8(last - i - 1) //nolint:gosec // as above
		}
	}
	return *f
}

// newFilter returns a filter that drops frames that the interface sends, and those for other stations and interfaces.
func newFilter(nic *net.Interface) *filter {
	f := &filter{}
	f.load(unix.BPF_W, filterPacketType)
	// frames to this host, to all and to groups have lower values; to others, and outgoing ones, higher
	f.dropAbove(unix.PACKET_MULTICAST)
	// A socket also receives the frames for a VLAN interface on top of its own interface.
	f.load(unix.BPF_W, filterInterface)
	f.dropUnless(uint32(nic.Index)) //nolint:gosec // the kernel counts interfaces in 31 bits
	return f
}

// claimFilter returns a filter that lets pass the claims of other stations, in one address
// family: ARP packets with a sender, or neighbour advertisements. It drops frames of other
// VLANs, frames for other stations, which an interface receives in promiscuous mode, and
// the interface's own. If addresses are given, it drops claims of other addresses as far as
// the common prefix of the given ones shows.
func claimFilter(nic *net.Interface, is6 bool, addrs []netip.Addr) []unix.SockFilter {
	f := newFilter(nic)
	own := nic.HardwareAddr
	f.load(unix.BPF_W, offsetSource)
	f.skipUnless(binary.BigEndian.Uint32(own), 2)
	f.load(unix.BPF_H, offsetSource+4)
	f.dropIf(uint32(binary.BigEndian.Uint16(own[4:])))

	if is6 {
		f.load(unix.BPF_B, offsetNextHeader)
		f.dropUnless(protocolICMPv6)
		f.load(unix.BPF_B, offsetTypeICMP)
		f.dropUnless(icmpAdvertisement)
		f.dropUnlessPrefixed(offsetTargetND, addrs)
		return f.program()
	}
	f.load(unix.BPF_W, offsetSenderIP)
	f.dropIf(0)
	f.dropUnlessPrefixed(offsetSenderIP, addrs)
	return f.program()
}

// echoFilter returns a filter that lets pass the answers of one family to the echo requests with
// an ID.
func echoFilter(nic *net.Interface, is6 bool, id uint16) []unix.SockFilter {
	f := newFilter(nic)
	protocol, kind, wantProtocol, wantKind := uint32(offsetProtocol), uint32(offsetTypeIPv4), uint32(protocolICMP),
		uint32(icmpEchoReply)
	if is6 {
		protocol, kind, wantProtocol, wantKind = offsetNextHeader, offsetTypeICMP, protocolICMPv6, icmpv6EchoReply
	}
	f.load(unix.BPF_B, protocol)
	f.dropUnless(wantProtocol)
	f.load(unix.BPF_B, kind)
	f.dropUnless(wantKind)
	f.load(unix.BPF_H, kind+4)
	f.dropUnless(uint32(id))
	return f.program()
}

// commonBits returns, in words of 32 bits, the bits with which all the addresses begin, and
// a mask of them. The addresses are of one family.
func commonBits(addrs []netip.Addr) (values, masks []uint32) {
	if len(addrs) == 0 {
		return nil, nil
	}
	first := wordsOf(addrs[0])
	differing := make([]uint32, len(first)) // bits in which some address differs from the first
	for _, addr := range addrs[1:] {
		for i, word := range wordsOf(addr) {
			differing[i] |= word ^ first[i]
		}
	}
	values, masks = make([]uint32, len(first)), make([]uint32, len(first))
	for i, bits := range differing {
		mask := ^uint32(0)
		for bits != 0 && mask&bits != 0 {
			mask <<= 1
		}
		values[i], masks[i] = first[i]&mask, mask
		if mask != ^uint32(0) {
			break
		}
	}
	return values, masks
}

// wordsOf splits an address into words of 32 bits.
func wordsOf(addr netip.Addr) []uint32 {
	bytes := addr.AsSlice()
	words := make([]uint32, 0, lengthFilterWords)
	for ; len(bytes) >= 4; bytes = bytes[4:] {
		words = append(words, binary.BigEndian.Uint32(bytes))
	}
	return words
}
