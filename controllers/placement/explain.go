package placement

import (
	"cmp"
	"net/netip"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// NodeVerdict says of one node whether it may announce an address.
type NodeVerdict struct {
	Node string
	// Why says why the node cannot be given the address, or why it was not chosen. It
	// follows the name of the node in a sentence. It is empty for a node that announces
	// the address and may go on.
	Why string
	// IsEligible is that the node passes the checks for being given the address.
	IsEligible bool
}

// AddressVerdict says where an address is, and of each node why or why not.
type AddressVerdict struct {
	// Type is empty while it is undecided.
	Type v1.AnnounceType
	// WaitsFor says what an address without a node waits for before one is elected.
	WaitsFor Explanation
	// Phase of a Local address, and of one whose type is undecided.
	Phase Phase
	// Holder of a Local address; empty if no node reports it Announced.
	Holder string
	// Successors of the holder, the first one first.
	Successors []string
	// Nodes are those that have a Node object, sorted by name.
	Nodes []NodeVerdict
}

// ExplainAddress says why an address is where it is. found is that some Service has it.
func ExplainAddress(inputs Inputs, addr netip.Addr) (verdict AddressVerdict, found bool) {
	p := newPlacer(inputs)
	for i := range inputs.Addresses {
		if a := inputs.Addresses[i]; a.Addr == addr {
			return p.explainAddress(&a), true
		}
	}
	return AddressVerdict{}, false
}

func (p *placer) explainAddress(a *Address) AddressVerdict {
	addressOf := map[netip.Addr]*Address{}
	for i := range p.inputs.Addresses {
		addressOf[p.inputs.Addresses[i].Addr] = &p.inputs.Addresses[i]
	}
	for i := range p.inputs.Entries { // what nodes have now: what a choice is bounded by
		e := &p.inputs.Entries[i]
		if e.Spec.Type == v1.AnnounceLocal && e.ReportedState == v1.StateAnnounced {
			p.countLocal(cmp.Or(p.nodeByName[e.Node], &Node{Name: e.Node}), cmp.Or(addressOf[e.Addr], &Address{Addr: e.Addr}))
		}
	}
	var verdict AddressVerdict
	verdict.Type, verdict.WaitsFor = p.typeOf(a)
	p.setIgnoresCordons(a, verdict.Type)
	checks := takeVirtualChecks
	switch verdict.Type {
	case "":
		verdict.Phase = WaitingForFacts
	case v1.AnnounceLocal:
		checks = p.checksToTake(a)
		s := p.phaseOf(a)
		verdict.Phase, verdict.WaitsFor = s.phase, s.waitsFor
		if s.holder != nil {
			verdict.Holder = s.holder.Node
			for _, s := range s.holder.Spec.Successors {
				verdict.Successors = append(verdict.Successors, s.NodeName)
			}
		}
	}
	for _, n := range p.nodes {
		v := NodeVerdict{Node: n.Name, Why: reasonAgainst(n, a, checks)}
		v.IsEligible = v.Why == ""
		switch {
		case verdict.Type != v1.AnnounceLocal:
		case n.Name == verdict.Holder:
			v.Why = reasonAgainst(n, a, holdChecks)
		case v.IsEligible && n.IsNotReady:
			v.Why = "could take it, but is not Ready"
		case v.IsEligible && verdict.Holder != "" && !verdict.Phase.mayElect():
			v.Why = "could take it; the holder keeps it while it is eligible (" + p.describeRank(n, a) + ")"
		case v.IsEligible:
			v.Why = "could take it (" + p.describeRank(n, a) + ")"
		}
		verdict.Nodes = append(verdict.Nodes, v)
	}
	return verdict
}
