package nodeagent

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel is told to end connections whose other end does not acknowledge.
func TestEndUnacknowledged(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialer := net.Dialer{Control: endUnacknowledged}
	conn, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var timeout int
	var failed error
	err = raw.Control(func(fd uintptr) {
		timeout, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	})
	if err := errors.Join(err, failed); err != nil || timeout != 800 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, %v", timeout, err)
	}
}
