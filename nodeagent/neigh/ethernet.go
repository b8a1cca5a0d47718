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

const (
	// interfaceCacheTTL is for how long the result of looking up an interface is used: for
	// the frames of one burst.
	interfaceCacheTTL = time.Second
	// interfaceMACsTTL is for how long the list of the node's own MAC addresses is used: listing
	// takes milliseconds on a node with many interfaces.
	interfaceMACsTTL = 250 * time.Millisecond
)

// sendBuffer is the size in bytes of the queue of a socket that sends: some thousands of
// frames.
const sendBuffer = 4 << 20

// Ethernet exchanges messages with the stations on the node's Ethernet links. What it
// remembers is lost with the process, and is looked up again when needed.
type Ethernet struct {
	mu sync.Mutex
	// cachedInterfaces are the interfaces that were looked up lately, by name. A failure to
	// send removes one, since the interface may have been replaced.
	cachedInterfaces map[string]cachedInterface
	// sendSockets are the sockets for sending, by interface. Each interface has its own, so
	// that frames waiting for an interface that sends nothing use no other's room. None is
	// closed, because closing takes the kernel a while in which nothing else could be sent.
	// They are few: the agent announces only on interfaces that its settings name.
	sendSockets map[string]int

	ownMu sync.Mutex
	// interfaceMACs are the MAC addresses of the node's interfaces, as listed at interfaceMACsListedAt.
	interfaceMACs         map[MAC]bool
	interfaceMACsListedAt time.Time
	// podMACs are those that only interfaces of pods have, as SetPodMACs was last told.
	podMACs map[MAC]bool
}

type cachedInterface struct {
	nic        *net.Interface
	mac        MAC
	sendSocket int
	lookedUpAt time.Time
}

// Open returns an Ethernet. Its sockets are never closed, because the agent uses them for
// as long as it runs. Open fails where packet sockets are not allowed.
func Open() (*Ethernet, error) {
	socket, err := openSender()
	if err != nil {
		return nil, err
	}
	if err := unix.Close(socket); err != nil {
		return nil, fmt.Errorf("close packet socket: %w", err)
	}
	return &Ethernet{cachedInterfaces: map[string]cachedInterface{}, sendSockets: map[string]int{}}, nil
}

// openSender opens a socket that sends without waiting, and receives nothing.
func openSender() (int, error) {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("open packet socket: %w", err)
	}
	// If the larger buffer is not allowed, the socket works with the smaller one.
	_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
	return socket, nil
}

// Announce sends one announcement of an address, by this node, to an interface's link. It
// does not wait: it fails if the interface has no room for the frame.
func (e *Ethernet) Announce(iface string, addr netip.Addr) error {
	build := GratuitousARP
	if addr.Is6() {
		build = UnsolicitedNA
	}
	err := e.send(iface, func(source MAC) ([][]byte, error) {
		frame, err := build(source, addr)
		return [][]byte{frame}, err
	})
	if err != nil {
		return fmt.Errorf("announce %s on %s: %w", addr, iface, err)
	}
	return nil
}

// Ask sends a question once to the whole link, and once to each of its NodeMACs. Listen
// receives the answers. Ask does not wait.
func (e *Ethernet) Ask(q Question) error {
	if err := e.send(q.Interface, q.Frames); err != nil {
		return fmt.Errorf("ask for %s on %s: %w", q.Addr, q.Interface, err)
	}
	return nil
}

// AskStation sends a question once to one station. Listen receives the answer. AskStation
// does not wait.
func (e *Ethernet) AskStation(q Question, station MAC) error {
	err := e.send(q.Interface, func(source MAC) ([][]byte, error) {
		frame, err := q.FrameFor(source, station)
		return [][]byte{frame}, err
	})
	if err != nil {
		return fmt.Errorf("ask %s for %s on %s: %w", station, q.Addr, q.Interface, err)
	}
	return nil
}

// send sends frames on an interface, until one finds no room.
func (e *Ethernet) send(iface string, build func(source MAC) ([][]byte, error)) error {
	found, err := e.lookUp(iface)
	if err != nil {
		return err
	}
	frames, err := build(found.mac)
	if err != nil {
		return err
	}
	for _, frame := range frames {
		to := &unix.SockaddrLinklayer{
			Ifindex:  found.nic.Index,
			Protocol: binary.NativeEndian.Uint16(frame[12:]), // in network order, as the frame has it
			Halen:    uint8(len(MAC{})),
		}
		copy(to.Addr[:], frame[:len(MAC{})])
		if err := unix.Sendto(found.sendSocket, frame, 0, to); err != nil {
			e.dropCached(iface)
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// lookUp looks up an interface, and opens its socket for sending if it has none.
func (e *Ethernet) lookUp(iface string) (cachedInterface, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if found, ok := e.cachedInterfaces[iface]; ok && time.Since(found.lookedUpAt) < interfaceCacheTTL {
		return found, nil
	}
	delete(e.cachedInterfaces, iface)
	nic, mac, err := ethernetInterface(iface)
	if err != nil {
		return cachedInterface{}, err
	}
	socket, opened := e.sendSockets[iface]
	if !opened {
		if socket, err = openSender(); err != nil {
			return cachedInterface{}, err
		}
		e.sendSockets[iface] = socket
	}
	found := cachedInterface{nic: nic, mac: mac, sendSocket: socket, lookedUpAt: time.Now()}
	e.cachedInterfaces[iface] = found
	return found, nil
}

func (e *Ethernet) dropCached(iface string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.cachedInterfaces, iface)
}

// SetPodMACs replaces the MAC addresses that only interfaces of pods have. A message from such an
// address is another station's: the node's own interfaces on its links have others.
func (e *Ethernet) SetPodMACs(macs []string) {
	podMACs := make(map[MAC]bool, len(macs))
	for _, text := range macs {
		if mac, err := net.ParseMAC(text); err == nil && len(mac) == len(MAC{}) {
			podMACs[MAC(mac)] = true
		}
	}
	e.ownMu.Lock()
	defer e.ownMu.Unlock()
	e.podMACs = podMACs
}

// isOwn reports whether a MAC address is one of the node's own: another interface of the
// node may be on the same link.
func (e *Ethernet) isOwn(mac MAC) (bool, error) {
	e.ownMu.Lock()
	defer e.ownMu.Unlock()
	if e.interfaceMACs == nil || time.Since(e.interfaceMACsListedAt) > interfaceMACsTTL {
		own, err := listMACs()
		if err != nil {
			return false, err
		}
		e.interfaceMACs, e.interfaceMACsListedAt = own, time.Now()
	}
	return e.interfaceMACs[mac] && !e.podMACs[mac], nil
}
