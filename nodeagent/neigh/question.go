package neigh

import (
	"errors"
	"net"
	"net/netip"
	"slices"
)

// Target is an address, and the interface on whose link to ask for it.
type Target struct {
	Interface string
	Addr      netip.Addr
}

// Question asks the stations on a link which of them has the Target.
type Question struct {
	Target
	// Sender is an address of the node's own on the interface, of the Target's family, that
	// never moves to another node; the zero Addr for none. A bridge that suppresses
	// neighbour discovery (EVPN) floods no question without a sender.
	Sender netip.Addr
	// NodeMACs are nodes that may have the address: a frame of its own asks each of them,
	// too, at most maxNodes. Probe prefers their answers to those of other stations.
	NodeMACs []MAC
	// IgnoredMACs are stations whose answers do not count: gateways, which may answer for
	// every address as a proxy (RFC 1027).
	IgnoredMACs []MAC
	// IsAddressResolution is that the question is the one by which any host finds the station of an
	// address: a single frame to all stations, with the Sender, which there has to be.
	IsAddressResolution bool
}

var errNoSender = errors.New("there is no address of the node's own to ask from")

// maxNodes bounds how many nodes are asked by a frame of their own for one address.
const maxNodes = 8

// ParseMACs reads Ethernet addresses. It leaves out duplicates and texts that are not the
// address of a station.
func ParseMACs(texts []string) []MAC {
	var macs []MAC
	for _, text := range texts {
		hardware, err := net.ParseMAC(text)
		if err != nil || len(hardware) != len(MAC{}) {
			continue
		}
		if mac := MAC(hardware); mac.isStation() && !slices.Contains(macs, mac) {
			macs = append(macs, mac)
		}
	}
	return macs
}

// Frames returns the frames that ask the whole link, and one for each of the nodes. One for
// address resolution is a single frame.
//
// An ARP question is asked without a sender, because every host answers that, and with
// one, which bridges that suppress neighbour discovery let through. A solicitation is
// asked once, because a host answers both forms alike; the answer to the form with a
// sender can be told from an announcement.
func (q Question) Frames(source MAC) ([][]byte, error) {
	var frames [][]byte
	var errs error
	add := func(frame []byte, err error) {
		frames, errs = append(frames, frame), errors.Join(errs, err)
	}
	switch {
	case q.IsAddressResolution && !q.hasSender():
		return nil, errNoSender
	case q.IsAddressResolution && !q.Addr.Is6():
		add(buildARPRequest(broadcast, source, q.Sender, q.Addr))
	case !q.Addr.Is6():
		add(ARPProbe(source, q.Addr))
		if q.hasSender() {
			add(buildARPRequest(broadcast, source, q.Sender, q.Addr))
		}
	case q.hasSender():
		add(buildSolicitation(multicastMAC(solicitedNodeGroup(q.Addr)), source, q.Sender.WithZone(""), q.Addr))
	default:
		add(NDProbe(source, q.Addr))
	}
	if q.IsAddressResolution {
		return frames, errs
	}
	for _, node := range q.NodeMACs[:min(len(q.NodeMACs), maxNodes)] {
		add(q.FrameFor(source, node))
	}
	return frames, errs
}

// FrameFor returns the frame that asks one station. An ARP question has no sender here: a
// bridge that answers for other stations, even dead ones, lets such a question through to
// the station. A solicitation has the sender: the answer to one without is multicast, and
// such a bridge would not let the answer through.
func (q Question) FrameFor(source, station MAC) ([]byte, error) {
	if !q.Addr.Is6() {
		return buildARPRequest(station, source, netip.IPv4Unspecified(), q.Addr)
	}
	sender := netip.IPv6Unspecified()
	if q.hasSender() {
		sender = q.Sender.WithZone("")
	}
	return buildSolicitation(station, source, sender, q.Addr)
}

// hasSender reports whether the Sender can be used to ask for the address.
func (q Question) hasSender() bool {
	return q.Sender.IsValid() && q.Sender.Is6() == q.Addr.Is6() && !q.Sender.IsUnspecified() && q.Sender != q.Addr
}
