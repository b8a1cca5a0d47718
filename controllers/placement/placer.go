package placement

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Heartbeats in seconds: of nodes that may have to take over a Local address (with the feature gate SlowLeases, of
// those of them that are in doubt), and of others. A Lease lasts v1.HeartbeatsPerLease of them, and that is for how
// long a holder may not renew before its addresses fail over, unless nodes watch each other: then see the durations of
// package watch.
const (
	quickHeartbeat = 1
	SlowHeartbeat  = 10
)

// placer is one placement: its inputs, indexed, and what is decided so far.
type placer struct {
	inputs           Inputs
	nodes            []*Node // those that have a Node object, sorted by name
	nodeByName       map[string]*Node
	entriesByAddress map[netip.Addr][]*judgedEntry // highest epoch first
	sharedByAddress  map[netip.Addr][]*SharedEntry
	// claimsByAddress are the claims of successors, highest epoch first.
	claimsByAddress map[netip.Addr][]*SuccessorClaim
	// sharedInterfaces are the virtual interfaces of the LBNodeAgents whose nodes announce
	// shared entries.
	sharedInterfaces map[string]string
	// sharedSilence says whether all nodes that announce shared entries are silent; nil until it is asked for.
	sharedSilence *Explanation
	// virtualPools are the pools that have addresses which are announced Virtual.
	virtualPools map[pool]bool
	// hasSuccessorClaim is of Local addresses that a successor has claimed.
	hasSuccessorClaim map[netip.Addr]bool
	localCount        map[int]int            // number of Local addresses, by family
	localCountOfNode  map[int]map[string]int // number of Local addresses, by family and node
	// localCountOfGroupDomain is the number of Local addresses in each domain of a group.
	localCountOfGroupDomain map[GroupDomain]int
	// held are the Local addresses that stay with their holders, in the order of addresses.
	held map[holderLink][]*heldAddress
	// watchedLinks is how many links of holders a node watches, as a successor of addresses there.
	watchedLinks map[string]int
	// nodesOfSubnet are the nodes with an interface in a subnet, and subnetLengths the lengths of these subnets. Both
	// are nil until asked for.
	nodesOfSubnet map[netip.Prefix][]*Node
	subnetLengths []int
	// witnessesOfSubnet remembers the possibleWitnesses of subnets.
	witnessesOfSubnet map[netip.Prefix][]*Node
	// domainCounts remembers what countDomains returns.
	domainCounts map[subnetAndLabel]int
	// nodeNetworks remembers of subnets whether Node objects have addresses in them.
	nodeNetworks map[netip.Prefix]bool
	// hasCordons means that some node hands its addresses over as cordoned. With ignoresCordonsForShared the
	// placer gives such nodes the shared entries all the same.
	hasCordons, ignoresCordonsForShared bool
	// isMassExpiry is that most agents have not renewed their Leases.
	isMassExpiry bool
	result       Result
}

// familyBits tells IPv4 from IPv6: each is balanced by itself.
func familyBits(a netip.Addr) int { return a.BitLen() }

func newPlacer(inputs Inputs) *placer {
	p := newPlacerWithoutEntries(inputs)
	p.indexEntries()
	p.indexClaims()
	return p
}

// newPlacerWithoutEntries returns a placer that knows of nodes and their interfaces, and of nothing that they have.
func newPlacerWithoutEntries(inputs Inputs) *placer {
	p := &placer{
		inputs:                  inputs,
		nodeByName:              map[string]*Node{},
		sharedByAddress:         map[netip.Addr][]*SharedEntry{},
		claimsByAddress:         map[netip.Addr][]*SuccessorClaim{},
		sharedInterfaces:        map[string]string{},
		virtualPools:            map[pool]bool{},
		hasSuccessorClaim:       map[netip.Addr]bool{},
		localCount:              map[int]int{},
		localCountOfNode:        map[int]map[string]int{32: {}, 128: {}},
		watchedLinks:            map[string]int{},
		localCountOfGroupDomain: map[GroupDomain]int{},
		held:                    map[holderLink][]*heldAddress{},
		witnessesOfSubnet:       map[netip.Prefix][]*Node{},
		domainCounts:            map[subnetAndLabel]int{},
		nodeNetworks:            map[netip.Prefix]bool{},
		result: Result{
			IsOffLocalSubnets: map[string]bool{},
			Entries:           map[string][]Placed{},
			SharedEntries:     map[string][]Placed{},
			AnnouncesShared:   map[string]bool{},
			Successors:        map[string][]v1.StandbyNode{},
			HeartbeatSeconds:  map[string]int32{},
			Moves:             map[netip.Addr]Move{},
			EndedFailovers:    map[netip.Addr]Move{},
			Unplaced:          map[netip.Addr]Explanation{},
			Silent:            map[netip.Addr]Explanation{},
		},
	}
	p.indexNodes()
	return p
}

// indexNodes notes which nodes there are, and what depends on each node alone.
func (p *placer) indexNodes() {
	p.isMassExpiry = isMassExpiry(p.inputs.Nodes)
	for i := range p.inputs.Nodes {
		n := &p.inputs.Nodes[i]
		p.nodeByName[n.Name] = n
		if n.IsDeleted {
			continue
		}
		p.nodes = append(p.nodes, n)
		p.noteDeadlinesOf(n)
		if n.LBNodeAgent != "" {
			p.result.Entries[n.Name] = nil
			p.result.SharedEntries[n.LBNodeAgent] = nil
			p.result.IsOffLocalSubnets[n.Name] = n.HasReportedFacts && !n.isOnAny(p.inputs.LocalSubnets)
			p.result.HeartbeatSeconds[n.Name] = p.heartbeatSeconds(n)
		}
	}
	slices.SortFunc(p.nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	p.noteCordons()
	for _, n := range p.nodes {
		p.noteAnnouncer(n)
	}
}

// noteDeadlinesOf notes when what Clocks says of a node changes.
func (p *placer) noteDeadlinesOf(n *Node) {
	if n.IsNotReady {
		p.noteDeadline(NotReadyPatience - n.NotReadyFor)
	}
	// While most Leases have expired, Clocks does not count for how long those of nodes that are Ready have.
	if p.inputs.NamesSuccessors && n.LBNodeAgent != "" && n.Liveness == Expired &&
		(!p.isMassExpiry || n.IsNotReadyForLong) {
		p.noteDeadline(ReplacementPatience - n.ExpiredFor)
	}
	// While there are claims of addresses of the node, the wait begins anew each time.
	if n.SuccessorWait > 0 &&
		!slices.ContainsFunc(p.inputs.SuccessorClaims, func(c SuccessorClaim) bool { return c.Holder == n.Name }) {
		p.noteDeadline(n.SuccessorWait)
	}
}

// indexEntries notes the entries by address.
func (p *placer) indexEntries() {
	judged, pointers := make([]judgedEntry, len(p.inputs.Entries)), make([]*judgedEntry, len(p.inputs.Entries))
	p.entriesByAddress = make(map[netip.Addr][]*judgedEntry, len(p.inputs.Entries))
	for i := range p.inputs.Entries {
		e := &p.inputs.Entries[i]
		judged[i], pointers[i] = p.judgeEntry(e), &judged[i]
		if others := p.entriesByAddress[e.Addr]; len(others) > 0 {
			p.entriesByAddress[e.Addr] = append(others, pointers[i])
		} else { // as a rule there is one
			p.entriesByAddress[e.Addr] = pointers[i : i+1 : i+1]
		}
	}
	for i := range p.inputs.SharedEntries {
		e := &p.inputs.SharedEntries[i]
		p.sharedByAddress[e.Addr] = append(p.sharedByAddress[e.Addr], e)
	}
	for _, entries := range p.entriesByAddress {
		slices.SortFunc(entries, func(a, b *judgedEntry) int {
			return cmp.Or(cmp.Compare(b.Spec.Epoch, a.Spec.Epoch), cmp.Compare(a.Node, b.Node))
		})
	}
	for i := range p.inputs.Addresses {
		if a := &p.inputs.Addresses[i]; a.Subnet.IsValid() && p.isVirtual(a) {
			p.virtualPools[a.pool()] = true
		}
	}
}

// indexClaims notes the claims by address.
func (p *placer) indexClaims() {
	if !p.inputs.NamesSuccessors {
		return
	}
	for i := range p.inputs.SuccessorClaims {
		c := &p.inputs.SuccessorClaims[i]
		p.claimsByAddress[c.Addr] = append(p.claimsByAddress[c.Addr], c)
	}
	for _, claims := range p.claimsByAddress {
		slices.SortFunc(claims, func(a, b *SuccessorClaim) int {
			return cmp.Or(cmp.Compare(b.Epoch, a.Epoch), cmp.Compare(a.Node, b.Node))
		})
	}
}

// heartbeatSeconds is how often the agent of a node is to renew its Lease. A node with an
// interface in the subnet of a local group may have to take over an address quickly. If it is not in doubt,
// others need not know of its end as quickly; its heartbeat becomes slow only when that has lasted. A manager that has
// just begun to lead does not know how long it has lasted: a slow heartbeat that it finds stored stays.
func (p *placer) heartbeatSeconds(n *Node) int32 {
	switch {
	case !n.isOnAny(p.inputs.LocalSubnets):
		return SlowHeartbeat
	case !p.inputs.SlowsLeases || n.IsInDoubt:
		return quickHeartbeat
	case n.HeartbeatSeconds == SlowHeartbeat || p.hasLasted(n.SureFor, DoubtPatience):
		return SlowHeartbeat
	}
	return quickHeartbeat
}

// isOnAny reports whether the node has an interface in one of these subnets.
func (n *Node) isOnAny(subnets []netip.Prefix) bool {
	for _, i := range n.Interfaces {
		for _, subnet := range i.Subnets {
			if slices.ContainsFunc(subnets, subnet.Overlaps) {
				return true
			}
		}
	}
	return false
}

// addEntry gives an entry to a node, completed with what the address says.
func (p *placer) addEntry(n *Node, a *Address, e v1.AnnouncedAddress) {
	if e.Type == v1.AnnounceLocal {
		e.SkipProbe = a.SkipsProbe && a.Addr.Is6()
	}
	if !p.inputs.NamesSuccessors || n.IsFailoverDisabled {
		e.Successors = nil
	}
	e.Successors = p.withoutUnfitSuccessors(e.Successors, a)
	if !p.hasSuccessorClaim[a.Addr] {
		e.ContestedBy = nil
	}
	p.result.Entries[n.Name] = append(p.result.Entries[n.Name], a.placedEntry(e))
}
