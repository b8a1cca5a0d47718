package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Listen passes on what other stations on an interface's link say of the
// addresses that are wanted, until ctx ends, or the interface goes down or away.
func (*Ethernet) Listen(ctx context.Context, iface string, wanted func(netip.Addr) bool, heard func(Message)) error {
	nic, _, err := station(iface)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", iface, err)
	}
	var sockets []*os.File
	for _, kind := range []struct {
		etherType uint16
		filter    []unix.SockFilter
	}{{etherTypeARP, nil}, {etherTypeIPv6, advertisementsOnly}} {
		socket, err := open(nic, kind.etherType, kind.filter)
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
			defer stop() // both or none
			errs[i] = hear(ctx, socket, wanted, heard)
		})
	}
	wait.Wait()
	stop()
	if err := errors.Join(append(errs, closeAll(sockets))...); err != nil {
		return fmt.Errorf("listen on %s: %w", iface, err)
	}
	return nil
}

// hear reads one socket.
func hear(ctx context.Context, socket *os.File, wanted func(netip.Addr) bool, heard func(Message)) error {
	err := listen(ctx, socket, time.Time{}, func(m Message) bool {
		if !wanted(m.Addr) {
			return true
		}
		// Of the node's other interfaces one may be on the same link.
		if own, err := ownMACs(); err == nil && !own[m.MAC] {
			heard(m)
		}
		return true
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func closeAll(sockets []*os.File) error {
	var errs []error
	for _, s := range sockets {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
