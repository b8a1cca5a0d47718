// Package linktest is a kernel in memory, for tests.
package linktest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Kernel behaves as link.Netlink does on a real kernel: an address is added
// once, only to an interface that exists, counts down its lifetimes and expires
// with them; and a renewal makes it ours.
type Kernel struct {
	mu        sync.Mutex
	links     []plan.Link
	routes    []plan.Route
	addresses []entry
	refused   map[netip.Addr]error
	changed   []func()
	calls     []string
	gateways  map[string][]string
}

type entry struct {
	plan.Address
	since time.Time
}

// New returns a kernel with these links.
func New(links ...plan.Link) *Kernel {
	return &Kernel{links: links, refused: map[netip.Addr]error{}}
}

// Put adds or replaces an address behind the agent's back, as it is: not ours
// unless it says so.
func (k *Kernel) Put(a plan.Address) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.put(a)
	k.notify()
}

// Strip removes an address from an interface behind the agent's back.
func (k *Kernel) Strip(iface string, prefix netip.Prefix) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(iface, prefix)
	k.notify()
}

// Route adds a route.
func (k *Kernel) Route(r plan.Route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.routes = append(k.routes, r)
	k.notify()
}

// SetUp sets a link up or down.
func (k *Kernel) SetUp(name string, up bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.links {
		if k.links[i].Name == name {
			k.links[i].Up = up
		}
	}
	k.notify()
}

// Refuse makes every change of an address fail; nil lets it pass again.
func (k *Kernel) Refuse(addr netip.Addr, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused[addr] = err
}

// Calls returns the changes that were asked for since it was last called, in
// their order, as "Add 192.0.2.1/24 eth0".
func (k *Kernel) Calls() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	calls := k.calls
	k.calls = nil
	return calls
}

// Observe lists what the kernel holds.
func (k *Kernel) Observe() (plan.Observed, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	o := plan.Observed{Links: slices.Clone(k.links), Routes: slices.Clone(k.routes)}
	for _, e := range k.addresses {
		a := e.Address
		a.Valid, a.Preferred = remains(a.Valid, e.since), remains(a.Preferred, e.since)
		o.Addresses = append(o.Addresses, a)
	}
	return o, nil
}

// Gateway makes a MAC address that of an interface's default gateway.
func (k *Kernel) Gateway(iface, mac string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gateways == nil {
		k.gateways = map[string][]string{}
	}
	k.gateways[iface] = append(k.gateways[iface], mac)
}

// GatewayMACs is what Gateway has set.
func (k *Kernel) GatewayMACs(iface string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gateways[iface]
}

// EnsureVirtual makes a dummy if there is no interface of that name.
func (k *Kernel) EnsureVirtual(name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.links {
		if l.Name == name {
			return l.Kind, nil
		}
	}
	k.links = append(k.links, plan.Link{Name: name, Kind: "dummy", Ours: true, Up: true})
	k.calls = append(k.calls, "EnsureVirtual "+name)
	k.notify()
	return "dummy", nil
}

// RemoveVirtual removes a dummy without addresses.
func (k *Kernel) RemoveVirtual(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.ContainsFunc(k.addresses, func(e entry) bool { return e.Interface == name }) {
		return nil
	}
	before := len(k.links)
	k.links = slices.DeleteFunc(k.links, func(l plan.Link) bool { return l.Name == name && l.Ours })
	if len(k.links) < before {
		k.calls = append(k.calls, "RemoveVirtual "+name)
		k.notify()
	}
	return nil
}

// Add puts an address on its interface.
func (k *Kernel) Add(a plan.Address) error {
	return k.change("Add", a, func() error {
		if k.find(a.Interface, a.Prefix) >= 0 {
			return unix.EEXIST
		}
		k.put(a)
		return nil
	})
}

// Renew sets an address's lifetimes.
func (k *Kernel) Renew(a plan.Address) error {
	return k.change("Renew", a, func() error {
		k.put(a)
		return nil
	})
}

// Remove takes an address from its interface.
func (k *Kernel) Remove(a plan.Address) error {
	return k.change("Remove", a, func() error {
		k.remove(a.Interface, a.Prefix)
		return nil
	})
}

// Watch calls changed after each change, until ctx ends.
func (k *Kernel) Watch(ctx context.Context, changed func()) error {
	k.mu.Lock()
	k.changed = append(k.changed, changed)
	k.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (k *Kernel) change(what string, a plan.Address, do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	k.calls = append(k.calls, fmt.Sprintf("%s %s %s", what, a.Prefix, a.Interface))
	err := k.refused[a.Prefix.Addr()]
	switch {
	case err != nil:
	case !slices.ContainsFunc(k.links, func(l plan.Link) bool { return l.Name == a.Interface }):
		err = unix.ENODEV
	default:
		a.Ours = true
		err = do()
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", what, a.Prefix, a.Interface, err)
	}
	k.notify()
	return nil
}

func (k *Kernel) put(a plan.Address) {
	e := entry{Address: a, since: time.Now()}
	if i := k.find(a.Interface, a.Prefix); i >= 0 {
		k.addresses[i] = e
		return
	}
	k.addresses = append(k.addresses, e)
}

func (k *Kernel) remove(iface string, prefix netip.Prefix) {
	if i := k.find(iface, prefix); i >= 0 {
		k.addresses = slices.Delete(k.addresses, i, i+1)
	}
}

func (k *Kernel) find(iface string, prefix netip.Prefix) int {
	return slices.IndexFunc(k.addresses, func(e entry) bool { return e.Interface == iface && e.Prefix == prefix })
}

func (k *Kernel) expire() {
	k.addresses = slices.DeleteFunc(k.addresses, func(e entry) bool { return remains(e.Valid, e.since) <= 0 })
}

func (k *Kernel) notify() {
	for _, changed := range k.changed {
		go changed()
	}
}

// remains is what is left of a lifetime, in whole seconds rounded up.
func remains(lifetime time.Duration, since time.Time) time.Duration {
	if lifetime == plan.Forever {
		return lifetime
	}
	return max(0, lifetime-time.Since(since).Truncate(time.Second))
}
