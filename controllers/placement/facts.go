package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Liveness is what a node's Lease says.
type Liveness int

// Liveness of an agent, by when its Lease was last seen to change.
const (
	// Expired is never seen, or not for its whole duration.
	Expired Liveness = iota
	// Late is not fresh, but not expired.
	Late
	// Fresh is within two thirds of its duration: two heartbeats.
	Fresh
)

// Interface is one interface of a node that can hold Local addresses.
type Interface struct {
	Name    string
	MAC     string
	Subnets []netip.Prefix // with host bits where they are the node's own address
	// Down is that it has no carrier now: what it holds cannot be reached by it.
	Down bool
}

// contains reports whether one of the interface's subnets contains a, and the
// length of the longest. A prefix that is one address is no subnet.
func (i *Interface) contains(a netip.Addr) (bits int, ok bool) {
	for _, s := range i.Subnets {
		if s.Bits() < a.BitLen() && s.Contains(a) {
			bits, ok = max(bits, s.Bits()), true
		}
	}
	return bits, ok
}

// Node is what is known of one node.
type Node struct {
	Name string
	// Agent is the LBNodeAgent whose agent the node runs; empty for none.
	Agent string
	// VirtualInterface is where Virtual addresses go.
	VirtualInterface string
	// Leaving is that another LBNodeAgent, or none, is to apply to the node: it
	// gives up what it has, and then its agent goes.
	Leaving bool
	// Excluded by the label that keeps a node out of external load balancers.
	Excluded bool
	// OutOfService by the taint of that name.
	OutOfService bool
	// ShuttingDown as the kubelet reports it.
	ShuttingDown bool
	// Sick is that the Node's condition Ready has not been true for a while: a
	// moment is no reason to take over what the node still answers for.
	Sick     bool
	Liveness Liveness
	// Reported is that the node's agent has reported its interfaces, now or
	// earlier.
	Reported bool
	// Awaited is that the agent has not reported its interfaces but is expected
	// to, shortly.
	Awaited    bool
	Interfaces []Interface
	// CommonRevision is up to which revision the node has made what is common; 0
	// if it has made nothing of it.
	CommonRevision int64
	// Apart is that the node's agent knows nothing common, as it is of an earlier
	// version: what is common is asked of it apart.
	Apart bool
}

// macs of the node's interfaces in a subnet that contains a: by which it may
// answer for it.
func (n *Node) macs(a netip.Addr) []string {
	var macs []string
	for _, i := range n.Interfaces {
		if i.MAC != "" && slices.ContainsFunc(i.Subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			macs = append(macs, i.MAC)
		}
	}
	return macs
}

// interfaceFor returns the interface that is to hold a, with the mask of its
// longest subnet that contains a: one with a carrier, then the longest mask, then
// the first by name. It is nil if there is none.
func (n *Node) interfaceFor(a netip.Addr) (best *Interface, bits int) {
	for k := range n.Interfaces {
		i := &n.Interfaces[k]
		b, ok := i.contains(a)
		if !ok {
			continue
		}
		if best == nil || cmp.Or(compareBool(best.Down, i.Down), cmp.Compare(b, bits), cmp.Compare(best.Name, i.Name)) > 0 {
			best, bits = i, b
		}
	}
	return best, bits
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Address is one address that Services have.
type Address struct {
	Addr      netip.Addr
	Group     string
	PoolType  v1.PoolType
	Mask      int // of a Virtual address; 0 if its group is gone
	SkipProbe bool
	// Only is the nodes that may announce it, those with an endpoint of its
	// Services, if their traffic is to stay on the node; nil is any node.
	Only map[string]bool
	// Ending is the nodes whose endpoints still serve, but are about to end. They
	// announce a Virtual address until those that serve do.
	Ending map[string]bool
	// HealthPort is where a node says whether it serves it; 0 if it does not.
	HealthPort int32
	// OnlyVirtual is that Only counts if the address is Virtual: as a Local one
	// it is to be served from any node.
	OnlyVirtual bool
	Services    []string // namespace/name, sorted
}

// Entry is one address of one node's Announcements as they stand.
type Entry struct {
	Node string
	Addr netip.Addr
	Spec v1.AnnouncedAddress
	// State that the agent reports for the entry's epoch; empty if none.
	State v1.AddressState
	// Observed is that the agent has seen the entry as it stands.
	Observed bool
}

// CommonEntry is one address that the nodes of an LBNodeAgent announce alike, as
// its CommonAnnouncements stand.
type CommonEntry struct {
	Agent string
	Addr  netip.Addr
	Spec  v1.AnnouncedAddress
}

// Facts is everything that Place decides from.
type Facts struct {
	Nodes     []Node
	Addresses []Address
	Entries   []Entry
	Common    []CommonEntry
	// Lingering is the nodes that still report an address Announced that they
	// have no entry for.
	Lingering map[netip.Addr][]string
	// LocalSubnets is the subnets of all groups of type local.
	LocalSubnets []netip.Prefix
}
