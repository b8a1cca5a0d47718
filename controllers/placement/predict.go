package placement

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// maxPredictRounds bounds Predict. A handover is over after four rounds: handing over, claim,
// announced, and the entries of the previous holder gone.
const maxPredictRounds = 16

// Predict returns what Place decides once all agents whose Leases are not expired have done
// what it asks of them. isSettled is that another round would change nothing.
//
// Predict is for dry runs: the manager itself never assumes what agents will do.
func Predict(inputs Inputs) (result Result, isSettled bool) {
	var before []Entry
	for range maxPredictRounds {
		result = Place(inputs)
		before = inputs.Entries
		inputs.Entries, inputs.SharedEntries = AssumeRealised(inputs, &result)
		inputs.LingeringReports, inputs.SuccessorClaims = nil, nil
		if reflect.DeepEqual(before, inputs.Entries) {
			return result, true
		}
	}
	return result, false
}

// AssumeClaims adds the claims that successors make when a node is dead: of each Local address that the node holds, the
// first of its successors claims it whose claim would count. If there is none, nobody claims the address.
func (inputs *Inputs) AssumeClaims(dead string) {
	p := newPlacer(*inputs)
	inputs.SuccessorClaims = slices.Clip(inputs.SuccessorClaims) // other copies of the inputs keep theirs
	for i := range inputs.Addresses {
		a := &inputs.Addresses[i]
		e := p.holderOrReservingEntry(a)
		if e == nil || e.Node != dead {
			continue
		}
		k := slices.IndexFunc(e.Spec.Successors, func(s v1.Successor) bool {
			n := p.nodeByName[s.NodeName]
			return n != nil && reasonAgainst(n, a, successorClaimChecks) == ""
		})
		if k >= 0 {
			s := e.Spec.Successors[k]
			inputs.SuccessorClaims = append(inputs.SuccessorClaims, SuccessorClaim{
				Node: s.NodeName, Addr: a.Addr, Epoch: s.Epoch, Holder: dead, Age: ClaimPatience,
			})
		}
	}
}

// AssumeRealised returns the entries of a result as they are stored and as the agents report on them
// after they have acted. An agent with an expired Lease goes on reporting what it reported.
func AssumeRealised(inputs Inputs, result *Result) ([]Entry, []SharedEntry) {
	reported := map[epochKey]v1.AddressState{}
	for i := range inputs.Entries {
		e := &inputs.Entries[i]
		reported[epochKey{entryKey{e.Node, e.Addr}, e.Spec.Epoch}] = e.ReportedState
	}
	isAlive := map[string]bool{}
	for i := range inputs.Nodes {
		isAlive[inputs.Nodes[i].Name] = inputs.Nodes[i].Liveness != Expired
	}
	var entries []Entry
	for _, node := range slices.Sorted(maps.Keys(result.Entries)) {
		for _, placed := range result.Entries[node] {
			e := Entry{
				Node: node, Addr: placed.Addr, Spec: placed.AnnouncedAddress, IsObserved: isAlive[node],
				ReportedState: reported[epochKey{entryKey{node, placed.Addr}, placed.Epoch}],
			}
			if isAlive[node] {
				e.ReportedState = v1.StateAnnounced
			}
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Node, b.Node)) })
	return entries, sharedEntriesOf(result)
}

// sharedEntriesOf returns the shared entries of a result as they are stored.
func sharedEntriesOf(result *Result) []SharedEntry {
	var shared []SharedEntry
	for _, lbNodeAgent := range slices.Sorted(maps.Keys(result.SharedEntries)) {
		for _, placed := range result.SharedEntries[lbNodeAgent] {
			shared = append(
				shared, SharedEntry{LBNodeAgent: lbNodeAgent, Addr: placed.Addr, Spec: placed.AnnouncedAddress},
			)
		}
	}
	return shared
}

// NodesOf returns the nodes that a result gives an address to, sorted: of a Local address
// the one whose entry has the highest epoch, of a Virtual address all that announce it.
func (r *Result) NodesOf(inputs *Inputs, a netip.Addr) []string {
	isAddress := func(e Placed) bool { return e.Addr == a }
	var nodes []string
	var holder string
	epoch := int64(-1)
	for node, entries := range r.Entries {
		i := slices.IndexFunc(entries, isAddress)
		switch {
		case i < 0:
		case entries[i].Type == v1.AnnounceVirtual:
			nodes = append(nodes, node)
		case entries[i].Epoch > epoch:
			holder, epoch = node, entries[i].Epoch
		}
	}
	if holder != "" {
		return []string{holder}
	}
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		if r.AnnouncesShared[n.Name] && slices.ContainsFunc(r.SharedEntries[n.LBNodeAgent], isAddress) {
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
