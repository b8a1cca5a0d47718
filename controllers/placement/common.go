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
// for. Those that are there are given by name, too. Each has a revision of its own
// after the given one, in the order of which they are to be written: who has seen one
// has seen all before it. Entries that come, or have nodes do something else, have it
// as their epoch. nodes is how many report.
func Revise(agent string, nodes int, revision int64, wanted []v1.AnnouncedAddress, are map[string]v1.CommonAnnouncementSpec) map[string]v1.CommonAnnouncementSpec {
	where, old := map[string]string{}, map[string]v1.AnnouncedAddress{}
	for name, spec := range are {
		for _, e := range spec.Addresses {
			where[e.Address], old[e.Address] = name, e
		}
	}
	entries := slices.Clone(wanted)
	for i := range entries {
		e := &entries[i]
		if was := old[e.Address]; was.Interface == e.Interface && was.PrefixLength == e.PrefixLength {
			e.Epoch = was.Epoch // 0 if it was not there
		} else {
			e.Epoch = 0
		}
	}
	sliced := Slice(agent, entries, slices.Collect(maps.Keys(are)), where)
	for name := range are {
		if sliced[name] == nil {
			sliced[name] = []v1.AnnouncedAddress{}
		}
	}
	changed := map[string]v1.CommonAnnouncementSpec{}
	for _, name := range slices.Sorted(maps.Keys(sliced)) {
		addresses := sliced[name]
		if has, there := are[name]; there && SameAddresses(has.Addresses, addresses) || !there && len(addresses) == 0 {
			continue
		}
		revision++
		for i := range addresses {
			if addresses[i].Epoch == 0 {
				addresses[i].Epoch = revision
			}
		}
		changed[name] = v1.CommonAnnouncementSpec{LBNodeAgent: agent, Revision: revision, ReportSpreadSeconds: spread(nodes), Addresses: addresses}
	}
	return changed
}

// Highest is the highest revision of some CommonAnnouncements, 0 if there are none.
func Highest(specs map[string]v1.CommonAnnouncementSpec) int64 {
	revision := int64(0)
	for _, spec := range specs {
		revision = max(revision, spec.Revision)
	}
	return revision
}

// spread is over how many seconds so many nodes report: no more than
// reportsPerSecond do, up to 3,000 nodes. A report costs an API server up to 10 ms of
// a processor, and nothing waits for it but what Services say, and a node's own entry for
// what it has in common by then.
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
