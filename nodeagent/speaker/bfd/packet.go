package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// State is the state of a session, as packets have it.
type State uint8

// The states (RFC 5880 section 4.1).
const (
	// AdminDown is a session that its side does not want to be up.
	AdminDown State = iota
	// Down is a session that hears nothing, or begins.
	Down
	// Init is a session that hears the other side, and does not know whether that hears it.
	Init
	// Up is a session both sides of which hear each other.
	Up
)

// String is the state as status and logs have it.
func (s State) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3]
}

// Diagnostic is why the state of a session last changed (RFC 5880 section 4.1).
type Diagnostic uint8

// The diagnostics that a session without echo has (RFC 5880 section 4.1).
const (
	NoDiagnostic         Diagnostic = 0
	DetectionTimeExpired Diagnostic = 1
	NeighbourSignalsDown Diagnostic = 3
	AdministrativelyDown Diagnostic = 7
)

// String is the diagnostic as logs have it.
func (d Diagnostic) String() string {
	switch d {
	case NoDiagnostic:
		return "no diagnostic"
	case DetectionTimeExpired:
		return "the neighbour is silent"
	case NeighbourSignalsDown:
		return "the neighbour says so"
	case AdministrativelyDown:
		return "a planned end"
	}
	return "unknown"
}

const (
	version      = 1
	packetLength = 24
	// RequiredTTL is the TTL or hop limit with which packets are sent, and with which they must arrive:
	// those of a station beyond the link do not (RFC 5881 section 5).
	RequiredTTL = 255
)

// The flags of the second octet.
const (
	flagPoll, flagFinal, flagAuthenticated, flagDemand, flagMultipoint = 0x20, 0x10, 0x04, 0x02, 0x01
)

// Packet is a BFD Control packet (RFC 5880 section 4.1).
type Packet struct {
	State               State
	Diagnostic          Diagnostic
	Poll, Final, Demand bool
	Multiplier          uint8
	// MyDiscriminator is the sender's, and YourDiscriminator the receiver's as far as the sender knows it, or 0.
	MyDiscriminator, YourDiscriminator uint32
	// DesiredMinTx and RequiredMinRx are in microseconds on the wire.
	DesiredMinTx, RequiredMinRx time.Duration
}

// Append appends the packet as it goes on the wire.
func (p Packet) Append(b []byte) []byte {
	flags := byte(p.State) << 6
	for _, f := range []struct {
		isSet bool
		flag  byte
	}{{p.Poll, flagPoll}, {p.Final, flagFinal}, {p.Demand, flagDemand}} {
		if f.isSet {
			flags |= f.flag
		}
	}
	b = append(b, version<<5|byte(p.Diagnostic)&0x1f, flags, p.Multiplier, packetLength)
	micros := func(d time.Duration) uint32 { return uint32(d.Microseconds()) } //nolint:gosec // the settings bound it
	for _, n := range []uint32{
		p.MyDiscriminator, p.YourDiscriminator, micros(p.DesiredMinTx), micros(p.RequiredMinRx), 0,
	} {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// Parse reads what came in one datagram with a TTL or hop limit, as far as that can be judged without a
// session (RFC 5880 section 6.8.6, RFC 5881 section 5).
func Parse(b []byte, ttl int) (Packet, error) {
	if ttl != RequiredTTL {
		return Packet{}, fmt.Errorf("TTL %d: the sender is not on the link", ttl)
	}
	if len(b) < packetLength {
		return Packet{}, fmt.Errorf("a datagram of %d octets", len(b))
	}
	if v := b[0] >> 5; v != version {
		return Packet{}, fmt.Errorf("version %d", v)
	}
	if length := int(b[3]); length < packetLength || length > len(b) {
		return Packet{}, fmt.Errorf("length %d in %d octets", length, len(b))
	}
	micros := func(at int) time.Duration {
		return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond
	}
	flags := b[1]
	p := Packet{
		State: State(flags >> 6), Diagnostic: Diagnostic(b[0] & 0x1f), Multiplier: b[2],
		Poll: flags&flagPoll != 0, Final: flags&flagFinal != 0, Demand: flags&flagDemand != 0,
		MyDiscriminator: binary.BigEndian.Uint32(b[4:]), YourDiscriminator: binary.BigEndian.Uint32(b[8:]),
		DesiredMinTx: micros(12), RequiredMinRx: micros(16),
	}
	switch {
	case p.Multiplier == 0:
		return Packet{}, errors.New("multiplier 0")
	case flags&flagMultipoint != 0:
		return Packet{}, errors.New("multipoint")
	case flags&flagAuthenticated != 0:
		return Packet{}, errors.New("authenticated, and no authentication is in use")
	case p.MyDiscriminator == 0:
		return Packet{}, errors.New("the sender has no discriminator")
	case p.YourDiscriminator == 0 && p.State != Down && p.State != AdminDown:
		return Packet{}, fmt.Errorf("state %s without the receiver's discriminator", p.State)
	}
	return p, nil
}
