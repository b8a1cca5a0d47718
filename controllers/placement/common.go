package placement

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// isEverywhere reports whether a Virtual address is the same on all nodes.
func (a *Address) isEverywhere() bool { return a.Only == nil && a.HealthPort == 0 }

// join notes that a node announces what is common, if it does.
func (p *placer) join(n *Node) {
	if refused(n, nil, staying) != "" {
		return
	}
	p.result.Joins[n.Name] = true
	p.joined[n.Agent] = n.VirtualInterface
	if n.Apart {
		p.apart = append(p.apart, n)
	}
}

// placeEverywhere gives a Virtual address to all nodes. A node that has it by
// itself keeps that until it has it in common.
func (p *placer) placeEverywhere(a *Address) {
	if len(p.joined) == 0 {
		p.result.Unplaced[a.Addr] = Why{v1.ReasonNoEligibleNode, explain(p.nodes, a, virtual)}
		return
	}
	mask := p.maskOf(a)
	for agent, iface := range p.joined {
		p.addCommon(agent, a, virtualEntry(iface, mask))
	}
	for _, n := range p.apart {
		p.addVirtual(n, a, mask)
	}
	for _, e := range p.entries[a.Addr] {
		if n := p.byName[e.Node]; n != nil && p.result.Joins[n.Name] && !n.Apart && !p.hasInCommon(n, a) {
			p.addVirtual(n, a, mask)
		}
	}
}

// hasInCommon reports whether a node has made what is common, with this address.
func (p *placer) hasInCommon(n *Node, a *Address) bool {
	return slices.ContainsFunc(p.common[a.Addr], func(e *CommonEntry) bool {
		return e.Agent == n.Agent && e.Spec.Epoch <= n.CommonRevision
	})
}

// keepCommon leaves an address that is to be on some nodes only where all have it,
// until those have seen that they are to have it by themselves.
func (p *placer) keepCommon(a *Address, mask int32) {
	if len(p.common[a.Addr]) == 0 {
		return
	}
	seen := map[string]bool{}
	for _, e := range p.entries[a.Addr] {
		seen[e.Node] = e.Observed
	}
	for _, e := range p.common[a.Addr] {
		iface, joined := p.joined[e.Agent]
		if joined && slices.ContainsFunc(p.nodes, func(n *Node) bool {
			return n.Agent == e.Agent && !n.Apart && n.Liveness != Expired && !seen[n.Name] && refused(n, a, virtual) == ""
		}) {
			p.addCommon(e.Agent, a, virtualEntry(iface, mask))
		}
	}
}

func (p *placer) addCommon(agent string, a *Address, e v1.AnnouncedAddress) {
	p.result.Common[agent] = append(p.result.Common[agent], a.complete(e))
}

// Revise returns the CommonAnnouncements of one LBNodeAgent that have to be written,
// by name, so that they ask for what is wanted: empty ones have nothing left to ask
// for. Those that are there are given by name, too. Entries that come, or have
// nodes do something else, have the new revision as their epoch. nodes is how many
// report.
func Revise(agent string, nodes int, wanted []v1.AnnouncedAddress, are map[string]v1.CommonAnnouncementSpec) map[string]v1.CommonAnnouncementSpec {
	revision := int64(1)
	where, old := map[string]string{}, map[string]v1.AnnouncedAddress{}
	for name, spec := range are {
		revision = max(revision, spec.Revision+1)
		for _, e := range spec.Addresses {
			where[e.Address], old[e.Address] = name, e
		}
	}
	entries := slices.Clone(wanted)
	for i := range entries {
		e := &entries[i]
		was, had := old[e.Address]
		if e.Epoch = was.Epoch; !had || was.Interface != e.Interface || was.PrefixLength != e.PrefixLength {
			e.Epoch = revision
		}
	}
	changed := map[string]v1.CommonAnnouncementSpec{}
	sliced := Slice(agent, entries, slices.Collect(maps.Keys(are)), where)
	for name, addresses := range sliced {
		if has, there := are[name]; !there && len(addresses) > 0 || there && !SameAddresses(has.Addresses, addresses) {
			changed[name] = v1.CommonAnnouncementSpec{LBNodeAgent: agent, Revision: revision, ReportSpreadSeconds: spread(nodes), Addresses: addresses}
		}
	}
	for name, has := range are {
		if sliced[name] == nil && len(has.Addresses) > 0 {
			changed[name] = v1.CommonAnnouncementSpec{LBNodeAgent: agent, Revision: revision, ReportSpreadSeconds: spread(nodes)}
		}
	}
	return changed
}

// spread is over how many seconds so many nodes report: no more than
// reportsPerSecond do, up to 3,000 nodes. A report costs an API server up to 10 ms of
// a processor, and nothing waits for it but what Services say.
func spread(nodes int) int32 {
	const reportsPerSecond, most = 50, 60
	return int32(min(nodes/reportsPerSecond, most))
}

// SameAddresses compares without regard to the order, which is the API server's to
// choose.
func SameAddresses(a, b []v1.AnnouncedAddress) bool {
	sorted := func(entries []v1.AnnouncedAddress) []v1.AnnouncedAddress {
		return slices.SortedFunc(slices.Values(entries), byAddress)
	}
	return equality.Semantic.DeepEqual(sorted(a), sorted(b))
}
