package neigh

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// maxDrained bounds how many frames one Drain reads from a socket: a station can send more than
// this node can read. It exceeds what the queue holds (see maxLateReads): when a node with thousands of
// addresses dies, all that watch it ask the link for these in the same rounds.
const maxDrained = maxLateReads

// ErrLost means that answers may have been lost: the kernel had no room for them, or there were
// more frames than Drain reads.
var ErrLost = errors.New("answers may have been lost")

// Exchange asks stations on one interface's link by echo requests and by ARP and neighbour
// discovery, and keeps their answers until Drain reads them. It is not for concurrent use.
type Exchange struct {
	ethernet *Ethernet
	iface    string
	id       uint16
	token    [8]byte
	// echoSockets and claimSockets are for the answers, claimSockets those for ARP and for neighbour
	// advertisements.
	echoSockets, claimSockets []*os.File
	buffer                    []byte
}

// ExchangeAnswer is an answer: an echo, or else a claim.
type ExchangeAnswer struct {
	// Sequence is the number with which SendEcho sent the echo request; a claim has none.
	Sequence uint16
	IsEcho   bool
	Addr     netip.Addr
	MAC      MAC
	// IsDirectAnswer means that a claim answers a question of this station, for which alone it was.
	IsDirectAnswer bool
}

// OpenExchange opens an Exchange, which hears the claims of all addresses.
func (e *Ethernet) OpenExchange(iface string) (*Exchange, error) {
	nic, _, err := ethernetInterface(iface)
	if err != nil {
		return nil, fmt.Errorf("open an exchange on %s: %w", iface, err)
	}
	x := &Exchange{ethernet: e, iface: iface, buffer: make([]byte, 2048)}
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	_, _ = rand.Read(x.token[:])
	x.id = binary.BigEndian.Uint16(id[:])
	for _, is6 := range []bool{false, true} {
		echoType, claimType := uint16(etherTypeIPv4), uint16(etherTypeARP)
		if is6 {
			echoType, claimType = etherTypeIPv6, etherTypeIPv6
		}
		echoes, err := openPacketSocket(nic, echoType, echoFilter(nic, is6, x.id))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open an exchange on %s: %w", iface, err), x.Close())
		}
		x.echoSockets = append(x.echoSockets, echoes)
		claims, err := openPacketSocket(nic, claimType, claimFilter(nic, is6, nil))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open an exchange on %s: %w", iface, err), x.Close())
		}
		x.claimSockets = append(x.claimSockets, claims)
	}
	return x, nil
}

// Close closes the sockets.
func (x *Exchange) Close() error {
	return errors.Join(closeAll(x.echoSockets), closeAll(x.claimSockets))
}

// SendEcho sends an echo request to one station. It does not wait.
func (x *Exchange) SendEcho(addr, sender netip.Addr, station MAC, number uint16) error {
	err := x.ethernet.send(x.iface, func(source MAC) ([][]byte, error) {
		echo := Echo{Addr: addr, Sender: sender, MAC: station, ID: x.id, Sequence: number, Token: x.token}
		frame, err := echo.RequestFrame(source)
		return [][]byte{frame}, err
	})
	if err != nil {
		return fmt.Errorf("send an echo request to %s on %s: %w", addr, x.iface, err)
	}
	return nil
}

// Drain calls heard with all answers that have come and have not been read, and does not wait for
// others. It returns ErrLost if there may be more.
func (x *Exchange) Drain(heard func(ExchangeAnswer)) error {
	var errs error
	for _, s := range x.echoSockets {
		errs = errors.Join(errs, x.drain(s, func(frame []byte) {
			if e, err := ParseEcho(frame); err == nil && e.ID == x.id && e.Token == x.token {
				heard(ExchangeAnswer{Sequence: e.Sequence, IsEcho: true, Addr: e.Addr, MAC: e.MAC})
			}
		}))
	}
	for _, s := range x.claimSockets {
		errs = errors.Join(errs, x.drain(s, func(frame []byte) {
			if m, err := ParseMessage(frame); err == nil {
				if own, err := x.ethernet.isOwn(m.MAC); err == nil && !own {
					heard(ExchangeAnswer{
						Addr: m.Addr, MAC: m.MAC, IsDirectAnswer: m.IsDirect && m.Kind != ARPRequest && !m.IsGratuitous,
					})
				}
			}
		}))
	}
	return errs
}

// drain reads the frames of one socket.
func (x *Exchange) drain(socket *os.File, handle func(frame []byte)) error {
	isEmpty := false
	for range maxDrained {
		n, err := readQueuedFrame(socket, x.buffer)
		if errors.Is(err, unix.EAGAIN) {
			isEmpty = true
			break
		}
		if err != nil {
			return fmt.Errorf("read answers on %s: %w", x.iface, err)
		}
		handle(x.buffer[:n])
	}
	if dropped, err := takeDropped(socket); err != nil || dropped > 0 || !isEmpty {
		return errors.Join(fmt.Errorf("on %s: %w", x.iface, ErrLost), err)
	}
	return nil
}
