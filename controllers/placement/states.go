package placement

import (
	"cmp"
	"maps"
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
var States = []v1.AddressState{
	v1.StateAnnounced, v1.StateStandby, v1.StatePending, v1.StateYielded, v1.StateConflict, v1.StateFailed,
	stateNoNode, stateNoEndpoint,
}

// CountStates counts the addresses of Services by state. Of several nodes that have an address,
// the one that has come furthest counts.
func CountStates(inputs *Inputs, unplaced map[netip.Addr]Explanation) map[v1.AddressState]int {
	best := map[netip.Addr]v1.AddressState{}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		best[e.Addr] = better(best[e.Addr], e.ReportedState)
	}
	for addr := range inputs.LingeringReports { // of shared entries, too
		best[addr] = v1.StateAnnounced
	}
	counts := map[v1.AddressState]int{}
	for i := range inputs.Addresses {
		a := &inputs.Addresses[i]
		_, hasNoNode := unplaced[a.Addr]
		switch {
		case hasNoNode && a.ServingNodes != nil && !slices.Contains(slices.Collect(maps.Values(a.ServingNodes)), true):
			counts[stateNoEndpoint]++
		case hasNoNode:
			counts[stateNoNode]++
		default:
			counts[cmp.Or(best[a.Addr], v1.StatePending)]++
		}
	}
	return counts
}

// better is that of two states that comes first in States; an empty one comes last.
func better(a, b v1.AddressState) v1.AddressState {
	if a == "" || b != "" && slices.Index(States, b) < slices.Index(States, a) {
		return b
	}
	return a
}
