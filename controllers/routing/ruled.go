package routing

import (
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// RuledAddresses compares what ServiceGroups say of how their addresses are advertised with what NodeRoutings tell the
// speakers: a speaker that has not been told advertises an address to everybody. It is not for concurrent use.
type RuledAddresses struct {
	groups   map[string]*Group
	routings map[string]*v1.NodeRouting // by node
	nodes    []string                   // sorted
	ruled    map[string]*ruledGroup     // for the groups that were asked for
}

// ruledGroup is what NodeRoutings say of one group.
type ruledGroup struct {
	// pools are the group's ranges.
	pools *netipx.IPSet
	// byNode are the addresses of which the node's NodeRouting says what the group does, or that they are withheld.
	byNode map[string]*netipx.IPSet
}

// NewRuledAddresses reads what the NodeRoutings of nodes, by name of the node, say of ServiceGroups.
func NewRuledAddresses(groups []Group, routings map[string]*v1.NodeRouting) *RuledAddresses {
	r := &RuledAddresses{
		groups: map[string]*Group{}, routings: routings, nodes: slices.Sorted(maps.Keys(routings)),
		ruled: map[string]*ruledGroup{},
	}
	for i := range groups {
		r.groups[groups[i].Name] = &groups[i]
	}
	return r
}

// NodeWithoutRule returns a node whose NodeRouting does not say yet what the group of an address does; empty if there
// is none. An address that is in no range of its group gets its rule when nodes announce it, and counts as ruled.
func (r *RuledAddresses) NodeWithoutRule(group string, addr netip.Addr) string {
	g := r.groups[group]
	if g == nil || g.BGP == nil {
		return ""
	}
	ruled := r.ruled[group]
	if ruled == nil {
		ruled = r.ruledBy(g)
		r.ruled[group] = ruled
	}
	if !ruled.pools.Contains(addr) {
		return ""
	}
	for _, node := range r.nodes {
		if !ruled.byNode[node].Contains(addr) {
			return node
		}
	}
	return ""
}

func (r *RuledAddresses) ruledBy(g *Group) *ruledGroup {
	out := &ruledGroup{pools: setOf(g.Ranges), byNode: map[string]*netipx.IPSet{}}
	for _, node := range r.nodes {
		spec := &r.routings[node].Spec
		texts := slices.Clone(spec.Withheld)
		for k := range spec.Groups {
			if rule := &spec.Groups[k]; rule.Name == g.Name && equality.Semantic.DeepEqual(rule.ServiceGroupBGP, *g.BGP) {
				texts = append(texts, rule.Ranges...)
			}
		}
		out.byNode[node] = setOf(texts)
	}
	return out
}
