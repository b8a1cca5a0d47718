package netns

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Dial connects to target from the network namespace called name. The network
// is one of [net.Dial]. A timeout of 0 means none but that of ctx.
func Dial(ctx context.Context, name, network string, target netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	var conn net.Conn
	err := Do(name, func() (err error) {
		// A numeric address is dialled by this goroutine itself, so the socket
		// is made in the namespace that its thread is in.
		conn, err = (&net.Dialer{Timeout: timeout, FallbackDelay: -1}).DialContext(ctx, network, target.String())
		return err
	})
	return conn, err
}
