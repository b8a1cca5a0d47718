package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// States of addresses that no agent reports.
const (
	// stateNoNode is of an address that no node is to announce.
	stateNoNode v1.AddressState = "NoNode"
	// stateNoEndpoint is of an address that no node is to announce because its Services have
	// policy Local and no ready endpoint.
	stateNoEndpoint v1.AddressState = "NoEndpoint"
)

// States are all that CountStates counts. Those that agents report come first, from the best to
// the worst.
var States = append(v1.AddressStates[:len(v1.AddressStates):len(v1.AddressStates)], stateNoNode, stateNoEndpoint)

// CountStates counts the addresses of Services by state. Of several nodes that have an address,
// the one that has come furthest counts. What a node reported before its Lease expired counts only
// if no other node has the address: a dead node goes on to say that it announces.
func CountStates(inputs *Inputs, unplaced map[netip.Addr]Explanation) map[v1.AddressState]int {
	renews := map[string]bool{}
	for i := range inputs.Nodes {
		renews[inputs.Nodes[i].Name] = inputs.Nodes[i].Liveness != Expired
	}
	fresh, expired := make(map[netip.Addr]v1.AddressState, len(inputs.Addresses)), map[netip.Addr]v1.AddressState{}
	note := func(node string, addr netip.Addr, state v1.AddressState) {
		states := fresh
		if !renews[node] {
			states = expired
		}
		states[addr] = betterState(states[addr], cmp.Or(state, v1.StatePending))
	}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		note(e.Node, e.Addr, e.ReportedState)
	}
	for i := range inputs.SharedEntries {
		e := &inputs.SharedEntries[i]
		for j := range inputs.Nodes {
			n := &inputs.Nodes[j]
			if n.LBNodeAgent != e.LBNodeAgent || !n.AnnouncesShared {
				continue
			}
			state := inputs.SharedExceptions[e.Addr][n.Name]
			if state == "" && e.Spec.Epoch <= n.SharedRevision {
				state = v1.StateAnnounced
			}
			note(n.Name, e.Addr, state)
			if fresh[e.Addr] == v1.StateAnnounced {
				break // no node is further, and there may be thousands
			}
		}
	}
	for addr, reports := range inputs.LingeringReports {
		for _, r := range reports {
			note(r.Node, addr, v1.StateAnnounced)
		}
	}
	counts := map[v1.AddressState]int{}
	for i := range inputs.Addresses {
		a := &inputs.Addresses[i]
		_, hasNoNode := unplaced[a.Addr]
		switch {
		case hasNoNode && a.ServingNodes != nil && len(a.ServingNodes) == 0:
			counts[stateNoEndpoint]++
		case hasNoNode && !inputs.isKept(a):
			counts[stateNoNode]++
		default:
			counts[cmp.Or(fresh[a.Addr], expired[a.Addr], v1.StatePending)]++
		}
	}
	return counts
}

// isKept reports whether a node that renews its Lease announces a Local address, as far as is known: a holder that
// is to hand its address over keeps it while no other node may have it.
func (in *Inputs) isKept(a *Address) bool {
	return slices.ContainsFunc(in.Entries, func(e Entry) bool {
		return e.Addr == a.Addr && e.Spec.Type == v1.AnnounceLocal && e.ReportedState == v1.StateAnnounced &&
			slices.ContainsFunc(in.Nodes, func(n Node) bool {
				return n.Name == e.Node && n.Liveness != Expired && offSubnetIfReported(&n, a) == ""
			})
	})
}

// betterState is that of two states that comes first in States. The first of them may be empty.
func betterState(a, b v1.AddressState) v1.AddressState {
	if a == "" || slices.Index(States, b) < slices.Index(States, a) {
		return b
	}
	return a
}
