package nodeagent

import (
	"errors"
	"io"
	"net"
	"os"
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

// The end of a connection on which nothing is acknowledged is signalled, and no other.
func TestUnacknowledgedConnection(t *testing.T) {
	for _, tc := range []struct {
		name        string
		err         error
		isSignalled bool
	}{
		{"not acknowledged", &net.OpError{Op: "read", Err: os.NewSyscallError("read", unix.ETIMEDOUT)}, true},
		{"reset by the other end", &net.OpError{Op: "read", Err: os.NewSyscallError("read", unix.ECONNRESET)}, false},
		{"ended by the other end", io.EOF, false},
		{"closed here", net.ErrClosed, false},
		{"whole", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			signalled := make(chan struct{}, 1)
			conn := &acknowledgedConn{failingConn{err: tc.err}, signalled}
			for _, do := range []func([]byte) (int, error){conn.Read, conn.Write} {
				if _, err := do(nil); !errors.Is(err, tc.err) {
					t.Errorf("it fails with %v", err)
				}
				if _, isSignalled := tryReceive(signalled); isSignalled != tc.isSignalled {
					t.Errorf("signalled: %t", isSignalled)
				}
			}
		})
	}
}

// failingConn is a connection: Read and Write return err, which may be nil, and do nothing else.
type failingConn struct {
	net.Conn
	err error
}

func (c failingConn) Read([]byte) (int, error)  { return 0, c.err }
func (c failingConn) Write([]byte) (int, error) { return 0, c.err }

// Clients ping an API server from which nothing has come for a second, unless their environment says when.
func TestPingAPIServer(t *testing.T) {
	for _, tc := range []struct{ before, want string }{{"", "1"}, {"30", "30"}} {
		t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", tc.before)
		if err := PingAPIServer(); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"); got != tc.want {
			t.Errorf("%q becomes %q", tc.before, got)
		}
	}
}
