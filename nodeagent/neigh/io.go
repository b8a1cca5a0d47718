package neigh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Target is an address, and the interface on whose link to ask for it.
type Target struct {
	Interface string
	Addr      netip.Addr
}

// Answer is what became of asking for an address.
type Answer struct {
	// MAC of the station that has it.
	MAC MAC
	// Err, if it could not be asked for, so that silence proves nothing.
	Err error
}

// Probe asks for all targets at once, and again until it has asked count times,
// listening for an interval after each. It returns, by address, who answered
// and what failed; of an address that is not in the result nobody answered. It
// takes count intervals however many targets there are, or less if somebody has
// each of them. This node's own answers do not count.
func (*Ethernet) Probe(ctx context.Context, targets []Target, count int, interval time.Duration) map[netip.Addr]Answer {
	type link struct {
		iface string
		is6   bool
	}
	groups := map[link][]netip.Addr{}
	for _, t := range targets {
		l := link{t.Interface, t.Addr.Is6()}
		groups[l] = append(groups[l], t.Addr)
	}
	answers := map[netip.Addr]Answer{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for l, addrs := range groups {
		wait.Go(func() {
			heard, err := probe(ctx, l.iface, addrs, count, interval)
			mu.Lock()
			defer mu.Unlock()
			for _, addr := range addrs {
				if mac, ok := heard[addr]; ok {
					answers[addr] = Answer{MAC: mac}
				} else if err != nil {
					answers[addr] = Answer{Err: fmt.Errorf("probe for %s on %s: %w", addr, l.iface, err)}
				}
			}
		})
	}
	wait.Wait()
	return answers
}

// probe asks for addresses of one family on one link.
func probe(ctx context.Context, iface string, addrs []netip.Addr, count int, interval time.Duration) (map[netip.Addr]MAC, error) {
	nic, source, err := station(iface)
	if err != nil {
		return nil, err
	}
	own, err := ownMACs()
	if err != nil {
		return nil, err
	}
	build, etherType, filter := ARPProbe, uint16(etherTypeARP), []unix.SockFilter(nil)
	if addrs[0].Is6() {
		build, etherType, filter = Solicitation, etherTypeIPv6, advertisementsOnly
	}
	socket, err := open(nic, etherType, filter)
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()

	heard := map[netip.Addr]MAC{}
	asked := map[netip.Addr]bool{}
	for range count {
		for _, addr := range addrs {
			if _, ok := heard[addr]; ok {
				continue
			}
			frame, err := build(source, addr)
			if err == nil {
				_, err = socket.Write(frame)
			}
			if err != nil {
				return heard, err
			}
			asked[addr] = true
		}
		err := listen(ctx, socket, time.Now().Add(interval), func(m Message) bool {
			if asked[m.Addr] && !own[m.MAC] {
				heard[m.Addr] = m.MAC
			}
			return len(heard) < len(asked)
		})
		if err != nil || len(heard) == len(asked) {
			return heard, err
		}
	}
	return heard, nil
}

// listen passes on what is heard, until more says that it is enough, or the
// deadline. What has come by then is passed on however late it is read: on a node
// that is short of processor time silence must not be what was not listened to.
func listen(ctx context.Context, socket *os.File, deadline time.Time, more func(Message) bool) error {
	if err := socket.SetReadDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 2048)
	for late := false; ; {
		read := socket.Read
		if late {
			read = func(b []byte) (int, error) { return readNow(socket, b) }
		}
		n, err := read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			late = true
			continue
		case late && errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
		if m, err := Parse(buffer[:n]); err == nil && !more(m) {
			return nil
		}
	}
}

// readNow reads what has come, whatever the deadline; EAGAIN if there is nothing.
func readNow(socket *os.File, buffer []byte) (n int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buffer) }); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}

// station returns an interface and its MAC address.
func station(iface string) (*net.Interface, MAC, error) {
	nic, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, MAC{}, err
	}
	if len(nic.HardwareAddr) != len(MAC{}) {
		return nil, MAC{}, errors.New("not an Ethernet interface")
	}
	return nic, MAC(nic.HardwareAddr), nil
}

// ownMACs is the MAC addresses of all the node's interfaces: it answers for an
// address by all that are on the link.
func ownMACs() (map[MAC]bool, error) {
	nics, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	own := map[MAC]bool{}
	for _, nic := range nics {
		if len(nic.HardwareAddr) == len(MAC{}) {
			own[MAC(nic.HardwareAddr)] = true
		}
	}
	return own, nil
}

// advertisementsOnly lets neighbour advertisements pass, so that a probe does
// not wake up for the node's other IPv6 packets.
var advertisementsOnly = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: headerEthernet + 6}, // next header
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: protocolICMPv6, Jf: 3},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: headerEthernet + headerIPv6}, // ICMPv6 type
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: icmpAdvertisement, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// open opens a socket for whole frames of an interface (packet(7)). It receives
// those of the Ethernet type that pass the filter; of type 0 it receives none.
func open(nic *net.Interface, etherType uint16, filter []unix.SockFilter) (*os.File, error) {
	// Type 0 until it is bound, so that nothing gets in that the filter or the
	// interface would keep out.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	if len(filter) > 0 {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	}
	err = cmp.Or(err, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType<<8 | etherType>>8, Ifindex: nic.Index}))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set up packet socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "packet:"+nic.Name), nil
}
