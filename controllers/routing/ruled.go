package routing

import (
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// RuledAddresses are the addresses of ServiceGroups that all speakers advertise as the groups say, and not as if the
// groups said nothing. The methods are not for concurrent use.
type RuledAddresses struct {
	groups   map[string]*Group
	routings map[string]*v1.NodeRouting // by node
	ruled    map[string]*netipx.IPSet   // by group, for those that were asked for
}

// NewRuledAddresses reads what the NodeRoutings of nodes, by name of the node, say of ServiceGroups.
func NewRuledAddresses(groups []Group, routings map[string]*v1.NodeRouting) *RuledAddresses {
	r := &RuledAddresses{groups: map[string]*Group{}, routings: routings, ruled: map[string]*netipx.IPSet{}}
	for i := range groups {
		r.groups[groups[i].Name] = &groups[i]
	}
	return r
}

// NodeWithoutRule returns a node whose speaker would not yet advertise an address as its group says; empty if there is
// none. An address that is in no range of its group gets its rule when nodes announce it, and counts as ruled.
func (r *RuledAddresses) NodeWithoutRule(group string, addr netip.Addr) string {
	g := r.groups[group]
	if g == nil || g.BGP == nil || len(r.routings) == 0 {
		return ""
	}
	if r.ruled[group] == nil {
		r.ruled[group] = r.ruledOn(g, slices.Collect(maps.Keys(r.routings))...)
	}
	if r.ruled[group].Contains(addr) || !setOf(g.Ranges).Contains(addr) {
		return ""
	}
	for _, node := range slices.Sorted(maps.Keys(r.routings)) {
		if !r.ruledOn(g, node).Contains(addr) {
			return node
		}
	}
	return ""
}

// ruledOn returns the addresses of which the NodeRoutings of all these nodes say what the group does, or that they are
// withheld.
func (r *RuledAddresses) ruledOn(g *Group, nodes ...string) *netipx.IPSet {
	b := netipx.IPSetBuilder{}
	for i, node := range nodes {
		spec := &r.routings[node].Spec
		texts := slices.Clone(spec.Withheld)
		for k := range spec.Groups {
			if rule := &spec.Groups[k]; rule.Name == g.Name && equality.Semantic.DeepEqual(rule.ServiceGroupBGP, *g.BGP) {
				texts = append(texts, rule.Ranges...)
			}
		}
		if set := setOf(texts); i == 0 {
			b.AddSet(set)
		} else {
			b.Intersect(set)
		}
	}
	return buildSet(&b)
}
