// Package linktest has a Kernel in memory, for tests of what uses package link.
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

// Kernel behaves as link.Netlink does with a real kernel: Add fails if the interface does
// not exist or has the address; lifetimes count down, and an address is removed when its
// lifetime ends; Add and Renew make an address the agent's.
type Kernel struct {
	mu        sync.Mutex
	links     []plan.NetworkInterface
	routes    []plan.Route
	addresses []heldAddress
	// errorByAddress holds the error with which changes of an address fail.
	errorByAddress map[netip.Addr]error
	// subscribers are told of each change.
	subscribers            []*subscriber
	calls                  []string
	gatewayMACsByInterface map[string][]string
}

// heldAddress is an address with the lifetimes that it had when it was set.
type heldAddress struct {
	plan.Address
	setAt time.Time
}

// isExpired reports whether the valid lifetime has ended.
func (a *heldAddress) isExpired() bool { return remainingLifetime(a.Valid, a.setAt) <= 0 }

// New returns a kernel with these links.
func New(links ...plan.NetworkInterface) *Kernel {
	return &Kernel{links: links, errorByAddress: map[netip.Addr]error{}}
}

// Put adds or replaces an address as another program does, or an earlier run of the agent:
// the address is the agent's only if IsOurs is set.
func (k *Kernel) Put(a plan.Address) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set(a)
	k.notify()
}

// Strip removes an address from an interface, as another program does.
func (k *Kernel) Strip(iface string, prefix netip.Prefix) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(iface, prefix)
	k.notify()
}

// AddRoute adds a route.
func (k *Kernel) AddRoute(r plan.Route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.routes = append(k.routes, r)
	k.notify()
}

// RemoveRoutes removes all routes of an interface.
func (k *Kernel) RemoveRoutes(iface string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.routes = slices.DeleteFunc(k.routes, func(r plan.Route) bool { return r.Interface == iface })
	k.notify()
}

// SetLinkUp sets a link up or down.
func (k *Kernel) SetLinkUp(name string, up bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.links {
		if k.links[i].Name == name {
			k.links[i].IsUp = up
		}
	}
	k.notify()
}

// Refuse makes all changes of an address fail with an error; with nil they succeed again.
func (k *Kernel) Refuse(addr netip.Addr, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errorByAddress[addr] = err
}

// TakeCalls returns the changes that the agent has made or tried since it was last called, in
// their order, each as "Add 192.0.2.1/24 eth0".
func (k *Kernel) TakeCalls() []string {
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
	k.removeExpired()
	o := plan.Observed{
		Interfaces: slices.Clone(k.links), Routes: slices.Clone(k.routes),
		Addresses: make([]plan.Address, 0, len(k.addresses)),
	}
	for _, e := range k.addresses {
		a := e.Address
		a.Valid, a.Preferred = remainingLifetime(a.Valid, e.setAt), remainingLifetime(a.Preferred, e.setAt)
		o.Addresses = append(o.Addresses, a)
	}
	return o, nil
}

// Has reports whether an interface has an address; any interface, if its name is empty.
func (k *Kernel) Has(iface string, addr netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeExpired()
	for i := range k.addresses { // which is faster than to copy them, as a simulation asks very often
		if a := &k.addresses[i]; a.Prefix.Addr() == addr && (iface == "" || a.Interface == iface) {
			return true
		}
	}
	return false
}

// AddGatewayMAC adds the MAC address of a default gateway of an interface.
func (k *Kernel) AddGatewayMAC(iface, mac string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gatewayMACsByInterface == nil {
		k.gatewayMACsByInterface = map[string][]string{}
	}
	k.gatewayMACsByInterface[iface] = append(k.gatewayMACsByInterface[iface], mac)
}

// NeighbourMACs returns what AddGatewayMAC has added, whatever the addresses of the gateways are.
func (k *Kernel) NeighbourMACs(iface string, _ []netip.Addr) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gatewayMACsByInterface[iface]
}

// EnsureVirtual adds a dummy if no interface has that name.
func (k *Kernel) EnsureVirtual(name string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.links {
		if l.Name == name {
			return l.Kind, nil
		}
	}
	k.links = append(k.links, plan.NetworkInterface{Name: name, Kind: "dummy", IsOurs: true, IsUp: true})
	k.calls = append(k.calls, "EnsureVirtual "+name)
	k.notify()
	return "dummy", nil
}

// RemoveVirtual removes a dummy without addresses.
func (k *Kernel) RemoveVirtual(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.ContainsFunc(k.addresses, func(a heldAddress) bool { return a.Interface == name }) {
		return nil
	}
	before := len(k.links)
	k.links = slices.DeleteFunc(k.links, func(l plan.NetworkInterface) bool { return l.Name == name && l.IsOurs })
	if len(k.links) < before {
		k.calls = append(k.calls, "RemoveVirtual "+name)
		k.notify()
	}
	return nil
}

// Add adds an address to its interface.
func (k *Kernel) Add(a plan.Address) error {
	return k.change("Add", a, func() error {
		if slices.ContainsFunc(k.addresses, func(held heldAddress) bool { // for IPv6 the kernel ignores the mask
			return held.Interface == a.Interface &&
				(held.Prefix == a.Prefix || a.Prefix.Addr().Is6() && held.Prefix.Addr() == a.Prefix.Addr())
		}) {
			return unix.EEXIST
		}
		k.set(a)
		return nil
	})
}

// Renew sets the lifetimes of an address.
func (k *Kernel) Renew(a plan.Address) error {
	return k.change("Renew", a, func() error {
		k.set(a)
		return nil
	})
}

// Replace removes an address and adds another.
func (k *Kernel) Replace(old, by plan.Address) error {
	return k.change(fmt.Sprintf("Replace %s by", old.Prefix), by, func() error {
		k.remove(old.Interface, old.Prefix)
		k.set(by)
		return nil
	})
}

// Remove removes an address from its interface.
func (k *Kernel) Remove(a plan.Address) error {
	return k.change("Remove", a, func() error {
		k.remove(a.Interface, a.Prefix)
		return nil
	})
}

// subscriber is told of each change.
type subscriber struct{ changed func() }

// Subscribe makes changed be called at each change, until the returned function is called. It must not use
// the kernel, which is locked meanwhile.
func (k *Kernel) Subscribe(changed func()) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &subscriber{changed}
	k.subscribers = append(k.subscribers, s)
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.subscribers = slices.DeleteFunc(k.subscribers, func(other *subscriber) bool { return other == s })
	}
}

// Watch calls changed after each change, until ctx ends.
func (k *Kernel) Watch(ctx context.Context, changed func()) error {
	defer k.Subscribe(func() { go changed() })()
	<-ctx.Done()
	return nil
}

// Links returns the links.
func (k *Kernel) Links() []plan.NetworkInterface {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.links)
}

// WatchLinks calls changed with all links, at once and after each change, until ctx
// ends.
func (k *Kernel) WatchLinks(ctx context.Context, changed func([]plan.NetworkInterface)) error {
	changed(k.Links())
	return k.Watch(ctx, func() { changed(k.Links()) })
}

// change records a call and applies it, unless the address is refused or its interface does
// not exist.
func (k *Kernel) change(call string, a plan.Address, apply func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeExpired()
	k.calls = append(k.calls, fmt.Sprintf("%s %s %s", call, a.Prefix, a.Interface))
	err := k.errorByAddress[a.Prefix.Addr()]
	switch {
	case err != nil:
	case !slices.ContainsFunc(k.links, func(l plan.NetworkInterface) bool { return l.Name == a.Interface }):
		err = unix.ENODEV
	default:
		a.IsOurs = true
		err = apply()
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", call, a.Prefix, a.Interface, err)
	}
	k.notify()
	return nil
}

// set adds or replaces an address.
func (k *Kernel) set(a plan.Address) {
	held := heldAddress{Address: a, setAt: time.Now()}
	if i := k.indexOf(a.Interface, a.Prefix); i >= 0 {
		k.addresses[i] = held
		return
	}
	k.addresses = append(k.addresses, held)
}

func (k *Kernel) remove(iface string, prefix netip.Prefix) {
	if i := k.indexOf(iface, prefix); i >= 0 {
		k.addresses = slices.Delete(k.addresses, i, i+1)
	}
}

// indexOf returns the index of an address in k.addresses; -1 if it is missing.
func (k *Kernel) indexOf(iface string, prefix netip.Prefix) int {
	return slices.IndexFunc(k.addresses, func(a heldAddress) bool { return a.Interface == iface && a.Prefix == prefix })
}

// removeExpired removes the addresses whose valid lifetime has ended.
func (k *Kernel) removeExpired() {
	for i := range k.addresses {
		if k.addresses[i].isExpired() {
			k.addresses = slices.DeleteFunc(k.addresses, func(a heldAddress) bool { return a.isExpired() })
			return
		}
	}
}

// notify tells all subscribers.
func (k *Kernel) notify() {
	for _, s := range k.subscribers {
		s.changed()
	}
}

// remainingLifetime returns what remains of a lifetime, in whole seconds rounded up.
func remainingLifetime(lifetime time.Duration, setAt time.Time) time.Duration {
	if lifetime == plan.Forever {
		return lifetime
	}
	return max(0, lifetime-time.Since(setAt).Truncate(time.Second))
}
