package neigh

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ethernet speaks to the neighbours on the node's Ethernet links.
type Ethernet struct {
	// socket is for sending on all interfaces. To close one takes the kernel a
	// while, for which nothing else could be sent.
	socket int

	mu       sync.Mutex
	stations map[string]found
}

// found is what was looked up of an interface, and when.
type found struct {
	nic *net.Interface
	mac MAC
	at  time.Time
}

// foundFor is for how long that counts: for a burst.
const foundFor = time.Second

// Open opens a socket. It is never closed: the agent uses it for as long as it
// lives.
func Open() (*Ethernet, error) {
	// Of type 0 it receives nothing.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	return &Ethernet{socket: socket, stations: map[string]found{}}, nil
}

// Announce tells an interface's link, once, that this node has an address.
func (e *Ethernet) Announce(iface string, addr netip.Addr) error {
	build := GratuitousARP
	if addr.Is6() {
		build = UnsolicitedNA
	}
	if err := e.send(iface, addr, build); err != nil {
		return fmt.Errorf("announce %s on %s: %w", addr, iface, err)
	}
	return nil
}

// Ask asks an interface's link, once, who has an address. Whoever is listening
// hears the answer.
func (e *Ethernet) Ask(iface string, addr netip.Addr) error {
	build := ARPProbe
	if addr.Is6() {
		build = Solicitation
	}
	if err := e.send(iface, addr, build); err != nil {
		return fmt.Errorf("ask for %s on %s: %w", addr, iface, err)
	}
	return nil
}

// send sends one frame about an address.
func (e *Ethernet) send(iface string, addr netip.Addr, build func(MAC, netip.Addr) ([]byte, error)) error {
	f, err := e.find(iface)
	if err != nil {
		return err
	}
	frame, err := build(f.mac, addr)
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{
		Ifindex:  f.nic.Index,
		Protocol: binary.NativeEndian.Uint16(frame[12:]), // in network order, as the frame has it
		Halen:    uint8(len(MAC{})),
	}
	copy(to.Addr[:], frame[:len(MAC{})])
	if err := unix.Sendto(e.socket, frame, 0, to); err != nil {
		e.forget(iface) // it may have been replaced
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// find looks an interface up, if that was not done lately.
func (e *Ethernet) find(iface string) (found, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f, ok := e.stations[iface]; ok && time.Since(f.at) < foundFor {
		return f, nil
	}
	delete(e.stations, iface)
	nic, mac, err := station(iface)
	if err != nil {
		return found{}, err
	}
	f := found{nic, mac, time.Now()}
	e.stations[iface] = f
	return f, nil
}

func (e *Ethernet) forget(iface string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.stations, iface)
}
