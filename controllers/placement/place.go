package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"

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

// Result is what is to be announced.
type Result struct {
	// Entries of each node that runs an agent, or did and still holds
	// something, sorted by address.
	Entries map[string][]v1.AnnouncedAddress
	// Heartbeat, in seconds, of each node that runs an agent.
	Heartbeat map[string]int32
	// Changes says why an address changes its holder.
	Changes map[netip.Addr]Why
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
	for _, entries := range p.result.Entries {
		slices.SortFunc(entries, func(a, b v1.AnnouncedAddress) int { return cmp.Compare(a.Address, b.Address) })
	}
	return p.result
}

type placer struct {
	facts   Facts
	nodes   []*Node // sorted by name
	byName  map[string]*Node
	entries map[netip.Addr][]*Entry // highest epoch first
	locals  map[int]int             // number of Local addresses by family
	load    map[int]map[string]int  // Local addresses by family and node
	result  Result
}

// family tells IPv4 from IPv6: each is balanced by itself.
func family(a netip.Addr) int { return a.BitLen() }

func newPlacer(facts Facts) *placer {
	p := &placer{
		facts:   facts,
		byName:  map[string]*Node{},
		entries: map[netip.Addr][]*Entry{},
		locals:  map[int]int{},
		load:    map[int]map[string]int{32: {}, 128: {}},
		result: Result{
			Entries:   map[string][]v1.AnnouncedAddress{},
			Heartbeat: map[string]int32{},
			Changes:   map[netip.Addr]Why{},
			Unplaced:  map[netip.Addr]Why{},
		},
	}
	for i := range facts.Nodes {
		n := &facts.Nodes[i]
		p.nodes = append(p.nodes, n)
		p.byName[n.Name] = n
		if n.Agent != "" {
			p.result.Entries[n.Name] = nil
			p.result.Heartbeat[n.Name] = heartbeat(n, facts.LocalSubnets)
		}
	}
	slices.SortFunc(p.nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range facts.Entries {
		e := &facts.Entries[i]
		p.entries[e.Addr] = append(p.entries[e.Addr], e)
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
	if a.PoolType == v1.PoolTypeRemote {
		return v1.AnnounceVirtual, Why{}
	}
	known := false
	var waiting string
	for _, n := range p.nodes {
		if _, _, ok := n.interfaceFor(a.Addr); ok {
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
	placed := false
	for _, n := range p.nodes {
		if refused(n, a.Addr, virtual) == "" {
			p.add(n, a, v1.AnnouncedAddress{
				PrefixLength: int32(a.Mask),
				Interface:    v1.InterfaceName(n.VirtualInterface),
				Type:         v1.AnnounceVirtual,
				Claim:        v1.ClaimProbe,
			})
			placed = true
		}
	}
	if !placed {
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a.Addr, virtual)}
	}
}

// add completes an entry with what is of the address and gives it to the node.
func (p *placer) add(n *Node, a *Address, e v1.AnnouncedAddress) {
	e.Address, e.ServiceGroup, e.Services = a.Addr.String(), a.Group, a.Services
	if e.Type == v1.AnnounceLocal {
		e.SkipProbe = a.SkipProbe && a.Addr.Is6()
	}
	p.result.Entries[n.Name] = append(p.result.Entries[n.Name], e)
}

// holder is the realised entry with the highest epoch.
func (p *placer) holder(a *Address) *Entry {
	for _, e := range p.entries[a.Addr] {
		if e.State == v1.StateAnnounced && p.byName[e.Node] != nil {
			return e
		}
	}
	return nil
}

// claimant is the entry with the highest epoch, if it is not realised but may
// be yet.
func (p *placer) claimant(a *Address) *Entry {
	entries := p.entries[a.Addr]
	if len(entries) == 0 {
		return nil
	}
	e := entries[0]
	n := p.byName[e.Node]
	if n == nil || e.State == v1.StateAnnounced || e.State == v1.StateFailed || e.Spec.Leaving || refused(n, a.Addr, holding) != "" {
		return nil
	}
	return e
}

// stay keeps a Local address where it is, if it may stay there.
func (p *placer) stay(a *Address) bool {
	e := p.holder(a)
	if claimant := p.claimant(a); e == nil {
		e = claimant
	} else if claimant != nil && claimant.Spec.Claim == v1.ClaimTakeover {
		return false // a handover under way is not called back
	}
	if e == nil {
		return false
	}
	n := p.byName[e.Node]
	if refused(n, a.Addr, holding) != "" {
		return false
	}
	spec := e.Spec
	spec.Leaving = false
	p.keep(n, a, spec)
	if e.State != v1.StateAnnounced {
		p.keepFailed(a)
	}
	return true
}

// keep leaves an entry in place, with the interface and mask as they are now.
func (p *placer) keep(n *Node, a *Address, spec v1.AnnouncedAddress) {
	if name, bits, ok := n.interfaceFor(a.Addr); ok {
		spec.Interface, spec.PrefixLength = v1.InterfaceName(name), int32(bits)
	}
	p.load[family(a.Addr)][n.Name]++
	p.add(n, a, spec)
}

// keepFailed leaves the entries of nodes that failed to take the address, so
// that it is not offered to them again before somebody has it.
func (p *placer) keepFailed(a *Address) (found bool) {
	for _, e := range p.entries[a.Addr] {
		if n := p.byName[e.Node]; n != nil && e.State == v1.StateFailed {
			p.add(n, a, e.Spec)
			found = true
		}
	}
	return found
}

// move gives a Local address to a new node, as far as that can be done now.
func (p *placer) move(a *Address) {
	holder := p.holder(a)
	if holder == nil {
		p.place(a)
		return
	}
	from := p.byName[holder.Node]
	target, spec := p.target(a, holder)
	if target == nil {
		// A node that has failed to take over may succeed yet: then the holder
		// is not to defend the address.
		stayed := holder.Spec
		stayed.Leaving = p.keepFailed(a) && stayed.Leaving
		p.keep(from, a, stayed)
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a.Addr, p.takingUnlessFailed(a))}
		return
	}
	p.result.Changes[a.Addr] = Why{v1.ReasonDegraded, from.Name + " " + refused(from, a.Addr, holding)}

	old, claimant := holder.Spec, p.claimant(a)
	told := true
	if from.Liveness == Expired {
		if claimant != nil && claimant.State == v1.StateStandby && !from.Ready {
			spec.Claim = v1.ClaimTakeover
		}
	} else {
		told = holder.Spec.Leaving && holder.Observed
		old.Leaving = true
		if told {
			spec.Claim = v1.ClaimTakeover
		}
	}
	p.add(from, a, old)
	if told || claimant != nil {
		p.keep(target, a, spec)
	}
	p.keepFailed(a)
}

// place gives a Local address that nobody holds to a node.
func (p *placer) place(a *Address) {
	if name := p.unheard(); name != "" && len(p.entries[a.Addr]) == 0 && len(p.facts.Lingering[a.Addr]) == 0 {
		// It may hold the address: its Announcement was lost.
		p.result.Unplaced[a.Addr] = Why{v1.ReasonWaitingForFacts, fmt.Sprintf("waiting for the agent of node %s to report", name)}
		return
	}
	for _, name := range slices.Sorted(slices.Values(p.facts.Lingering[a.Addr])) {
		n := p.byName[name]
		switch {
		case n == nil || n.Liveness == Expired:
		case refused(n, a.Addr, taking) == "":
			p.keep(n, a, p.fresh(a, n))
			return
		default:
			p.result.Unplaced[a.Addr] = Why{v1.ReasonAnnouncing, fmt.Sprintf("waiting for node %s to withdraw it", name)}
			return
		}
	}
	target, spec := p.target(a, nil)
	p.keepFailed(a)
	if target == nil {
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a.Addr, p.takingUnlessFailed(a))}
		for _, e := range p.entries[a.Addr] {
			if n := p.byName[e.Node]; n != nil && e.State != v1.StateFailed && e.State != v1.StateAnnounced {
				p.add(n, a, e.Spec)
				return
			}
		}
		return
	}
	p.result.Changes[a.Addr] = Why{v1.ReasonAnnouncing, "new on the link"}
	p.keep(target, a, spec)
}

// unheard is a node whose agent is alive and expected to report, if there is one.
func (p *placer) unheard() string {
	for _, n := range p.nodes {
		if n.Awaited && n.Liveness != Expired {
			return n.Name
		}
	}
	return ""
}

// target is the node that is to have the address, with its entry: the one that
// claims it already, or else an elected one.
func (p *placer) target(a *Address, holder *Entry) (*Node, v1.AnnouncedAddress) {
	if e := p.claimant(a); e != nil {
		return p.byName[e.Node], e.Spec
	}
	n := p.elect(a, holder)
	if n == nil {
		return nil, v1.AnnouncedAddress{}
	}
	return n, p.fresh(a, n)
}

// fresh is a new claim of a node: with the next epoch, and only if none but its
// previous holders' devices answers for the address.
func (p *placer) fresh(a *Address, n *Node) v1.AnnouncedAddress {
	spec := v1.AnnouncedAddress{Type: v1.AnnounceLocal, Claim: v1.ClaimProbe, Epoch: 1}
	var names []string
	if entries := p.entries[a.Addr]; len(entries) > 0 {
		spec.Epoch = entries[0].Spec.Epoch + 1
	}
	for _, e := range p.entries[a.Addr] {
		names = append(names, e.Node)
	}
	for _, name := range append(names, p.facts.Lingering[a.Addr]...) {
		if old := p.byName[name]; old != nil && old != n {
			spec.PreviousMACs = append(spec.PreviousMACs, old.macs(a.Addr)...)
		}
	}
	slices.Sort(spec.PreviousMACs)
	spec.PreviousMACs = slices.Compact(spec.PreviousMACs)
	spec.PreviousMACs = spec.PreviousMACs[:min(len(spec.PreviousMACs), v1.MaxPreviousMACs)]
	return spec
}

// elect chooses among the nodes that may take the address, have not failed to,
// and have no more than their share: the one with the highest hash.
func (p *placer) elect(a *Address, holder *Entry) *Node {
	var candidates []*Node
	checks := p.takingUnlessFailed(a)
	for _, n := range p.nodes {
		if (holder == nil || n.Name != holder.Node) && refused(n, a.Addr, checks) == "" {
			candidates = append(candidates, n)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	load := p.load[family(a.Addr)]
	share := (p.locals[family(a.Addr)] + len(candidates) - 1) / len(candidates)
	return slices.MaxFunc(candidates, func(x, y *Node) int {
		return cmp.Or(
			// Those below their share first; among those above, the least loaded.
			cmp.Compare(max(load[y.Name]+1-share, 0), max(load[x.Name]+1-share, 0)),
			cmp.Compare(score(x.Name, a.Addr), score(y.Name, a.Addr)),
			cmp.Compare(y.Name, x.Name),
		)
	})
}

// takingUnlessFailed is what a node must satisfy to be given the address, which
// includes that it has not failed to take it.
func (p *placer) takingUnlessFailed(a *Address) []check {
	return append(taking[:len(taking):len(taking)], func(n *Node, _ netip.Addr) string {
		for _, e := range p.entries[a.Addr] {
			if e.Node == n.Name && e.State == v1.StateFailed {
				return "has failed to take it"
			}
		}
		return ""
	})
}

// score is the rendezvous hash of a node and an address.
func score(node string, a netip.Addr) uint64 {
	d := xxhash.New()
	_, _ = d.WriteString(node)
	_, _ = d.Write([]byte{0})
	_, _ = d.Write(a.AsSlice())
	return d.Sum64()
}
