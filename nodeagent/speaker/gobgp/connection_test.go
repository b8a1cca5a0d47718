//go:build !routers

package gobgp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
)

// TestCloseConnections closes the connections to one port of one neighbour, and no other. Two neighbours on two
// interfaces have the same link-local address.
func TestCloseConnections(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	nstest.Run(t, "ip link set lo up")
	nstest.Run(t, "ip link add eth0 type veth peer name eth1")
	for _, iface := range []string{"eth0", "eth1"} {
		nstest.Run(t, "ip link set %s up", iface)
		nstest.Run(t, "ip addr add fe80::1/64 dev %s nodad", iface)
	}
	connect := func(address string) (conn net.Conn, port int) {
		t.Helper()
		listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		port = listener.Addr().(*net.TCPAddr).Port
		conn, err = net.Dial("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn, port
	}
	isOpen := func(conn net.Conn) bool {
		_, err := conn.Write([]byte("x"))
		return err == nil
	}
	for _, row := range []struct{ address, other string }{
		{"127.0.0.1", "127.0.0.2"}, {"::1", "::2"}, {"fe80::1%eth0", "fe80::1%eth1"},
	} {
		t.Run(row.address, func(t *testing.T) {
			conn, port := connect(row.address)
			second, secondPort := connect(row.address)
			closeConnectionsTo(netip.MustParseAddr(row.other), port)
			closeConnectionsTo(netip.MustParseAddr(row.address), 1)
			if !isOpen(conn) || !isOpen(second) {
				t.Error("a connection to another neighbour or port is closed")
			}
			closeConnectionsTo(netip.MustParseAddr(row.address), port)
			if isOpen(conn) {
				t.Error("the connection is open")
			}
			if !isOpen(second) {
				t.Errorf("the connection to port %d is closed with that to port %d", secondPort, port)
			}
		})
	}
}

// TestHasAnyUnacknowledged has a neighbour that reads nothing, and then all.
func TestHasAnyUnacknowledged(t *testing.T) {
	if !nstest.RunInOwnNamespace(t) {
		return
	}
	nstest.Run(t, "ip link set lo up")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	neighbour, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = neighbour.Close() })
	becomes := func(want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); hasAnyUnacknowledged() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("something is unacknowledged: %t", !want)
			}
		}
	}
	becomes(false)
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	written, err := conn.Write(make([]byte, 100<<20)) // more than the buffers of both sides take
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes written: %v", written, err)
	}
	becomes(true)
	if _, err := io.CopyN(io.Discard, neighbour, int64(written)); err != nil {
		t.Fatal(err)
	}
	becomes(false)
}
