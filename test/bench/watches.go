package main

import (
	"context"
	"errors"
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

// notifier guards a state, and lets goroutines wait for a change of it.
type notifier struct {
	mutex   sync.Mutex
	changed chan struct{}
}

// update changes the state under the lock, and wakes all that wait.
func (b *notifier) update(change func()) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	change()
	if b.changed != nil {
		close(b.changed)
	}
	b.changed = make(chan struct{})
}

// waitUntil waits until check, which is called under the lock, returns true.
func (b *notifier) waitUntil(ctx context.Context, what string, check func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	for {
		b.mutex.Lock()
		done := check()
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		rung := b.changed
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

// allocation says when a Service got which addresses.
type allocation struct {
	at        time.Time
	addresses []netip.Addr
}

// serviceWatch notes when each Service gets its addresses, by one watch.
type serviceWatch struct {
	notifier
	allocations map[string]allocation
}

// watchServices starts a serviceWatch, which ends with ctx.
func (b *bench) watchServices(ctx context.Context) (*serviceWatch, error) {
	w, err := b.client.Watch(ctx, &corev1.ServiceList{}, client.InNamespace(benchNamespace))
	if err != nil {
		return nil, fmt.Errorf("watch Services: %w", err)
	}
	s := &serviceWatch{allocations: map[string]allocation{}}
	go func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			s.recordEvent(event, time.Now())
		}
	}()
	return s, nil
}

func (s *serviceWatch) recordEvent(event watch.Event, at time.Time) {
	svc, ok := event.Object.(*corev1.Service)
	if !ok {
		return
	}
	if event.Type == watch.Deleted {
		s.update(func() { delete(s.allocations, svc.Name) })
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
	s.update(func() {
		if _, known := s.allocations[svc.Name]; !known {
			s.allocations[svc.Name] = allocation{at, addresses}
		}
	})
}

// wait waits until a Service has addresses.
func (s *serviceWatch) wait(ctx context.Context, name string) (allocation, error) {
	var g allocation
	err := s.waitUntil(ctx, "addresses of "+name, func() bool {
		var ok bool
		g, ok = s.allocations[name]
		return ok
	})
	return g, err
}

// change says that an address was added to a node's interfaces, or removed.
type change struct {
	node    string
	address netip.Addr
	added   bool
	at      time.Time
}

// kernelWatch notes the changes of addresses that the nodes' kernels report.
type kernelWatch struct {
	notifier
	changes []change
	err     error
}

// watchKernels starts a kernelWatch, which ends with ctx.
func (b *bench) watchKernels(ctx context.Context) (*kernelWatch, error) {
	k := &kernelWatch{}
	for _, node := range b.nodeNames() {
		handle, err := netns.GetFromName(lab.Namespace(node))
		if err != nil {
			return nil, fmt.Errorf("open the network namespace of %s: %w", node, err)
		}
		updates := make(chan netlink.AddrUpdate, 4096)
		err = netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
			Namespace: &handle, ReceiveBufferSize: 8 << 20, ReceiveBufferForceSize: true,
			ErrorCallback: func(err error) {
				if ctx.Err() == nil {
					k.update(func() { k.err = fmt.Errorf("watch the interfaces of %s: %w", node, err) })
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
					k.update(func() { k.changes = append(k.changes, change{node, address.Unmap(), u.NewAddr, at}) })
				}
			}
		}()
	}
	return k, nil
}

// wait waits until an address has been added to interfaces of as many nodes as nodes says,
// or removed from them, since the time after. It returns when it had been.
func (k *kernelWatch) wait(
	ctx context.Context, address netip.Addr, added bool, nodes int, after time.Time,
) (time.Time, error) {
	var at time.Time
	what := fmt.Sprintf("%s on interfaces of %d nodes: %t", address, nodes, added)
	var failed error
	err := k.waitUntil(ctx, what, func() bool {
		failed = k.err
		var ok bool
		at, ok = whenReached(k.changes, address, added, nodes, after)
		return ok || failed != nil
	})
	if failed != nil {
		return at, failed
	}
	return at, err
}

// whenReached returns when changes had added the address to, or removed it from, as many
// nodes as nodes says.
func whenReached(changes []change, address netip.Addr, added bool, nodes int, after time.Time) (time.Time, bool) {
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

// forgetChanges frees memory between trials.
func (k *kernelWatch) forgetChanges() { k.update(func() { k.changes = nil }) }

// answerWatch notes when addresses are first answered for on the nodes' link.
type answerWatch struct {
	notifier
	asker        *lab.Asker
	firstAnswers map[netip.Addr]time.Time
}

// watchStations starts an answerWatch for the family of an address. It ends with ctx.
func watchStations(ctx context.Context, like netip.Addr) (*answerWatch, error) {
	asker, err := lab.OpenAsker(lab.Client, like)
	if err != nil {
		return nil, err
	}
	s := &answerWatch{asker: asker, firstAnswers: map[netip.Addr]time.Time{}}
	go func() {
		defer asker.Close()
		for ctx.Err() == nil {
			address, _, at, ok := asker.Answer()
			if !ok {
				continue
			}
			s.update(func() {
				if _, known := s.firstAnswers[address]; !known {
					s.firstAnswers[address] = at
				}
			})
		}
	}()
	return s, nil
}

// askInterval is the time between two requests for an address that does not answer yet.
const askInterval = 5 * time.Millisecond

// wait sends requests for an address until a station answers. It returns when that was.
func (s *answerWatch) wait(ctx context.Context, address netip.Addr) (time.Time, error) {
	s.update(func() { delete(s.firstAnswers, address) })
	var at time.Time
	err := waitUntil(ctx, askInterval, "an answer for "+address.String(), func() error {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		var ok bool
		if at, ok = s.firstAnswers[address]; ok {
			return nil
		}
		if err := s.asker.Ask(address); err != nil {
			return err
		}
		return errors.New("no station answers")
	})
	return at, err
}
