package link

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// watchGap is the least time between two calls of Watch's function.
	watchGap = 25 * time.Millisecond
	// watchBuffer holds the notifications of a burst of a few thousand changes.
	watchBuffer = 1 << 20
	// watchRetry is how long to wait before subscribing anew.
	watchRetry = time.Second
)

// Watch calls changed whenever a link, an address or a route changes: at once
// for the first change, and once for all that follow within 25 ms. What changed is
// not said: the caller lists. After notifications were lost it subscribes anew and
// calls changed. It returns when ctx ends, or if the first subscription fails.
func (n *Netlink) Watch(ctx context.Context, changed func()) error {
	socket, err := subscribe()
	if err != nil {
		return err
	}
	signal := make(chan struct{}, 1)
	go coalesce(ctx, signal, changed)
	for socket != nil {
		receive(ctx, socket, signal)
		if socket = resubscribe(ctx); socket != nil {
			notify(signal) // for what was missed
		}
	}
	return nil
}

func subscribe() (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of links, addresses and routes: %w", err)
	}
	// Without the larger buffer notifications are lost sooner, and listed for.
	_ = socket.SetReceiveBufferSize(watchBuffer, true)
	return socket, nil
}

// resubscribe subscribes as soon as it can; nil if ctx ends before.
func resubscribe(ctx context.Context) *nl.NetlinkSocket {
	for ctx.Err() == nil {
		if socket, err := subscribe(); err == nil {
			return socket
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

// receive signals each batch of notifications, until the socket fails or ctx
// ends.
func receive(ctx context.Context, socket *nl.NetlinkSocket, signal chan<- struct{}) {
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer func() {
		if stop() {
			_ = socket.Close()
		}
	}()
	for {
		if _, _, err := socket.Receive(); err != nil {
			return
		}
		notify(signal)
	}
}

func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default: // one is waiting already
	}
}

// coalesce calls changed for a signal, at most once in each watchGap.
func coalesce(ctx context.Context, signal <-chan struct{}, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signal:
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchGap):
		}
	}
}
