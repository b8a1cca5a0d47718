package udp

import (
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd"
)

const (
	// controlPort is where neighbours listen, and source ports are where packets come from (RFC 5881 section 4).
	controlPort                      = 3784
	firstSourcePort, sourcePortCount = 49152, 16384
	// trafficClass is that of routing protocols (CS6, RFC 4594).
	trafficClass = 0xc0
	// maxBinds is how many ports are tried.
	maxBinds = 16
	// noDescriptor is the descriptor of a socket that is not open.
	noDescriptor = -1
)

// familyIndex is 0 for IPv4 and 1 for IPv6.
func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// option is an option of a socket.
type option struct{ level, name, value int }

// openSocket opens a datagram socket with options.
func openSocket(is6 bool, options ...option) (int, error) {
	domain := unix.AF_INET
	if is6 {
		domain = unix.AF_INET6
		options = append(options, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return noDescriptor, fmt.Errorf("open a socket: %w", err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return noDescriptor, errors.Join(fmt.Errorf("set option %d of a socket: %w", o.name, err), unix.Close(fd))
		}
	}
	return fd, nil
}

// listener receives the packets of one family.
type listener struct {
	fd  int
	is6 bool
	// retryAt is when it is tried again to open the socket; zero if that has not failed.
	retryAt time.Time
}

// source is where a packet comes from: the address, and the interface.
type source struct {
	addr  netip.Addr
	index uint32
}

// open opens the socket if it is not. It returns an error once, and tries again after a while.
func (l *listener) open(now time.Time) error {
	if l.fd != noDescriptor || now.Before(l.retryAt) {
		return nil
	}
	options := []option{{unix.IPPROTO_IP, unix.IP_RECVTTL, 1}}
	var any unix.Sockaddr = &unix.SockaddrInet4{Port: controlPort}
	if l.is6 {
		options, any = []option{{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1}}, &unix.SockaddrInet6{Port: controlPort}
	}
	fd, err := openSocket(l.is6, options...)
	if err == nil {
		if err = unix.Bind(fd, any); err != nil {
			err = errors.Join(fmt.Errorf("listen on UDP port %d: %w", controlPort, err), unix.Close(fd))
		}
	}
	if err != nil {
		isFirstFailure := l.retryAt.IsZero()
		l.retryAt = now.Add(retryInterval)
		if isFirstFailure {
			return err
		}
		return nil
	}
	l.fd, l.retryAt = fd, time.Time{}
	return nil
}

func (l *listener) close() {
	if l.fd != noDescriptor {
		_ = unix.Close(l.fd)
	}
	l.fd, l.retryAt = noDescriptor, time.Time{}
}

// receive takes one datagram, whose length is n, with its TTL or hop limit; -1 is an unknown one.
func (l *listener) receive(buffer, control []byte) (from source, ttl, n int, err error) {
	n, controlLength, _, address, err := unix.Recvmsg(l.fd, buffer, control, unix.MSG_DONTWAIT)
	if err != nil {
		return source{}, -1, 0, err
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		from.addr = netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		from.addr, from.index = netip.AddrFrom16(a.Addr), a.ZoneId
	}
	return from, ttlOf(control[:controlLength]), n, nil
}

// ttlOf returns the TTL or hop limit that the kernel says a datagram came with, or -1.
func ttlOf(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		isTTL := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL ||
			m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if isTTL && len(m.Data) >= 4 {
			return int(m.Data[0]) | int(m.Data[1])<<8 | int(m.Data[2])<<16 | int(m.Data[3])<<24
		}
	}
	return -1
}

// sender sends the packets of one session.
type sender struct {
	neighbour, source netip.Addr
	fd                int
	// port is where the session's packets come from; 0 is none yet.
	port int
	// hasFailed is that the last packet could not be sent.
	hasFailed bool
}

// noteSent notes whether a packet could be sent, and reports whether that has failed for the first time.
func (s *sender) noteSent(err error) (isFirstFailure bool) {
	before := s.hasFailed
	s.hasFailed = err != nil
	return s.hasFailed && !before
}

// send sends a packet. After an error the socket is opened anew: the node may have another address.
func (s *sender) send(p bfd.Packet) error {
	if s.fd == noDescriptor {
		if err := s.open(); err != nil {
			return err
		}
	}
	to, err := s.sockaddr(s.neighbour, controlPort)
	if err == nil {
		err = unix.Sendto(s.fd, p.Append(nil), 0, to)
	}
	if err != nil {
		s.close()
		return fmt.Errorf("send to %s: %w", s.neighbour, err)
	}
	return nil
}

// open opens the socket. All packets of a session come from one port.
func (s *sender) open() error {
	options := []option{
		{unix.IPPROTO_IP, unix.IP_TTL, bfd.RequiredTTL}, {unix.IPPROTO_IP, unix.IP_TOS, trafficClass},
	}
	if s.neighbour.Is6() {
		options = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, bfd.RequiredTTL},
			{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, trafficClass},
		}
	}
	fd, err := openSocket(s.neighbour.Is6(), options...)
	if err != nil {
		return err
	}
	s.fd = fd
	source := s.source
	switch {
	case !source.IsValid() && s.neighbour.Is4():
		source = netip.IPv4Unspecified()
	case !source.IsValid():
		source = netip.IPv6Unspecified()
	case source.IsLinkLocalUnicast() && source.Is6():
		source = source.WithZone(s.neighbour.Zone())
	}
	for range maxBinds {
		from := s.port
		if from == 0 {
			from = firstSourcePort + mathrand.IntN(sourcePortCount) //nolint:gosec // no secret
		}
		var address unix.Sockaddr
		if address, err = s.sockaddr(source, from); err == nil {
			err = unix.Bind(s.fd, address)
		}
		if err == nil {
			s.port = from
			return nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		s.port = 0
	}
	s.close()
	return fmt.Errorf("send from %s: %w", source, err)
}

func (s *sender) close() {
	if s.fd != noDescriptor {
		_ = unix.Close(s.fd)
	}
	s.fd = noDescriptor
}

// sockaddr returns an address as the kernel wants it, with the number of the interface as zone.
func (s *sender) sockaddr(a netip.Addr, port int) (unix.Sockaddr, error) {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}, nil
	}
	address := &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	if a.Zone() == "" {
		return address, nil
	}
	index, err := interfaceIndex(s.fd, a.Zone())
	address.ZoneId = index
	return address, err
}

// interfaceIndex asks the kernel for the number of an interface. The resolver of package net keeps what it
// once knew for a while, and an interface that was made anew has another number.
func interfaceIndex(fd int, name string) (uint32, error) {
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return request.Uint32(), nil
}
