package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Heartbeats, in seconds: of nodes that may have to take over a Local address,
// and of others.
const (
	heartbeatLocal   = 1
	heartbeatVirtual = 10
)

// Why says why an address is where it is, or is nowhere.
type Why struct {
	Reason  string
	Message string
}

// Kind is why an address gets another node.
type Kind string

// Kinds of moves.
const (
	// Placement is of an address that no node holds.
	Placement Kind = "Placement"
	// Failover is from a node whose agent is gone.
	Failover Kind = "Failover"
	// Handover is from a node whose agent is alive.
	Handover Kind = "Handover"
)

// Move is a Local address on its way to a node.
type Move struct {
	Kind Kind
	// From is its holder, if it has one, and To the node that is to have it.
	From, To string
	// Begun is that it was not on its way before.
	Begun bool
	// Message says why From may not keep it.
	Message string
	// PassedOver says of the other nodes, if the move has begun, why not them.
	PassedOver string
}

// Result is what is to be announced.
type Result struct {
	// Entries of each node that runs an agent, or did and still holds
	// something, sorted by address.
	Entries map[string][]v1.AnnouncedAddress
	// Common is what the nodes of each LBNodeAgent that has nodes announce alike,
	// sorted by address; Joins is the nodes that do.
	Common map[string][]v1.AnnouncedAddress
	Joins  map[string]bool
	// Heartbeat, in seconds, of each node that runs an agent.
	Heartbeat map[string]int32
	// Moves is the Local addresses that are on their way to a node.
	Moves map[netip.Addr]Move
	// Unplaced says why an address has no node.
	Unplaced map[netip.Addr]Why
}

// Place decides what each node is to announce.
func Place(facts Facts) Result {
	p := newPlacer(facts)
	addresses := slices.SortedFunc(slices.Values(facts.Addresses), func(a, b Address) int { return a.Addr.Compare(b.Addr) })

	// Holders that stay count before anything is given out.
	var moving []*Address
	for i := range addresses {
		a := &addresses[i]
		switch kind, why := p.kind(a); kind {
		case v1.AnnounceVirtual:
			p.placeVirtual(a)
		case v1.AnnounceLocal:
			p.locals[family(a.Addr)]++
			if !p.stay(a) {
				moving = append(moving, a)
			}
		default:
			p.result.Unplaced[a.Addr] = why
		}
	}
	for _, a := range moving {
		p.move(a)
	}
	for _, of := range []map[string][]v1.AnnouncedAddress{p.result.Entries, p.result.Common} {
		for _, entries := range of {
			slices.SortFunc(entries, byAddress)
		}
	}
	return p.result
}

func byAddress(a, b v1.AnnouncedAddress) int { return cmp.Compare(a.Address, b.Address) }

type placer struct {
	facts   Facts
	nodes   []*Node // sorted by name
	byName  map[string]*Node
	entries map[netip.Addr][]*Entry // highest epoch first
	common  map[netip.Addr][]*CommonEntry
	// joined is the virtual interfaces of the LBNodeAgents whose nodes announce what
	// is common, and apart the nodes of which it is asked apart.
	joined map[string]string
	apart  []*Node
	locals map[int]int            // number of Local addresses by family
	load   map[int]map[string]int // Local addresses by family and node
	// massExpiry is that most agents have not renewed their Leases: more likely
	// because of the API server than because of them.
	massExpiry bool
	result     Result
}

// family tells IPv4 from IPv6: each is balanced by itself.
func family(a netip.Addr) int { return a.BitLen() }

func newPlacer(facts Facts) *placer {
	p := &placer{
		facts:   facts,
		byName:  map[string]*Node{},
		entries: map[netip.Addr][]*Entry{},
		common:  map[netip.Addr][]*CommonEntry{},
		joined:  map[string]string{},
		locals:  map[int]int{},
		load:    map[int]map[string]int{32: {}, 128: {}},
		result: Result{
			Entries:   map[string][]v1.AnnouncedAddress{},
			Common:    map[string][]v1.AnnouncedAddress{},
			Joins:     map[string]bool{},
			Heartbeat: map[string]int32{},
			Moves:     map[netip.Addr]Move{},
			Unplaced:  map[netip.Addr]Why{},
		},
	}
	running, expired := 0, 0
	for i := range facts.Nodes {
		n := &facts.Nodes[i]
		if n.Agent != "" && !n.OutOfService {
			running++
			if n.Liveness == Expired {
				expired++
			}
		}
		p.nodes = append(p.nodes, n)
		p.byName[n.Name] = n
		if n.Agent != "" {
			p.result.Entries[n.Name] = nil
			p.result.Common[n.Agent] = nil
			p.result.Heartbeat[n.Name] = heartbeat(n, facts.LocalSubnets)
		}
		p.join(n)
	}
	p.massExpiry = 2*expired > running
	slices.SortFunc(p.nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range facts.Entries {
		e := &facts.Entries[i]
		p.entries[e.Addr] = append(p.entries[e.Addr], e)
	}
	for i := range facts.Common {
		e := &facts.Common[i]
		p.common[e.Addr] = append(p.common[e.Addr], e)
	}
	for _, entries := range p.entries {
		slices.SortFunc(entries, func(a, b *Entry) int {
			return cmp.Or(cmp.Compare(b.Spec.Epoch, a.Spec.Epoch), cmp.Compare(a.Node, b.Node))
		})
	}
	return p
}

func heartbeat(n *Node, subnets []netip.Prefix) int32 {
	for _, i := range n.Interfaces {
		for _, own := range i.Subnets {
			if slices.ContainsFunc(subnets, own.Overlaps) {
				return heartbeatLocal
			}
		}
	}
	return heartbeatVirtual
}

// kind is how an address is announced. It does not change while the address is
// announced, and is undecided until all live nodes have reported their
// interfaces.
func (p *placer) kind(a *Address) (v1.AnnounceType, Why) {
	if entries := p.entries[a.Addr]; len(entries) > 0 {
		return entries[0].Spec.Type, Why{}
	}
	if a.PoolType == v1.PoolTypeRemote || len(p.common[a.Addr]) > 0 {
		return v1.AnnounceVirtual, Why{}
	}
	known := false
	var waiting string
	for _, n := range p.nodes {
		if i, _ := n.interfaceFor(a.Addr); i != nil {
			return v1.AnnounceLocal, Why{}
		}
		known = known || n.Reported
		if !n.Reported && (n.Awaited || n.Liveness == Fresh) && waiting == "" {
			waiting = n.Name
		}
	}
	switch {
	case waiting != "":
		return "", Why{v1.ReasonWaitingForFacts, fmt.Sprintf("waiting for the agent of node %s to report its interfaces", waiting)}
	case !known:
		return "", Why{v1.ReasonWaitingForFacts, "no agent has reported its node's interfaces yet"}
	}
	return v1.AnnounceVirtual, Why{}
}

func (p *placer) placeVirtual(a *Address) {
	if a.isEverywhere() {
		p.placeEverywhere(a)
		return
	}
	mask, has := p.maskOf(a), map[string]bool{}
	for _, e := range p.entries[a.Addr] {
		has[e.Node] = e.State == v1.StateAnnounced
	}
	placed, all := false, true
	var ending []*Node
	for _, n := range p.nodes {
		switch why := refused(n, a, virtual); {
		case why == "":
			p.addVirtual(n, a, mask)
			placed, all = true, all && has[n.Name]
		case a.Ending[n.Name] && has[n.Name] && refused(n, a, staying) == "":
			ending = append(ending, n)
		}
	}
	if !all { // make before break
		for _, n := range ending {
			p.addVirtual(n, a, mask)
		}
	}
	if !placed {
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a, virtual)}
	}
	p.keepCommon(a, mask)
}

func (p *placer) addVirtual(n *Node, a *Address, mask int32) {
	e := virtualEntry(n.VirtualInterface, mask)
	e.HealthCheckNodePort = a.HealthPort
	p.add(n, a, e)
}

func virtualEntry(iface string, mask int32) v1.AnnouncedAddress {
	return v1.AnnouncedAddress{PrefixLength: mask, Interface: v1.InterfaceName(iface), Type: v1.AnnounceVirtual, Claim: v1.ClaimProbe}
}

// maskOf is the mask of a Virtual address. One whose group is gone keeps what it
// has.
func (p *placer) maskOf(a *Address) int32 {
	entries := p.entries[a.Addr]
	switch {
	case a.Mask != 0:
		return int32(a.Mask)
	case len(entries) > 0:
		return entries[0].Spec.PrefixLength
	case len(p.common[a.Addr]) > 0:
		return p.common[a.Addr][0].Spec.PrefixLength
	}
	return int32(a.Addr.BitLen())
}

// add completes an entry with what is of the address and gives it to the node.
func (p *placer) add(n *Node, a *Address, e v1.AnnouncedAddress) {
	if e.Type == v1.AnnounceLocal {
		e.SkipProbe = a.SkipProbe && a.Addr.Is6()
	}
	p.result.Entries[n.Name] = append(p.result.Entries[n.Name], a.complete(e))
}

// complete adds to an entry what is of the address.
func (a *Address) complete(e v1.AnnouncedAddress) v1.AnnouncedAddress {
	e.Address, e.ServiceGroup, e.Services = a.Addr.String(), a.Group, a.Services
	return e
}
