package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// elect chooses among the nodes that may take the address, have not failed to,
// and have no more than their share: the one with the highest hash.
func (p *placer) elect(a *Address, holder *Entry) *Node {
	var candidates []*Node
	checks := p.takingUnlessFailed(a)
	for _, n := range p.nodes {
		if (holder == nil || n.Name != holder.Node) && refused(n, a, checks) == "" {
			candidates = append(candidates, n)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	load := p.load[family(a.Addr)]
	share := p.share(a, len(candidates))
	return slices.MaxFunc(candidates, func(x, y *Node) int {
		return cmp.Or(
			// Those below their share first; among those above, the least loaded.
			cmp.Compare(max(load[y.Name]+1-share, 0), max(load[x.Name]+1-share, 0)),
			cmp.Compare(score(x.Name, a.Addr), score(y.Name, a.Addr)),
			cmp.Compare(y.Name, x.Name),
		)
	})
}

// share is how many Local addresses each of a number of nodes has if they have
// them in equal parts.
func (p *placer) share(a *Address, nodes int) int {
	return (p.locals[family(a.Addr)] + nodes - 1) / max(nodes, 1)
}

// passedOver says of the nodes that an address does not go to why not.
func (p *placer) passedOver(a *Address, m Move) string {
	checks := p.takingUnlessFailed(a)
	return explain(p.nodes, a, []check{func(n *Node, a *Address) string {
		switch why := refused(n, a, checks); {
		case n.Name == m.To:
			return ""
		case why != "" || n.Name == m.From:
			return why
		default:
			return fmt.Sprintf("has %d already, or ranks lower for this one", p.load[family(a.Addr)][n.Name])
		}
	}})
}

// takingUnlessFailed is what a node must satisfy to be given the address, which
// includes that it has not failed to take it.
func (p *placer) takingUnlessFailed(a *Address) []check {
	return append(taking[:len(taking):len(taking)], func(n *Node, _ *Address) string {
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
