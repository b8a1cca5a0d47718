package nodeagent

import (
	"context"
	"net/netip"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/neigh"
	"github.com/purelb/purelb-operator/nodeagent/plan"
)

// Kernel is what the agent needs of the kernel.
type Kernel interface {
	KernelObserver
	KernelWatcher
	VirtualInterfaces
	Addresses
}

// KernelObserver says what the kernel holds now.
type KernelObserver interface {
	// Observe returns links, addresses and routes, with every change that Watch has told of.
	Observe() (plan.Observed, error)
	// NeighbourMACs returns the Ethernet addresses of these neighbours by an interface, as far as
	// the kernel has resolved them: lower case with colons.
	NeighbourMACs(iface string, addrs []netip.Addr) []string
}

// KernelWatcher says when what the kernel holds changes.
type KernelWatcher interface {
	// Watch calls changed after changes, until ctx ends. It may leave out those that the agent has made.
	Watch(ctx context.Context, changed func()) error
	// WatchLinks calls changed with all links, at once and after changes of links, until
	// ctx ends.
	WatchLinks(ctx context.Context, changed func([]plan.NetworkInterface)) error
}

// VirtualInterfaces makes and removes virtual interfaces.
type VirtualInterfaces interface {
	// EnsureVirtual makes the virtual interface if it is missing, and returns its kind.
	EnsureVirtual(name string) (kind string, err error)
	// RemoveVirtual removes a virtual interface, if EnsureVirtual made it and it is empty.
	RemoveVirtual(name string) error
}

// Addresses changes addresses.
type Addresses interface {
	// Add puts an address on its interface, tagged as ours.
	Add(plan.Address) error
	// Renew sets the lifetimes of an address that is there.
	Renew(plan.Address) error
	// Replace removes an address and at once adds another in its place, on the same
	// interface.
	Replace(old, by plan.Address) error
	// Remove takes an address from its interface, and no other with it.
	Remove(plan.Address) error
}

// Neighbours is what the agent needs of the stations on the node's links.
type Neighbours interface {
	Stations
	// SetPodMACs replaces the MAC addresses that only interfaces of pods have: they are not the
	// node's own, and a station that has one is another.
	SetPodMACs(macs []string)
}

// Stations asks and tells the stations on the node's links.
type Stations interface {
	// Announce tells an interface's link that this node has an address.
	Announce(iface string, addr netip.Addr) error
	// Probe asks which stations have the addresses. No station has an address that is not
	// in the result.
	Probe(
		ctx context.Context, questions []neigh.Question, count int, interval time.Duration,
	) map[netip.Addr]neigh.ProbeResult
	// Ask asks the whole link once; Listen passes the answer on.
	Ask(neigh.Question) error
	// AskStation asks one station once; Listen passes the answer on.
	AskStation(neigh.Question, neigh.MAC) error
	// Listen passes on what other stations say of the addresses that are wanted, until ctx
	// ends, or the interface goes down or away.
	Listen(ctx context.Context, iface string, wanted func(netip.Addr) bool, heard func(neigh.Message)) error
}
