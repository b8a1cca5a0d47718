package placement

import (
	"net/netip"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// An agent that could have to be replaced quickly renews its Lease each second. With the feature gate SlowLeases a
// node that is not in doubt does so every ten seconds: other nodes watch all that it holds, and say within a second
// that it is silent. A node in doubt is asked to renew each second, and its Lease expires three seconds after that.

// DoubtPatience is for how long a node is not in doubt before it is to renew its Lease less often. Each change of that
// costs a write and a renewal.
const DoubtPatience = 30 * time.Second

// Watch is that the node Watcher watches the node Holder, and would claim Addr from it.
type Watch struct {
	Watcher, Holder string
	Addr            netip.Addr
	// Epoch by which the holder has the address.
	Epoch int64
}

// nodesInDoubt returns the nodes that are to renew their Leases each second.
func (inputs *Inputs) nodesInDoubt() map[string]bool {
	inDoubt, isFit := map[string]bool{}, map[string]bool{}
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		inDoubt[n.Name] = n.isInDoubt()
		isFit[n.Name] = !n.IsDeleted && !n.mayBeDead() && !n.IsNotReady
	}
	for i := range inputs.SuccessorClaims {
		c := &inputs.SuccessorClaims[i]
		inDoubt[c.Node], inDoubt[c.Holder], isFit[c.Holder] = true, true, false
	}
	for _, reports := range inputs.LingeringReports {
		for i := range reports {
			inDoubt[reports[i].Node] = true
		}
	}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		if e.Spec.Type == v1.AnnounceLocal && !inDoubt[e.Node] {
			inDoubt[e.Node] = !inputs.isWatched(e, isFit)
		}
	}
	return inDoubt
}

// isInDoubt reports whether what is known of the node alone says that its agent may go, or that nobody would notice.
func (n *Node) isInDoubt() bool {
	return n.IsLeaving || n.IsNotReady || n.IsOutOfService || n.IsShuttingDown || n.IsFailoverDisabled ||
		n.AddressToHandOver.IsValid() || n.mayBeDead() || !n.HasReportedFacts
}

// mayBeDead reports whether the node's Lease says that it may be. That a Lease is late which is renewed each second
// does not: it is late whenever one renewal is.
func (n *Node) mayBeDead() bool {
	return n.Liveness == Expired || n.Liveness == Late && n.HeartbeatSeconds == SlowHeartbeat
}

// isWatched reports whether the holder of a Local address announces it, and as many successors as an address has would
// claim it. isFit are the nodes that could.
func (inputs *Inputs) isWatched(e *Entry, isFit map[string]bool) bool {
	if e.ReportedState != v1.StateAnnounced || e.Spec.HandingOver || e.Spec.ContestedBy != nil ||
		len(e.Spec.Successors) < v1.MaxSuccessorsPerAddress {
		return false
	}
	for _, s := range e.Spec.Successors {
		if !isFit[s.NodeName] || !inputs.Watches[Watch{s.NodeName, e.Node, e.Addr, e.Spec.Epoch}] {
			return false
		}
	}
	return true
}
