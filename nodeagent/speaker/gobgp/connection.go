package gobgp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

const (
	// descriptorDir lists the files that the process has open.
	descriptorDir = "/proc/self/fd"
	// closeTimeout is how long a session may take to end.
	closeTimeout = time.Second
)

// closeSession ends the session with a neighbour as the end of the process would: the connection is closed
// without a message, upon which a neighbour that supports graceful restart keeps the routes (RFC 4724). The
// library itself ends single sessions only by a message, and closes connections only all at once.
func (s *Server) closeSession(ctx context.Context, p routes.Peer) {
	s.mu.Lock()
	isUp, ended := false, (chan struct{})(nil)
	if e := s.sessions[p.Neighbour]; e != nil {
		isUp, ended = e.isUp, e.ended
	}
	s.mu.Unlock()
	closeConnectionsTo(p.Neighbour, int(p.Port))
	if !isUp {
		return
	}
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// closeConnectionsTo closes the process's TCP connections to a port of a neighbour, and reports whether there is one.
func closeConnectionsTo(neighbour netip.Addr, port int) (isClosed bool) {
	forEachConnectionTo(neighbour, port, func(descriptor int) {
		isClosed = unix.Shutdown(descriptor, unix.SHUT_RDWR) == nil || isClosed
	})
	return isClosed
}

// hasUnacknowledged reports whether a neighbour has still to acknowledge some of what the process has sent it: only
// then may more wait in the process.
func hasUnacknowledged(neighbour netip.Addr, port int) bool {
	isWaiting := false
	forEachConnectionTo(neighbour, port, func(descriptor int) { isWaiting = isWaiting || isUnacknowledged(descriptor) })
	return isWaiting
}

// hasAnyUnacknowledged reports whether anybody has still to acknowledge some of what the process has sent by TCP, or
// whether that cannot be found out.
func hasAnyUnacknowledged() bool {
	isWaiting := false
	err := forEachDescriptor(func(descriptor int) {
		_, isConnected := remoteOf(descriptor)
		isWaiting = isWaiting || isConnected && isUnacknowledged(descriptor)
	})
	return isWaiting || err != nil
}

// isUnacknowledged reports whether some of what was sent over a TCP connection is not acknowledged, or the kernel does
// not say.
func isUnacknowledged(connection int) bool {
	waiting, err := unix.IoctlGetInt(connection, unix.SIOCOUTQ)
	return err != nil || waiting > 0
}

// forEachConnectionTo calls f with the process's TCP connections to a port of a neighbour.
func forEachConnectionTo(neighbour netip.Addr, port int, f func(descriptor int)) {
	_ = forEachDescriptor(func(descriptor int) {
		if isConnectedTo(descriptor, neighbour, port) {
			f(descriptor)
		}
	})
}

// forEachDescriptor calls f with a duplicate of each descriptor that the process has open. It goes on after one that
// the kernel does not duplicate, and returns why; one that is closed meanwhile is no error.
func forEachDescriptor(f func(descriptor int)) error {
	entries, err := os.ReadDir(descriptorDir)
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		descriptor, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The library may close the file meanwhile, and the number be another file's: the duplicate stays
		// the same file.
		duplicate, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
		if errors.Is(err, unix.EBADF) { // it is closed by now
			continue
		}
		if err != nil {
			failed = err
			continue
		}
		f(duplicate)
		_ = unix.Close(duplicate)
	}
	return failed
}

// remoteOf returns the other end of a connection, if a file is one.
func remoteOf(descriptor int) (remote unix.Sockaddr, isConnected bool) {
	kind, err := unix.GetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return nil, false
	}
	remote, err = unix.Getpeername(descriptor)
	return remote, err == nil
}

// isConnectedTo reports whether a file is a TCP connection to a port of a neighbour.
func isConnectedTo(descriptor int, neighbour netip.Addr, port int) bool {
	remote, isConnected := remoteOf(descriptor)
	if !isConnected {
		return false
	}
	switch at := remote.(type) {
	case *unix.SockaddrInet4:
		return at.Port == port && netip.AddrFrom4(at.Addr) == neighbour
	case *unix.SockaddrInet6:
		addr := netip.AddrFrom16(at.Addr).Unmap()
		if neighbour.Zone() != "" {
			link, err := net.InterfaceByName(neighbour.Zone())
			if err != nil || link.Index != int(at.ZoneId) {
				return false
			}
		}
		return at.Port == port && addr == neighbour.WithZone("")
	}
	return false
}
