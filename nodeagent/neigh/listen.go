package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/time/rate"
)

// Of a flood of frames Listen reads no more than readRate in a second, readBurst at a time,
// on each socket. The kernel drops the frames that then find no room. Stations say
// important things more than once.
const (
	readRate  = 20000
	readBurst = 1000
)

// Listen calls heard with the messages that other stations on an interface's link send
// about wanted addresses, until ctx ends, or the interface goes down or is removed.
func (e *Ethernet) Listen(ctx context.Context, iface string, wanted func(netip.Addr) bool, heard func(Message)) error {
	nic, _, err := ethernetInterface(iface)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", iface, err)
	}
	var sockets []*os.File
	for _, etherType := range []uint16{etherTypeARP, etherTypeIPv6} {
		socket, err := openPacketSocket(nic, etherType, claimFilter(nic, etherType == etherTypeIPv6, nil))
		if err != nil {
			return errors.Join(fmt.Errorf("listen on %s: %w", iface, err), closeAll(sockets))
		}
		sockets = append(sockets, socket)
	}
	var wait sync.WaitGroup
	errs := make([]error, len(sockets))
	ctx, stop := context.WithCancel(ctx)
	for i, socket := range sockets {
		wait.Go(func() {
			defer stop() // when one socket fails Listen ends
			errs[i] = e.listenOn(ctx, socket, wanted, heard)
		})
	}
	wait.Wait()
	stop()
	if err := errors.Join(append(errs, closeAll(sockets))...); err != nil {
		return fmt.Errorf("listen on %s: %w", iface, err)
	}
	return nil
}

// listenOn is Listen for one socket.
func (e *Ethernet) listenOn(
	ctx context.Context, socket *os.File, wanted func(netip.Addr) bool, heard func(Message),
) error {
	limiter, burst := rate.NewLimiter(readRate, readBurst), 0
	err := readMessages(ctx, socket, noDeadline, func(m Message) bool {
		if wanted(m.Addr) {
			if own, err := e.isOwn(m.MAC); err == nil && !own {
				heard(m)
			}
		}
		if burst++; burst >= readBurst {
			burst = 0
			_ = limiter.WaitN(ctx, readBurst) // fails only when ctx ends
		}
		return true
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}
