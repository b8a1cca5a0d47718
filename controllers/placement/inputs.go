package placement

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// Inputs is everything that Place decides from.
type Inputs struct {
	Nodes     []Node
	Addresses []Address
	// Entries are those of the Announcements, and SharedEntries those of the
	// CommonAnnouncements, as they stand.
	Entries       []Entry
	SharedEntries []SharedEntry
	// LingeringReports are, by address, the nodes that report an address Announced
	// without having an entry for it: they have yet to withdraw it, or are lying.
	LingeringReports map[netip.Addr][]LingeringReport
	// SharedExceptions are, by address and node, what nodes report of addresses of which they
	// have no entry of their own, other than that they announce them: of shared entries that
	// they do not announce. Nothing but CountStates depends on them.
	SharedExceptions map[netip.Addr]map[string]v1.AddressState
	// SuccessorClaims are what successors report to have claimed. AddClaims adds them.
	SuccessorClaims []SuccessorClaim
	// Standbys are, by node, the Announcements with standby as they stand. Nothing but PlanStandbys, and how its plans
	// are distributed over objects, depends on them.
	Standbys map[string][]StoredObject
	// LocalSubnets are the subnets of ready ServiceGroups that may give Local addresses, and each Local
	// address as a subnet of its own, since its ServiceGroup may be gone.
	LocalSubnets []netip.Prefix
	// NamesSuccessors is that the entries of holders name the nodes that are to claim their
	// addresses when they die (feature gate WireFailover).
	NamesSuccessors bool
	// SlowsLeases is that nodes which are not in doubt renew their Leases less often (feature gate SlowLeases). It
	// needs NamesSuccessors.
	SlowsLeases bool
	// Watches are those that agents report. Only SlowsLeases reads them.
	Watches map[Watch]bool
}

// Liveness is what a node's Lease says of its agent, by when the manager last saw the
// Lease change.
type Liveness int

// Values of Liveness.
const (
	// Expired is an agent that has not renewed its Lease for its whole duration, or never.
	Expired Liveness = iota
	// Late is neither Fresh nor Expired.
	Late
	// Fresh is an agent that has renewed its Lease within two thirds of its duration: two
	// heartbeats.
	Fresh
)

// isMassExpiry reports whether most agents have not renewed their Leases: more likely because of the API server than
// because of the agents.
func isMassExpiry(nodes []Node) bool {
	running, expired := 0, 0
	for i := range nodes {
		if n := &nodes[i]; !n.IsDeleted && n.LBNodeAgent != "" && !n.IsOutOfService {
			running++
			if n.Liveness == Expired {
				expired++
			}
		}
	}
	return 2*expired > running
}

// Interface is one interface of a node that can hold Local addresses.
type Interface struct {
	Name    string
	MAC     string
	Subnets []netip.Prefix // with host bits where they are the node's own address
	// IsDown is that the interface has no carrier now: its addresses cannot be reached.
	IsDown bool
}

// The shortest prefixes that count as the subnet of a link. No link is larger, and an agent
// that reports one says that its node is on every link.
const (
	minSubnetBits4 = 8
	minSubnetBits6 = 16
)

// longestSubnetWith returns the length of the longest of the interface's subnets that
// contain a, if one does. A prefix that is one address is no subnet, nor is one that is
// shorter than that of any link.
func (i *Interface) longestSubnetWith(a netip.Addr) (bits int, found bool) {
	minBits := minSubnetBits4
	if a.Is6() {
		minBits = minSubnetBits6
	}
	for _, s := range i.Subnets {
		if s.Bits() >= minBits && s.Bits() < a.BitLen() && s.Contains(a) {
			bits, found = max(bits, s.Bits()), true
		}
	}
	return bits, found
}

// Node is what the manager knows of one node.
type Node struct {
	Name string
	// Labels of the Node object, by which addresses prefer nodes.
	Labels map[string]string
	// LBNodeAgent whose agent the node runs; empty for none.
	LBNodeAgent string
	// VirtualInterface is where Virtual addresses go.
	VirtualInterface string
	// IsLeaving is that another LBNodeAgent, or none, is to apply to the node, and that it is the node's turn: its
	// agent withdraws what it has, and then goes.
	IsLeaving bool
	// IsExcluded by the label that keeps a node out of external load balancers.
	IsExcluded bool
	// HandsOverAsCordoned means that the node hands its addresses over because it is cordoned: Kubernetes gives
	// it no new pods, and its LBNodeAgent says onUnschedulable HandOver. The node keeps an address all the same
	// while no other node may have that (cordons.go).
	HandsOverAsCordoned bool
	// AddressToHandOver is the Local address that an annotation asks the node to hand over; zero for
	// none.
	AddressToHandOver netip.Addr
	// MayHaveRoutes is that the node's speaker may have routes to its Virtual addresses out: as long as that is so,
	// traffic comes for them. It is not so once the speaker has withdrawn them, or has had the time to.
	MayHaveRoutes bool
	// IsOutOfService by the taint of that name.
	IsOutOfService bool
	// IsShuttingDown as the kubelet reports it.
	IsShuttingDown bool
	// IsNotReady is that the Node's condition Ready is not True, and IsNotReadyForLong
	// that it has not been for so long that another node may take over what this node
	// still answers for. Clocks sets that, and NotReadyFor.
	IsNotReady, IsNotReadyForLong bool
	NotReadyFor                   time.Duration
	// IsFailoverDisabled is that the node's LBNodeAgent has no part in failover on the wire:
	// the node is no successor, and has none.
	IsFailoverDisabled bool
	// AsksOthers is that the node's LBNodeAgent has nodes ask for each other's Local addresses.
	AsksOthers bool
	// SuccessorWait is for how long no epochs are to be reserved for further successors of
	// the node, as some have claimed addresses of it. Clocks sets it.
	SuccessorWait time.Duration
	// IsDeleted is that the Node object is gone, but the node's Announcements are still
	// there. Such a node only has the addresses that it had: it is no candidate, and it
	// does not make an address Local.
	IsDeleted bool
	Liveness  Liveness
	// HeartbeatSeconds is how often the node's Announcement says that its agent is to renew its Lease; 0 if it does
	// not say.
	HeartbeatSeconds int32
	// IsInDoubt is that the node's agent is to renew its Lease each second, and SureFor for how long it has not been in
	// doubt. Clocks sets both, with SlowsLeases.
	IsInDoubt bool
	SureFor   time.Duration
	// ExpiredFor is for how long Liveness has been Expired while that of most nodes was not, and IsExpiredForLong that
	// another node is to be a successor or a witness instead. Clocks sets both.
	ExpiredFor       time.Duration
	IsExpiredForLong bool
	// ProbeTime is how long the node's agent probes for an address before it claims
	// the address.
	ProbeTime time.Duration
	// HasReportedFacts is that the node's agent has reported its interfaces, now or
	// earlier.
	HasReportedFacts bool
	// AreFactsAwaited is that the agent has not reported its interfaces, but is expected
	// to report them shortly.
	AreFactsAwaited bool
	// AreFactsOverdue is that the agent has renewed its Lease for so long without
	// reporting its interfaces that placement does not wait for them. Clocks sets it.
	AreFactsOverdue bool
	// LacksAnnouncement is that the node has no Announcement, as it is new, or as one was
	// deleted: what its agent announces is unknown until the agent reports on a new one.
	// Until then Clocks sets AreFactsAwaited, for a while.
	LacksAnnouncement bool
	Interfaces        []Interface
	// Addresses are those of the Node object, which the agent cannot write.
	Addresses []netip.Addr
	// AllowedSubnets are those that the node's LBNodeAgent names, in which its nodes may
	// have Local addresses; without any, see placer.unconfirmedReport.
	AllowedSubnets []netip.Prefix
	// MACs are the Ethernet addresses of the interfaces that the agent reports: at most 64, and none of pods.
	MACs []string
	// AnnouncesShared is that the node is to announce the shared entries already.
	AnnouncesShared bool
	// SharedRevision is up to which revision the node has realised the shared entries; 0
	// if it has realised none.
	SharedRevision int64
}

// macsInSubnet returns the MAC addresses of the node's interfaces in a subnet that
// contains a: those by which the node most likely answers for a.
func (n *Node) macsInSubnet(a netip.Addr) []string {
	var macs []string
	for _, i := range n.Interfaces {
		if i.MAC != "" && slices.ContainsFunc(i.Subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			macs = append(macs, i.MAC)
		}
	}
	return macs
}

// allMACs returns the MAC addresses of all interfaces that the node reports: the kernel may answer for an
// address by any of them.
func (n *Node) allMACs() []string {
	var macs []string
	for _, i := range n.Interfaces {
		if i.MAC != "" {
			macs = append(macs, i.MAC)
		}
	}
	return append(macs, n.MACs...)
}

// interfaceFor returns the interface that is to hold a, or nil if there is none: one with
// a carrier, then the one with the longest subnet that contains a, then the first by name.
func (n *Node) interfaceFor(a netip.Addr) *Interface {
	var best *Interface
	bestBits := 0
	for k := range n.Interfaces {
		i := &n.Interfaces[k]
		bits, found := i.longestSubnetWith(a)
		if !found {
			continue
		}
		if best == nil || cmp.Or(
			order.TrueFirst(i.IsDown, best.IsDown), cmp.Compare(bits, bestBits), cmp.Compare(best.Name, i.Name),
		) > 0 {
			best, bestBits = i, bits
		}
	}
	return best
}

// Address is one address that Services have.
type Address struct {
	Addr     netip.Addr
	Group    string
	PoolType v1.PoolType
	Mask     int // of a Virtual address; 0 if its group is gone
	// Subnet of the pool that the address is of; zero if its group is gone.
	Subnet     netip.Prefix
	SkipsProbe bool
	// Preference of the group, if it is Local; nil for none.
	Preference *Preference
	// ServingNodes are the nodes that may announce the address because they have a ready
	// endpoint of its Services, where traffic has to stay on the node; nil is any node.
	ServingNodes map[string]bool
	// TerminatingNodes are nodes whose endpoints still serve, but terminate. They announce
	// a Virtual address until the ServingNodes do.
	TerminatingNodes map[string]bool
	// HealthPort is where a node says whether it serves the address; 0 if it does not.
	HealthPort int32
	// IsUnrestrictedIfLocal is that ServingNodes count if the address is Virtual: as a
	// Local one it is served from any node.
	IsUnrestrictedIfLocal bool
	Services              []string // namespace/name, sorted
	// AwaitsRuleOn names a node whose NodeRouting does not say yet how the ServiceGroup has its addresses advertised; it
	// is empty if there is no such node, or if a node announces the address already. Place gives no node an address as
	// a Virtual one while it names a node: that node's speaker would advertise the address to every router.
	AwaitsRuleOn string
	// ignoresCordons is that only cordoned nodes may have the address. The placer sets it.
	ignoresCordons bool
}

// isOnAllNodes reports whether the address, if it is Virtual, is the same on all nodes.
func (a *Address) isOnAllNodes() bool { return a.ServingNodes == nil && a.HealthPort == 0 }

// placedEntry returns an entry of the address, to which it adds what the address says.
func (a *Address) placedEntry(e v1.AnnouncedAddress) Placed {
	e.Address, e.ServiceGroup, e.Services = a.Addr.String(), a.Group,
		a.Services[:min(len(a.Services), v1.MaxServicesPerAddress)]
	return Placed{a.Addr, e}
}

// pool is the addresses of a group that are in one subnet.
type pool struct {
	group  string
	subnet netip.Prefix
}

// pool returns the pool of an address; it is zero if the address has none.
func (a *Address) pool() pool {
	if !a.Subnet.IsValid() {
		return pool{}
	}
	return pool{a.Group, a.Subnet}
}

// Entry is one address of one node's Announcements as they stand.
type Entry struct {
	Node string
	Addr netip.Addr
	Spec v1.AnnouncedAddress
	// ReportedState is what the agent reports for the entry's epoch; empty if nothing.
	ReportedState v1.AddressState
	// IsObserved is that the agent has seen the entry as it stands.
	IsObserved bool
	// UnchangedFor is for how long the entry has had its epoch, claimPolicy and handingOver, while
	// the agent has either reported on it all the time, or not at all. It may be too short,
	// never too long. Clocks sets it.
	UnchangedFor time.Duration
}

// hasReported reports whether the agent has said what became of the entry. An agent that
// stands by has not said what became of a takeover that it has yet to observe.
func (e *Entry) hasReported() bool {
	switch e.ReportedState {
	case "", v1.StatePending:
		return false
	case v1.StateWaiting:
		return e.Spec.ClaimPolicy != v1.ClaimTakeover || e.IsObserved
	}
	return true
}

// LingeringReport is a node that reports an address Announced without having an entry for
// it.
type LingeringReport struct {
	Node string
	// Age is for how long the node has reported so. It may be too short, never too long.
	// Clocks sets it.
	Age time.Duration
}

// SharedEntry is one entry that the nodes of an LBNodeAgent share, as its
// CommonAnnouncements stand.
type SharedEntry struct {
	LBNodeAgent string
	Addr        netip.Addr
	Spec        v1.AnnouncedAddress
}
