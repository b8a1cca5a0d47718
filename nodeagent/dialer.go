package nodeagent

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/connrotation"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// NewDialer returns a dialer for connections to the API server that can close all of them. unacknowledged is signalled
// when the kernel has ended one of them, as the other end did not acknowledge what was sent.
func NewDialer() (dialer *connrotation.Dialer, unacknowledged <-chan struct{}) {
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAliveInterval, Control: endUnacknowledged}
	ended := make(chan struct{}, 1)
	return connrotation.NewDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &acknowledgedConn{conn, ended}, nil
	}), ended
}

// acknowledgedConn signals when the kernel has ended the connection, as nothing was acknowledged.
type acknowledgedConn struct {
	net.Conn
	unacknowledged chan<- struct{}
}

func (c *acknowledgedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.signal(err)
}

func (c *acknowledgedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.signal(err)
}

// signal signals if an error of the connection says that nothing was acknowledged, and returns it.
func (c *acknowledgedConn) signal(err error) error {
	if errors.Is(err, unix.ETIMEDOUT) {
		pacing.Signal(c.unacknowledged)
	}
	return err
}

// endUnacknowledged makes the kernel end a connection when what was sent on it is not
// acknowledged in time. It is a Control of net.Dialer.
func endUnacknowledged(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(
			int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledgedTimeout.Milliseconds()),
		)
	})
	return errors.Join(err, failed)
}

// PingAPIServer sets the environment variable by which client-go decides after how many seconds of silence a client
// pings the API server: one, unless the variable is set already. Call it before clients are made. When the network is
// cut, the API server does not acknowledge the ping, and so an agent that seldom renews its Lease finds out in two
// seconds. The API server does not count a ping as a request.
func PingAPIServer() error {
	const seconds = "HTTP2_READ_IDLE_TIMEOUT_SECONDS"
	if os.Getenv(seconds) != "" {
		return nil
	}
	return os.Setenv(seconds, "1")
}
