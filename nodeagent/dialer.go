package nodeagent

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/connrotation"
)

// NewDialer returns a dialer for connections to the API server that can close all of them.
func NewDialer() *connrotation.Dialer {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAliveInterval, Control: endUnacknowledged}
	return connrotation.NewDialer(dialer.DialContext)
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
