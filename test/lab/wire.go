package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/lab/internal/netns"
)

// asker is a station that does not exist. Requests in its name change no neighbour table
// of the lab. Its IPv4 address is none of a host, and not in the range that README.md
// calls free.
var asker = struct {
	mac    net.HardwareAddr
	v4, v6 netip.Addr
}{
	net.HardwareAddr{0x02, 0, 0, 0x99, 0, 0x99}, netip.MustParseAddr("10.77.0.98"), netip.MustParseAddr("fe80::99:99"),
}

// wire sends ARP or ND requests for one address, and receives what stations claim.
type wire struct {
	socket  int
	index   int
	request []byte
	address netip.Addr
}

// answerTimeout is how long receive waits for a frame.
const answerTimeout = 100 * time.Millisecond

func openWire(host string, address netip.Addr) (*wire, error) {
	w, err := listenWire(host, address)
	if err == nil {
		w.request, err = requestFrame(address)
	}
	return w, err
}

// listenWire opens a wire for the family of an address, without a request to send.
func listenWire(host string, address netip.Addr) (*wire, error) {
	w := &wire{address: address}
	protocol := uint16(unix.ETH_P_ARP)
	if address.Is6() {
		protocol = unix.ETH_P_IPV6
	}
	bigEndian := protocol<<8 | protocol>>8
	err := netns.Do(Namespace(host), func() error {
		iface, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		w.index = iface.Index
		if w.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian)); err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
		return errors.Join(
			unix.SetsockoptTimeval(w.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.SetsockoptInt(w.socket, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.Bind(w.socket, &unix.SockaddrLinklayer{Protocol: bigEndian, Ifindex: w.index}))
	})
	return w, err
}

func (w *wire) close() error { return unix.Close(w.socket) }

func (w *wire) sendRequest() error { return w.send(w.request, w.address) }

// send sends a request for an address.
func (w *wire) send(request []byte, address netip.Addr) error {
	if err := unix.Sendto(w.socket, request, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		return fmt.Errorf("ask for %s: %w", address, err)
	}
	return nil
}

// claim is a message by ARP or ND with which a station says that it has an address.
type claim struct {
	address      netip.Addr
	mac          string
	answersAsker bool      // the message is an answer to the asker
	isToAll      bool      // the message is to all stations, or to a group
	at           time.Time // when the kernel got the message, which this process may read later
}

// receive waits answerTimeout for a frame, and returns its claim.
func (w *wire) receive() (claim, bool) {
	frame, at, ok := w.receiveFrame()
	if !ok {
		return claim{}, false
	}
	c, ok := parseClaim(frame)
	c.at = at
	return c, ok
}

// receiveFrame waits answerTimeout for a frame, and returns its beginning and when the kernel got it.
func (w *wire) receiveFrame() (frame []byte, at time.Time, ok bool) {
	var buffer, control [256]byte
	n, oobn, _, _, err := unix.Recvmsg(w.socket, buffer[:], control[:], 0)
	if err != nil {
		return nil, time.Time{}, false
	}
	return buffer[:n], receiveTime(control[:oobn]), true
}

// receiveTime returns when the kernel got a message, from its control data (socket(7),
// SO_TIMESTAMPNS), or the present time without it.
func receiveTime(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err == nil {
		for _, m := range messages {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
				return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
	}
	return time.Now()
}

// requestFrame returns the frame that asks who has an address: an ARP request (RFC 826)
// or a neighbour solicitation (RFC 4861 section 4.3).
func requestFrame(address netip.Addr) ([]byte, error) {
	if address.Is4() {
		return arpFrame(asker.mac, layers.EthernetBroadcast, layers.ARPRequest, asker.v4, make([]byte, 6), address)
	}
	target := address.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16() // solicited-node (RFC 4291 section 2.7.1)
	copy(group[13:], target[13:])
	ip := &layers.IPv6{
		Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: asker.v6.AsSlice(), DstIP: group[:],
	}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	return serializeFrame(
		&layers.Ethernet{
			SrcMAC: asker.mac, DstMAC: net.HardwareAddr{0x33, 0x33, group[12], group[13], group[14], group[15]},
			EthernetType: layers.EthernetTypeIPv6,
		},
		ip, icmp,
		&layers.ICMPv6NeighborSolicitation{
			TargetAddress: target[:], Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: asker.mac}},
		})
}

// parseClaim returns the claim in a frame, if the frame has one.
func parseClaim(frame []byte) (claim, bool) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	ethernet, ok := packet.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !ok {
		return claim{}, false
	}
	c := claim{
		mac: ethernet.SrcMAC.String(), answersAsker: ethernet.DstMAC.String() == asker.mac.String(),
		isToAll: len(ethernet.DstMAC) > 0 && ethernet.DstMAC[0]&1 == 1,
	}
	var claimedIP net.IP
	if arp, ok := packet.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
		claimedIP = arp.SourceProtAddress
		c.answersAsker = c.answersAsker && arp.Operation == layers.ARPReply
	}
	if na, ok := packet.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement); ok {
		claimedIP = na.TargetAddress
	}
	c.address, ok = netip.AddrFromSlice(claimedIP)
	return c, ok
}
