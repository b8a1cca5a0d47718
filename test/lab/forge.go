package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// ForgeInterval is the time between two claims of a Forger.
const ForgeInterval = 100 * time.Millisecond

// Forger is a station that claims an address in the name of another one, and answers whoever
// asks for the address, also who asks that other station alone: its frames have the other's MAC
// as their source, so the switch takes its port for the other's.
type Forger struct {
	wire *wire
	mac  net.HardwareAddr
	stop context.CancelFunc
	wait sync.WaitGroup

	mutex sync.Mutex
	err   error
}

// Forge starts a Forger on a host of the nodes' link, in the name of a MAC. It works until Stop.
func (l *Lab) Forge(ctx context.Context, host, mac string, address netip.Addr) (*Forger, error) {
	f := &Forger{}
	var err error
	if f.mac, err = net.ParseMAC(mac); err != nil {
		return nil, fmt.Errorf("forge from %s: %w", host, err)
	}
	if f.wire, err = listenWire(host, address); err != nil {
		return nil, fmt.Errorf("forge from %s: %w", host, err)
	}
	ctx, f.stop = context.WithCancel(ctx)
	f.wait.Go(func() { f.claim(ctx) })
	f.wait.Go(func() { f.answer(ctx) })
	return f, nil
}

// claim claims the address at once and then every ForgeInterval.
func (f *Forger) claim(ctx context.Context) {
	tick := time.NewTicker(ForgeInterval)
	defer tick.Stop()
	for {
		f.send(claimFrame(f.mac, f.wire.address))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// answer answers those who ask for the address.
func (f *Forger) answer(ctx context.Context) {
	for ctx.Err() == nil {
		frame, _, ok := f.wire.receiveFrame()
		if !ok || ctx.Err() != nil {
			continue
		}
		if q, ok := parseQuestion(frame); ok && q.address == f.wire.address && q.mac.String() != f.mac.String() {
			f.send(answerFrame(f.mac, q))
		}
	}
}

func (f *Forger) send(frame []byte, err error) {
	if err == nil {
		err = f.wire.send(frame, f.wire.address)
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.err = errors.Join(f.err, err)
}

// Stop ends the forgery. After it no frame is sent. An error says that a frame could not be sent.
func (f *Forger) Stop() error {
	f.stop()
	f.wait.Wait()
	return errors.Join(f.err, f.wire.close())
}

// question is a message by ARP or ND that asks who has an address.
type question struct {
	address netip.Addr
	// mac and from are the station that asks. From is 0.0.0.0 or :: in a probe.
	mac  net.HardwareAddr
	from netip.Addr
}

// parseQuestion returns the question in a frame, if the frame has one.
func parseQuestion(frame []byte) (question, bool) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	ethernet, ok := packet.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !ok {
		return question{}, false
	}
	var address, from net.IP
	if arp, ok := packet.Layer(layers.LayerTypeARP).(*layers.ARP); ok && arp.Operation == layers.ARPRequest {
		address, from = arp.DstProtAddress, arp.SourceProtAddress
	}
	if ns, ok := packet.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation); ok {
		if ip, ok := packet.Layer(layers.LayerTypeIPv6).(*layers.IPv6); ok {
			address, from = ns.TargetAddress, ip.SrcIP
		}
	}
	q := question{mac: ethernet.SrcMAC}
	q.address, ok = netip.AddrFromSlice(address)
	q.from, _ = netip.AddrFromSlice(from)
	return q, ok && q.address != q.from // who claims an address asks for its own
}

// claimFrame returns the frame by which a station claims an address: a gratuitous ARP request
// (RFC 5227 section 3) or an unsolicited neighbour advertisement (RFC 4861 section 7.2.6).
func claimFrame(mac net.HardwareAddr, address netip.Addr) ([]byte, error) {
	if address.Is4() {
		return arpFrame(mac, layers.EthernetBroadcast, layers.ARPRequest, address, make([]byte, 6), address)
	}
	return advertisementFrame(mac, allNodesMAC, address, allNodes, overrides)
}

// answerFrame returns the frame by which a station answers a question.
func answerFrame(mac net.HardwareAddr, q question) ([]byte, error) {
	switch {
	case q.address.Is4():
		return arpFrame(mac, q.mac, layers.ARPReply, q.address, q.mac, q.from)
	case q.from.IsUnspecified(): // RFC 4861 section 7.2.4
		return advertisementFrame(mac, allNodesMAC, q.address, allNodes, overrides)
	}
	return advertisementFrame(mac, q.mac, q.address, q.from, overrides|isSolicited)
}

// Flags of a neighbour advertisement (RFC 4861 section 4.4).
const (
	isSolicited uint8 = 1 << 6
	overrides   uint8 = 1 << 5
)

// allNodes are all stations on a link (RFC 4291 section 2.7.1).
var (
	allNodes    = netip.IPv6LinkLocalAllNodes()
	allNodesMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

func arpFrame(
	from, to net.HardwareAddr, operation uint16, sender netip.Addr, targetMAC []byte, target netip.Addr,
) ([]byte, error) {
	return serializeFrame(
		&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{
			AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
			Operation: operation, SourceHwAddress: from, SourceProtAddress: sender.AsSlice(),
			DstHwAddress: targetMAC, DstProtAddress: target.AsSlice(),
		})
}

func advertisementFrame(from, to net.HardwareAddr, address, toAddress netip.Addr, flags uint8) ([]byte, error) {
	ip := &layers.IPv6{
		Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: address.AsSlice(), DstIP: toAddress.AsSlice(),
	}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	return serializeFrame(
		&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv6}, ip, icmp,
		&layers.ICMPv6NeighborAdvertisement{
			Flags: flags, TargetAddress: address.AsSlice(),
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: from}},
		})
}

// serializeFrame returns a frame of layers, with lengths and checksums.
func serializeFrame(all ...gopacket.SerializableLayer) ([]byte, error) {
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...)
	return buffer.Bytes(), err
}
