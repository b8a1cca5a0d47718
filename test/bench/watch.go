package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/lab"
)

// bell wakes all who wait whenever it rings.
type bell struct {
	mutex sync.Mutex
	rung  chan struct{}
}

// ring changes something under the lock and wakes all.
func (b *bell) ring(change func()) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	change()
	if b.rung != nil {
		close(b.rung)
	}
	b.rung = make(chan struct{})
}

// until waits until ask, called under the lock, says so.
func (b *bell) until(ctx context.Context, what string, ask func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		b.mutex.Lock()
		done := ask()
		if b.rung == nil {
			b.rung = make(chan struct{})
		}
		rung := b.rung
		b.mutex.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-rung:
		}
	}
}

// given is when a Service got its addresses, and which.
type given struct {
	at        time.Time
	addresses []netip.Addr
}

// services notes when each Service gets addresses, by one watch.
type services struct {
	bell
	given map[string]given
}

// watchServices begins at once; it ends with ctx.
func (b *bench) watchServices(ctx context.Context) (*services, error) {
	w, err := b.client.Watch(ctx, &corev1.ServiceList{}, client.InNamespace(namespace))
	if err != nil {
		return nil, fmt.Errorf("watch Services: %w", err)
	}
	s := &services{given: map[string]given{}}
	go func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			s.see(event, time.Now())
		}
	}()
	return s, nil
}

func (s *services) see(event watch.Event, at time.Time) {
	svc, ok := event.Object.(*corev1.Service)
	if !ok {
		return
	}
	if event.Type == watch.Deleted {
		s.ring(func() { delete(s.given, svc.Name) })
		return
	}
	var addresses []netip.Addr
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(in.IP); err == nil {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) == 0 {
		return
	}
	s.ring(func() {
		if _, known := s.given[svc.Name]; !known {
			s.given[svc.Name] = given{at, addresses}
		}
	})
}

// wait waits until a Service has addresses.
func (s *services) wait(ctx context.Context, name string) (given, error) {
	var g given
	err := s.until(ctx, "addresses of "+name, func() bool {
		var ok bool
		g, ok = s.given[name]
		return ok
	})
	return g, err
}

// change is one of an address on a node's interface.
type change struct {
	node    string
	address netip.Addr
	added   bool
	at      time.Time
}

// kernels notes what changes on the nodes' interfaces, as their kernels say it.
type kernels struct {
	bell
	changes []change
	err     error
}

// watchKernels begins at once; it ends with ctx.
func (b *bench) watchKernels(ctx context.Context) (*kernels, error) {
	k := &kernels{}
	for _, node := range b.nodes() {
		handle, err := netns.GetFromName(lab.Namespace(node))
		if err != nil {
			return nil, fmt.Errorf("open the network namespace of %s: %w", node, err)
		}
		updates := make(chan netlink.AddrUpdate, 4096)
		err = netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
			Namespace: &handle, ReceiveBufferSize: 8 << 20, ReceiveBufferForceSize: true,
			ErrorCallback: func(err error) {
				if ctx.Err() == nil {
					k.ring(func() { k.err = fmt.Errorf("watch the interfaces of %s: %w", node, err) })
				}
			},
		})
		_ = handle.Close()
		if err != nil {
			return nil, fmt.Errorf("watch the interfaces of %s: %w", node, err)
		}
		go func() {
			for u := range updates {
				at := time.Now()
				if address, ok := netip.AddrFromSlice(u.LinkAddress.IP); ok {
					k.ring(func() { k.changes = append(k.changes, change{node, address.Unmap(), u.NewAddr, at}) })
				}
			}
		}()
	}
	return k, nil
}

// wait waits until an address was put on interfaces of so many nodes, or taken
// off them, after a time, and returns when it was so.
func (k *kernels) wait(ctx context.Context, address netip.Addr, added bool, nodes int, after time.Time) (time.Time, error) {
	var at time.Time
	what := fmt.Sprintf("%s on interfaces of %d nodes: %t", address, nodes, added)
	var failed error
	err := k.until(ctx, what, func() bool {
		failed = k.err
		var ok bool
		at, ok = reached(k.changes, address, added, nodes, after)
		return ok || failed != nil
	})
	if failed != nil {
		return at, failed
	}
	return at, err
}

// reached is when as many nodes had the address put on, or taken off.
func reached(changes []change, address netip.Addr, added bool, nodes int, after time.Time) (time.Time, bool) {
	seen := map[string]bool{}
	for _, c := range changes {
		if c.address != address || c.added != added || c.at.Before(after) {
			continue
		}
		seen[c.node] = true
		if len(seen) == nodes {
			return c.at, true
		}
	}
	return time.Time{}, false
}

// forget makes room, between trials.
func (k *kernels) forget() { k.ring(func() { k.changes = nil }) }

// stations notes who answers for addresses on the nodes' link.
type stations struct {
	bell
	asker *lab.Asker
	first map[netip.Addr]time.Time
}

// watchStations begins to listen, for the family of an address; it ends, and is
// closed, with ctx.
func watchStations(ctx context.Context, like netip.Addr) (*stations, error) {
	asker, err := lab.OpenAsker(lab.Client, like)
	if err != nil {
		return nil, err
	}
	s := &stations{asker: asker, first: map[netip.Addr]time.Time{}}
	go func() {
		defer asker.Close()
		for ctx.Err() == nil {
			address, _, at, ok := asker.Answer()
			if !ok {
				continue
			}
			s.ring(func() {
				if _, known := s.first[address]; !known {
					s.first[address] = at
				}
			})
		}
	}()
	return s, nil
}

// askInterval is between two questions for an address that does not answer yet.
const askInterval = 5 * time.Millisecond

// wait asks until somebody answers, and returns when that was.
func (s *stations) wait(ctx context.Context, address netip.Addr) (time.Time, error) {
	s.ring(func() { delete(s.first, address) })
	var at time.Time
	err := await(ctx, askInterval, "an answer for "+address.String(), func() error {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		var ok bool
		if at, ok = s.first[address]; ok {
			return nil
		}
		if err := s.asker.Ask(address); err != nil {
			return err
		}
		return fmt.Errorf("nobody answers")
	})
	return at, err
}
