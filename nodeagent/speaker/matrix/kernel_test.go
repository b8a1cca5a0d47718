//go:build routers

package matrix

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lookInterval is how often the router's kernel is asked.
const lookInterval = 10 * time.Millisecond

// routeWatch looks at the routes of the router's kernel to some addresses until stop.
type routeWatch struct {
	stop func()

	// mu protects what follows.
	mu sync.Mutex
	// present has since when a next hop of an address is there, and absent since when it is not.
	present map[hop]time.Time
	absent  map[hop]time.Time
	// away has for how long a next hop was not there.
	away map[hop]time.Duration
	err  error
}

// hop is a next hop of an address.
type hop struct{ address, nextHop netip.Addr }

// watchRoutes begins to watch whether the router reaches each address over all nodes.
func (n *topology) watchRoutes(t testing.TB, addresses []netip.Addr) *routeWatch {
	t.Helper()
	w := &routeWatch{present: map[hop]time.Time{}, absent: map[hop]time.Time{}, away: map[hop]time.Duration{}}
	socket := n.openNetlink(t)
	var all []hop
	for _, a := range addresses {
		for _, via := range n.wants(a.String()) {
			all = append(all, hop{a, netip.MustParseAddr(via)})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(lookInterval)
		defer ticker.Stop()
		for ctx.Err() == nil {
			w.look(socket, all)
			<-ticker.C
		}
	}()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			<-done
			_ = unix.Close(socket)
			w.mu.Lock()
			defer w.mu.Unlock()
			for h, since := range w.absent {
				w.away[h] += time.Since(since)
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

// look compares the routes with those that were there before.
func (w *routeWatch) look(socket int, all []hop) {
	routes, err := listRoutes(socket)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.err = err
		return
	}
	now := time.Now()
	for _, h := range all {
		if slices.Contains(nextHops(routes, h.address), h.nextHop) {
			if since, wasAbsent := w.absent[h]; wasAbsent {
				w.away[h] += now.Sub(since)
			}
			delete(w.absent, h)
			if _, known := w.present[h]; !known {
				w.present[h] = now
			}
			continue
		}
		delete(w.present, h)
		if _, known := w.absent[h]; !known {
			w.absent[h] = now
		}
	}
}

// isComplete reports whether all next hops are there.
func (w *routeWatch) isComplete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.absent) == 0 && len(w.present) > 0
}

// goneSince returns since when the next hops are away that are addresses of a node; false if one is there.
func (w *routeWatch) goneSince(of *node) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last time.Time
	for h := range w.present {
		if of.has(h.nextHop) {
			return time.Time{}, false
		}
	}
	for h, since := range w.absent {
		if of.has(h.nextHop) && since.After(last) {
			last = since
		}
	}
	return last, !last.IsZero()
}

// has reports whether an address is one of the node's.
func (n *node) has(address netip.Addr) bool {
	return address.String() == n.ipv4 || address.String() == n.ipv6
}

// longest ends the watch, and returns for how long the next hop was away that was so for longest.
func (w *routeWatch) longest() (time.Duration, error) {
	w.stop()
	longest := time.Duration(0)
	for _, d := range w.away {
		longest = max(longest, d)
	}
	return longest, w.err
}

// openNetlink opens a socket by which the router's kernel is asked (rtnetlink(7)).
func (n *topology) openNetlink(t testing.TB) int {
	t.Helper()
	socket := -1
	n.router.Call(t, func() (err error) {
		socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		return err
	})
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	return socket
}

// kernelRoute is a route of the kernel's main table.
type kernelRoute struct {
	prefix   netip.Prefix
	metric   uint32
	nextHops []netip.Addr
}

// nextHops returns those of the route by which the kernel reaches an address, but not of the default route.
func nextHops(routes []kernelRoute, address netip.Addr) []netip.Addr {
	best := kernelRoute{}
	for _, r := range routes {
		if !r.prefix.Contains(address) || r.prefix.Bits() == 0 {
			continue
		}
		if order := cmp.Or(cmp.Compare(best.prefix.Bits(), r.prefix.Bits()), cmp.Compare(r.metric, best.metric)); order < 0 {
			best = r
		}
	}
	return best.nextHops
}

// listRoutes returns the kernel's routes of both families.
func listRoutes(socket int) ([]kernelRoute, error) {
	var all []kernelRoute
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		message := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
		binary.NativeEndian.PutUint32(message, uint32(len(message)))
		binary.NativeEndian.PutUint16(message[4:], unix.RTM_GETROUTE)
		binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
		message[unix.SizeofNlMsghdr] = family
		if err := unix.Sendto(socket, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, fmt.Errorf("ask for routes: %w", err)
		}
		some, err := receiveRoutes(socket)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func receiveRoutes(socket int) ([]kernelRoute, error) {
	var all []kernelRoute
	buffer := make([]byte, 64<<10)
	for {
		length, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive routes: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:length])
		if err != nil {
			return nil, fmt.Errorf("read routes: %w", err)
		}
		for i := range messages {
			switch m := &messages[i]; m.Header.Type {
			case unix.NLMSG_DONE:
				return all, nil
			case unix.NLMSG_ERROR:
				return nil, errors.New("the kernel lists no routes")
			case unix.RTM_NEWROUTE:
				if r, ok := toRoute(m); ok {
					all = append(all, r)
				}
			}
		}
	}
}

// toRoute reads a route; false if it is not a unicast one of the main table.
func toRoute(m *syscall.NetlinkMessage) (kernelRoute, bool) {
	const bitsByte, tableByte, typeByte = 1, 4, 7 // of struct rtmsg
	if len(m.Data) < unix.SizeofRtMsg || m.Data[tableByte] != unix.RT_TABLE_MAIN || m.Data[typeByte] != unix.RTN_UNICAST {
		return kernelRoute{}, false
	}
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return kernelRoute{}, false
	}
	r := kernelRoute{}
	for _, a := range attributes {
		switch a.Attr.Type {
		case unix.RTA_DST:
			if address, ok := netip.AddrFromSlice(a.Value); ok {
				r.prefix = netip.PrefixFrom(address, int(m.Data[bitsByte]))
			}
		case unix.RTA_PRIORITY:
			r.metric = binary.NativeEndian.Uint32(a.Value)
		case unix.RTA_GATEWAY:
			if address, ok := netip.AddrFromSlice(a.Value); ok {
				r.nextHops = append(r.nextHops, address)
			}
		case unix.RTA_MULTIPATH:
			r.nextHops = append(r.nextHops, multipath(a.Value)...)
		}
	}
	return r, r.prefix.IsValid()
}

// multipath reads the next hops of a route that has several.
func multipath(text []byte) []netip.Addr {
	var found []netip.Addr
	for len(text) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(text))
		if length < unix.SizeofRtNexthop || length > len(text) {
			break
		}
		for rest := text[unix.SizeofRtNexthop:length]; len(rest) >= unix.SizeofRtAttr; {
			size, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
			if size < unix.SizeofRtAttr || size > len(rest) {
				break
			}
			if address, ok := netip.AddrFromSlice(rest[unix.SizeofRtAttr:size]); ok && kind == unix.RTA_GATEWAY {
				found = append(found, address)
			}
			rest = rest[min(len(rest), (size+3)&^3):]
		}
		text = text[min(len(text), (length+3)&^3):]
	}
	return found
}
