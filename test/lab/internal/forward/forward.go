// Package forward carries TCP connections from this network namespace into
// another one, so that ordinary programs reach the lab's API server.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/netns"
)

// Listen accepts connections at address, in the namespace of the caller, until
// ctx ends, and joins each to one that it makes to target from the network
// namespace called name.
func Listen(ctx context.Context, address, name string, target netip.AddrPort) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for clients of %s: %w", target, err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		client, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a client of %s: %w", target, err)
		}
		go func() {
			defer client.Close()
			server, err := netns.Dial(ctx, name, "tcp", target, 5*time.Second)
			if err != nil {
				return // the client sees its connection closed
			}
			defer server.Close()
			joinTexts(client.(*net.TCPConn), server.(*net.TCPConn))
		}()
	}
}

// joinTexts copies both ways until both sides have finished or either has failed.
func joinTexts(a, b *net.TCPConn) {
	done := make(chan bool, 2) // whether all went well
	pipe := func(to, from *net.TCPConn) {
		_, err := io.Copy(to, from)
		done <- errors.Join(err, to.CloseWrite()) == nil
	}
	go pipe(a, b)
	go pipe(b, a)
	if <-done {
		<-done
	}
}
