package link

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/internal/tasks"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

const (
	// notificationGap is the least time between two calls of a watch's function: long
	// enough to serve a burst of changes by a few calls, and short enough that the agent
	// restores a removed address within tens of milliseconds.
	notificationGap = 25 * time.Millisecond
	// resubscribeInterval is how long a watch waits before it tries once more to
	// subscribe. Only a kernel that is short of memory refuses.
	resubscribeInterval = time.Second
)

// notificationBuffer is the size in bytes of a subscription's receive buffer. It holds
// the notifications of a burst of a few thousand changes.
const notificationBuffer = 1 << 20

// Watch calls changed when a link or an address changes, or a route that Observe returns: at once for
// the first change, and once for all changes in the 25 ms after a call. It does not say what has
// changed: the caller lists. What the caller has changed itself, or has listed since, is no change. After
// notifications were lost Watch subscribes again and calls changed. It returns when ctx ends, or if the first
// subscription fails.
func (n *Netlink) Watch(ctx context.Context, changed func()) error {
	groups := []uint{
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	}
	socket, err := subscribe(groups)
	if err != nil {
		return err
	}
	signal := make(chan struct{}, 1)
	go callForSignals(ctx, signal, changed)
	for socket != nil {
		n.known.setWatched(true)
		receive(ctx, socket, func(messages []syscall.NetlinkMessage) {
			if slices.ContainsFunc(messages, n.isObservedChange) {
				n.known.markStale()
				pacing.Signal(signal)
			}
		})
		n.known.setWatched(false)
		if socket = resubscribe(ctx, groups); socket != nil {
			pacing.Signal(signal) // for the changes that the lost notifications reported
		}
	}
	return nil
}

// isObservedChange reports whether a notification may change what Observe returns, beyond what the agent has
// changed itself. Most of those of a node with a routing daemon, with many pods, or with many addresses to
// announce, do not.
func (n *Netlink) isObservedChange(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return n.known.isNews(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return true
		}
		route := nl.DeserializeRtMsg(m.Data)
		return route.Table == unix.RT_TABLE_MAIN &&
			isRouteObserved(int(route.Family), int(route.Dst_len), netlink.RouteProtocol(route.Protocol))
	default:
		return true
	}
}

// WatchLinks calls changed with all links: at once, and after changes of links, at most
// every 25 ms. It lists the links once and then applies the kernel's notifications about
// single links, so that a change costs little however many links there are. After
// notifications were lost it lists again. It returns when ctx ends, or if the first
// subscription or listing fails.
func (n *Netlink) WatchLinks(ctx context.Context, changed func([]plan.NetworkInterface)) error {
	groups := []uint{unix.RTNLGRP_LINK}
	socket, err := subscribe(groups)
	if err != nil {
		return err
	}
	table := &linkTable{}
	if err := table.list(n); err != nil {
		_ = socket.Close()
		return err
	}
	signal := make(chan struct{}, 1)
	pacing.Signal(signal)
	go callForSignals(ctx, signal, func() { changed(table.all()) })
	for socket != nil {
		receive(ctx, socket, func(messages []syscall.NetlinkMessage) {
			if table.apply(messages) {
				pacing.Signal(signal)
			}
		})
		if socket = resubscribe(ctx, groups); socket == nil {
			break
		}
		if table.list(n) == nil {
			pacing.Signal(signal)
			continue
		}
		_ = socket.Close() // receive fails at once, and the loop subscribes and lists again
		tasks.Goroutines{}.Wait(ctx, resubscribeInterval)
	}
	return nil
}

// subscribe opens a socket that receives the notifications of these groups.
func subscribe(groups []uint) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of links, addresses and routes: %w", err)
	}
	// With the smaller default the kernel drops notifications sooner, after which a watch
	// lists again.
	_ = socket.SetReceiveBufferSize(notificationBuffer, true)
	return socket, nil
}

// resubscribe subscribes, however often it has to try. It returns nil when ctx ends.
func resubscribe(ctx context.Context, groups []uint) *nl.NetlinkSocket {
	for ctx.Err() == nil {
		if socket, err := subscribe(groups); err == nil {
			return socket
		}
		tasks.Goroutines{}.Wait(ctx, resubscribeInterval)
	}
	return nil
}

// receive calls received with each batch of notifications, until the socket fails or ctx
// ends, and closes the socket. The socket fails when the kernel has dropped notifications.
func receive(ctx context.Context, socket *nl.NetlinkSocket, received func([]syscall.NetlinkMessage)) {
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer func() {
		if stop() {
			_ = socket.Close()
		}
	}()
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			return
		}
		received(messages)
	}
}

// callForSignals calls changed for each signal, with at least notificationGap between two
// calls, until ctx ends.
func callForSignals(ctx context.Context, signal <-chan struct{}, changed func()) {
	batch := pacing.Batch{Gap: notificationGap}
	var runner tasks.Goroutines
	for runner.Wait(ctx, tasks.Forever, signal) != tasks.Ended &&
		runner.Wait(ctx, batch.Delay(time.Now())) != tasks.Ended {
		select {
		case <-signal: // the call that follows serves this signal, too
		default:
		}
		batch.Begin(time.Now())
		changed()
		batch.End(time.Now())
	}
}
