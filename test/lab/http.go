package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/netns"
)

// HTTPClient sends requests from a host of the lab. Each request makes a new
// connection, so that each is balanced anew, and fails after timeout. URLs have
// addresses, not names: the hosts have no name server.
func (l *Lab) HTTPClient(host string, timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return l.Dial(ctx, host, network, address)
			},
		},
	}
}

// Dial connects from a host of the lab to an address and port, as
// "10.77.0.100:80" or "[fd00:77::100]:80".
func (l *Lab) Dial(ctx context.Context, host, network, address string) (net.Conn, error) {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial from %s: want an address, not a name: %w", host, err)
	}
	conn, err := netns.Dial(ctx, Namespace(host), network, target, 0)
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", host, err)
	}
	return conn, nil
}

// Listen listens on a host of the lab, at an address and port of that host. The process
// that listens need not be on the host.
func (l *Lab) Listen(host, network, address string) (net.Listener, error) {
	var listener net.Listener
	err := netns.Do(Namespace(host), func() error {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", host, err)
	}
	return listener, nil
}
