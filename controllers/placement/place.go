package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// Explanation says why an address is where it is, or is nowhere.
type Explanation struct {
	Reason  string
	Message string
	// SilentHolder is the node that reports that it announces the address, which no other node may take, but whose agent
	// does not renew its Lease; empty if there is none. AreAllSilent is that the agents of all nodes that are to announce
	// a Virtual address do not. IsHolderDown is that the Node of the holder is not Ready, either, or all of these are not.
	SilentHolder string
	AreAllSilent bool
	IsHolderDown bool
}

// MoveKind is why an address gets another node.
type MoveKind string

// Kinds of moves.
const (
	// FirstPlacement is of an address that no node holds.
	FirstPlacement MoveKind = "FirstPlacement"
	// Failover is from a node whose agent does not renew its Lease.
	Failover MoveKind = "Failover"
	// Handover is from a node whose agent is alive.
	Handover MoveKind = "Handover"
)

// MoveCause is why an address fails over.
type MoveCause string

// Causes of failovers.
const (
	// CauseLease is that the holder's agent does not renew its Lease.
	CauseLease MoveCause = "LeaseExpired"
	// CauseClaimUnanswered is that a successor found the holder dead and claimed the address, and the
	// holder's agent does not renew its Lease either.
	CauseClaimUnanswered MoveCause = "HolderDead"
	// CauseYielded is that a successor claimed the address, and the holder does not have
	// it any more.
	CauseYielded MoveCause = "HolderYielded"
)

// Move is a Local address on its way to a node.
type Move struct {
	Kind MoveKind
	// Cause of a Failover.
	Cause MoveCause
	// From is the holder, if there is one, and To the node that is to have the address.
	From, To string
	// IsNew is that the address was not on its way before.
	IsNew bool
	// Message says why From may not keep the address.
	Message string
	// NotChosen says of the other nodes, if the move is new, why none of them is To.
	NotChosen string
}

// Placed is an entry that a node, or all nodes of an LBNodeAgent, are to have.
type Placed struct {
	Addr netip.Addr
	v1.AnnouncedAddress
}

// SpecsOf returns entries as objects of the API have them.
func SpecsOf(entries []Placed) []v1.AnnouncedAddress {
	specs := make([]v1.AnnouncedAddress, len(entries))
	for i := range entries {
		specs[i] = entries[i].AnnouncedAddress
	}
	return specs
}

// Result is what is to be announced.
type Result struct {
	// Entries of each node that runs an agent, or did and still holds something, sorted
	// by the texts of their addresses.
	Entries map[string][]Placed
	// SharedEntries of the nodes of each LBNodeAgent that has nodes, sorted alike.
	// AnnouncesShared are the nodes that announce them.
	SharedEntries   map[string][]Placed
	AnnouncesShared map[string]bool
	// Successors are the nodes that the entries of each node name as such, as that node
	// reaches them, sorted by name.
	Successors map[string][]v1.StandbyNode
	// IsOffLocalSubnets has the nodes that run an agent and have, as it reports, no interface in the subnet of a local
	// group or of a Local address, so that none can come to them.
	IsOffLocalSubnets map[string]bool
	// HeartbeatSeconds of each node that runs an agent.
	HeartbeatSeconds map[string]int32
	// Moves are the Local addresses that are on their way to a node.
	Moves map[netip.Addr]Move
	// EndedFailovers are the Local addresses that a node has been elected for, and announces, since
	// the Lease of the last holder expired. The last holder's entry, which tells that, is not in
	// Entries any more: so each failover is over in one result only, once that is stored.
	EndedFailovers map[netip.Addr]Move
	// Unplaced says why an address has no node.
	Unplaced map[netip.Addr]Explanation
	// Silent has the Virtual addresses of which no node that is to announce them has an agent that renews its Lease.
	Silent map[netip.Addr]Explanation
	// NextDeadline is in how long the result may differ because of what has not happened by
	// then; 0 is never. It is not about Unplaced addresses that wait for facts.
	NextDeadline time.Duration
}

// Place decides what each node is to announce.
func Place(inputs Inputs) Result {
	p := newPlacer(inputs)
	addresses := slices.Clone(inputs.Addresses)
	ordered := make([]*Address, len(addresses))
	for i := range addresses {
		ordered[i] = &addresses[i]
	}
	slices.SortFunc(ordered, func(a, b *Address) int { return a.Addr.Compare(b.Addr) })

	type local struct {
		*Address
		situation
	}
	locals := make([]local, 0, len(addresses))
	for _, a := range ordered {
		announceType, why := p.typeOf(a)
		p.setIgnoresCordons(a, announceType)
		switch {
		case announceType == v1.AnnounceVirtual && a.AwaitsRuleOn != "":
			p.result.Unplaced[a.Addr] = Explanation{Reason: v1.ReasonWaitingForRouting, Message: fmt.Sprintf(
				"waiting until the speaker of node %s is told how addresses of ServiceGroup %s are advertised",
				a.AwaitsRuleOn, a.Group,
			)}
		case announceType == v1.AnnounceVirtual:
			p.placeVirtual(a)
		case announceType == v1.AnnounceLocal:
			p.localCount[familyBits(a.Addr)]++
			locals = append(locals, local{a, p.phaseOf(a)})
		default:
			p.result.Unplaced[a.Addr] = why
		}
	}
	// Addresses that stay with their nodes count before any node is elected.
	slices.SortStableFunc(locals, func(x, y local) int { return order.TrueFirst(y.phase.mayElect(), x.phase.mayElect()) })
	for _, l := range locals {
		p.placeLocal(l.Address, l.situation)
	}
	p.nameSuccessors()
	for _, entriesByOwner := range []map[string][]Placed{p.result.Entries, p.result.SharedEntries} {
		for _, entries := range entriesByOwner {
			slices.SortFunc(entries, func(a, b Placed) int { return compareByAddress(a.AnnouncedAddress, b.AnnouncedAddress) })
		}
	}
	p.describeSuccessors()
	return p.result
}

func compareByAddress(a, b v1.AnnouncedAddress) int { return cmp.Compare(a.Address, b.Address) }
