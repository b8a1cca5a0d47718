package nodeagent

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/connrotation"
)

const (
	// dialTimeout is short: an API server that does not answer is asked again.
	dialTimeout = 3 * time.Second
	// unacknowledged is for how long what was sent may be on its way before the
	// kernel ends a connection (TCP_USER_TIMEOUT, tcp(7)): shorter than a renewal may
	// take, so that it is made again in time. An API server that is only slow
	// acknowledges, and keeps its connections: to make them anew is work for it.
	unacknowledged = 800 * time.Millisecond
	keepAlive      = 10 * time.Second
)

// NewDialer makes the agent's connections to the API server, which it can close all.
func NewDialer() *connrotation.Dialer {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: endUnacknowledged}
	return connrotation.NewDialer(dialer.DialContext)
}

// endUnacknowledged is a net.Dialer's Control.
func endUnacknowledged(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
	return errors.Join(err, failed)
}
