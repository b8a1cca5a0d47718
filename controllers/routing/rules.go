package routing

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// Group is a ServiceGroup of the manager's namespace.
type Group struct {
	Name      string
	CreatedAt time.Time
	// Ranges are those that the manager allocates from, first-last; none if the group is not ready.
	Ranges []string
	BGP    *v1.ServiceGroupBGP
	// AllowServices are the communities that Services may ask for; nil is none.
	AllowServices *v1.RouteCommunities
	// NeedsHostRoutes is that a Service with externalTrafficPolicy Local has addresses of the group,
	// which make routes for more than one address.
	NeedsHostRoutes bool
}

// VirtualAddress is what the manager knows of a Virtual address that nodes announce, or are to.
type VirtualAddress struct {
	// Group is the ServiceGroup that the address was allocated from.
	Group string
	// HasService is that a Service has the address; otherwise nodes are about to withdraw it.
	HasService bool
	// Communities is the list of communities that the oldest Service which has the address asks for, and ServiceCreated
	// is when that was made.
	Communities    string
	ServiceCreated time.Time
}

// rules are how nodes advertise addresses, the same for all nodes.
type rules struct {
	groups             []v1.RoutingGroup
	serviceCommunities []v1.ServiceCommunities
	withheld           []string
	// conditions are what there is to say of ServiceGroups, by name, and unknownGroupsProblem of addresses whose
	// ServiceGroup nobody knows.
	conditions           map[string]metav1.Condition
	unknownGroupsProblem string
	// isProvisional is that some rules are there only until agents have withdrawn addresses.
	isProvisional bool
}

// groupRule is a RoutingGroup that there is to be.
type groupRule struct {
	v1.RoutingGroup
	createdAt time.Time
	// isOutsidePools is that the ranges are single addresses that the manager allocates from no group
	// now, and isPlain that the group is advertised as groups are that say nothing.
	isOutsidePools, isPlain bool
	// isLeftOver is that no Service has one of the addresses any more: nodes are about to withdraw them.
	isLeftOver bool
}

// rulesBuilder decides the rules.
type rulesBuilder struct {
	*Inputs
	groupByName map[string]*Group
	// setByName are the addresses that the manager allocates from a group, if it does.
	setByName map[string]*netipx.IPSet
	// storedGroups are the rules in NodeRoutings of groups that the manager does not allocate from,
	// storedSets their addresses, and withheld what NodeRoutings withhold.
	storedGroups map[string]v1.RoutingGroup
	storedSets   map[string]*netipx.IPSet
	withheld     *netipx.IPSet
}

// decideRules returns how nodes advertise addresses. It fails closed: an address that some rule
// restricts is not advertised to others because its group is not ready, has been deleted, or does not
// fit in. Of groups that the manager allocates from, all ranges have the rule; of an address that such a
// group does not contain, the address alone, by the rule of the group that it was allocated from.
func decideRules(in *Inputs) rules {
	r := newRulesBuilder(in)
	outside, isLive, unknown := r.addressesOutsidePools()
	var candidates []groupRule
	withheld := netipx.IPSetBuilder{}
	withheld.AddSet(unknown)
	for _, name := range slices.Sorted(maps.Keys(outside)) {
		c, more := r.ruleOutsidePools(name, outside[name])
		withheld.AddSet(more)
		c.isLeftOver = !isLive[name]
		candidates = append(candidates, c)
	}
	for i := range in.Groups {
		if g := &in.Groups[i]; len(g.Ranges) > 0 && (g.BGP != nil || g.NeedsHostRoutes) {
			candidates = append(candidates, groupRule{
				RoutingGroup: routingGroup(g, g.Ranges), createdAt: g.CreatedAt, isPlain: g.BGP == nil,
			})
		}
	}
	slices.SortStableFunc(candidates, func(a, b groupRule) int {
		return cmp.Or(
			order.TrueFirst(b.isLeftOver, a.isLeftOver), order.TrueFirst(b.isPlain, a.isPlain),
			order.TrueFirst(a.isOutsidePools, b.isOutsidePools),
			a.createdAt.Compare(b.createdAt), cmp.Compare(a.Name, b.Name),
		)
	})
	fitting := candidates[:min(len(candidates), v1.MaxRoutingGroups)]
	out := rules{conditions: map[string]metav1.Condition{}}
	for i := range in.Groups {
		if g := &in.Groups[i]; len(g.Ranges) > 0 && g.BGP != nil && in.lacksAllPeers(g.BGP.Peers) {
			out.conditions[g.Name] = noSuchPeerCondition(g.BGP.Peers)
		}
	}
	for _, c := range candidates[len(fitting):] {
		if !c.isLeftOver {
			out.conditions[c.Name] = tooManyGroupsCondition(&c)
		}
		if !c.isPlain {
			withheld.AddSet(setOf(c.Ranges))
		}
	}
	slices.SortStableFunc(fitting, func(a, b groupRule) int {
		return cmp.Or(order.TrueFirst(a.isOutsidePools, b.isOutsidePools), cmp.Compare(a.Name, b.Name))
	})
	for _, c := range fitting {
		out.groups = append(out.groups, c.RoutingGroup)
		if _, isBad := out.conditions[c.Name]; c.HostRoutes && !isBad {
			out.conditions[c.Name] = hostRoutesCondition()
		}
	}
	r.addServiceCommunities(&out)
	out.withheld = textlimit.Texts(boundRanges(buildSet(&withheld).Ranges(), v1.MaxWithheldRanges))
	out.unknownGroupsProblem = describeUnknown(r.ofServices(unknown))
	out.isProvisional = in.AreAgentsBehind &&
		(len(r.storedGroups) > 0 || len(r.withheld.Ranges()) > 0 || len(out.serviceCommunities) > 0)
	return out
}

func newRulesBuilder(in *Inputs) *rulesBuilder {
	r := &rulesBuilder{
		Inputs: in, groupByName: map[string]*Group{}, setByName: map[string]*netipx.IPSet{},
		storedGroups: map[string]v1.RoutingGroup{}, storedSets: map[string]*netipx.IPSet{},
	}
	for i := range in.Groups {
		g := &in.Groups[i]
		if r.groupByName[g.Name] = g; len(g.Ranges) > 0 {
			r.setByName[g.Name] = setOf(g.Ranges)
		}
	}
	var withheld []string
	for _, node := range slices.Sorted(maps.Keys(in.Routings)) {
		spec := &in.Routings[node].Spec
		withheld = append(withheld, spec.Withheld...)
		for _, rule := range spec.Groups {
			if r.setByName[rule.Name] != nil {
				continue
			}
			known, exists := r.storedGroups[rule.Name]
			if !exists {
				known = rule
			}
			known.Ranges = slices.Compact(slices.Sorted(slices.Values(slices.Concat(known.Ranges, rule.Ranges))))
			r.storedGroups[rule.Name] = known
		}
	}
	r.withheld = setOf(withheld)
	for name, rule := range r.storedGroups {
		r.storedSets[name] = setOf(rule.Ranges)
	}
	return r
}

// addressesOutsidePools returns the addresses that need rules of their own, as the ranges that the manager
// allocates from do not say how to advertise them: by the group that each was allocated from, and those of
// unknown groups. isLive is of the groups of which a Service has such an address.
func (r *rulesBuilder) addressesOutsidePools() (
	byGroup map[string]*netipx.IPSet, isLive map[string]bool, unknown *netipx.IPSet,
) {
	builders, unknownBuilder := map[string]*netipx.IPSetBuilder{}, netipx.IPSetBuilder{}
	isLive = map[string]bool{}
	builderOf := func(name string) *netipx.IPSetBuilder {
		if builders[name] == nil {
			builders[name] = &netipx.IPSetBuilder{}
		}
		return builders[name]
	}
	// While an agent has yet to withdraw addresses, they count although nothing asks for them any more.
	if r.AreAgentsBehind {
		for name, set := range r.storedSets {
			builderOf(name).AddSet(r.withoutPools(set))
		}
		unknownBuilder.AddSet(r.withoutPools(r.withheld))
	}
	for addr, a := range r.VirtualAddresses {
		name := r.groupOf(addr, a)
		if r.AreAgentsBehind {
			for _, b := range builders {
				b.Remove(addr)
			}
			unknownBuilder.Remove(addr)
		}
		group, set := r.groupByName[name], r.setByName[name]
		stored, isStored := r.storedGroups[name]
		switch {
		case set != nil && set.Contains(addr):
		case group == nil && isStored, group != nil && (group.BGP != nil || group.NeedsHostRoutes || stored.HostRoutes ||
			r.isRestrictedByOther(netipx.IPRangeFrom(addr, addr))):
			builderOf(name).Add(addr)
			isLive[name] = isLive[name] || a.HasService
		case group == nil && (len(r.Routings) == 0 || r.withheld.Contains(addr)):
			unknownBuilder.Add(addr)
		}
	}
	return buildNonEmptySets(builders), isLive, buildSet(&unknownBuilder)
}

// ofServices returns the addresses of a set that Services have.
func (r *rulesBuilder) ofServices(set *netipx.IPSet) *netipx.IPSet {
	b := netipx.IPSetBuilder{}
	for addr, a := range r.VirtualAddresses {
		if a.HasService && set.Contains(addr) {
			b.Add(addr)
		}
	}
	return buildSet(&b)
}

// buildNonEmptySets returns the sets that have addresses.
func buildNonEmptySets(builders map[string]*netipx.IPSetBuilder) map[string]*netipx.IPSet {
	sets := map[string]*netipx.IPSet{}
	for name, b := range builders {
		if set := buildSet(b); len(set.Ranges()) > 0 {
			sets[name] = set
		}
	}
	return sets
}

// withoutPools returns the addresses of a set that the manager allocates from no group.
func (r *rulesBuilder) withoutPools(set *netipx.IPSet) *netipx.IPSet {
	b := netipx.IPSetBuilder{}
	b.AddSet(set)
	for _, set := range r.setByName {
		b.RemoveSet(set)
	}
	return buildSet(&b)
}

// groupOf returns the name of the group that an address was allocated from. Of an address that no
// Service has any more, what announces it may name the group that contains it now.
func (r *rulesBuilder) groupOf(addr netip.Addr, a VirtualAddress) string {
	if a.HasService {
		return a.Group
	}
	for _, name := range slices.Sorted(maps.Keys(r.storedGroups)) {
		if r.storedSets[name].Contains(addr) {
			return name
		}
	}
	return a.Group
}

// isRestrictedByOther reports whether a group that the manager allocates from contains some of these addresses and
// says how to advertise them.
func (r *rulesBuilder) isRestrictedByOther(addresses ...netipx.IPRange) bool {
	for name, set := range r.setByName {
		if r.groupByName[name].BGP != nil && slices.ContainsFunc(addresses, set.OverlapsRange) {
			return true
		}
	}
	return false
}

// ruleOutsidePools returns the rule of a group for addresses outside of pools: as it is written, or as it was before
// the group was deleted. A group that is not ready may not say which routes it would need: it keeps those to single
// addresses. withheld are addresses that do not fit into the rule, and that nobody is to have without it.
func (r *rulesBuilder) ruleOutsidePools(name string, addresses *netipx.IPSet) (rule groupRule, withheld *netipx.IPSet) {
	rule = groupRule{RoutingGroup: r.storedGroups[name], isOutsidePools: true}
	if g := r.groupByName[name]; g != nil {
		hadHostRoutes := rule.HostRoutes
		rule.RoutingGroup, rule.createdAt = routingGroup(g, nil), g.CreatedAt
		rule.HostRoutes = rule.HostRoutes || hadHostRoutes
		rule.isPlain = g.BGP == nil && !r.isRestrictedByOther(addresses.Ranges()...)
	}
	ranges, more := addresses.Ranges(), netipx.IPSetBuilder{}
	fitting := ranges[:min(len(ranges), v1.MaxRoutingRanges)]
	if rule.Ranges = textlimit.Texts(fitting); !rule.isPlain {
		for _, one := range ranges[len(fitting):] {
			more.AddRange(one)
		}
	}
	return rule, buildSet(&more)
}

func routingGroup(g *Group, ranges []string) v1.RoutingGroup {
	rule := v1.RoutingGroup{Name: g.Name, Ranges: ranges, HostRoutes: g.NeedsHostRoutes}
	if g.BGP != nil {
		rule.ServiceGroupBGP = *g.BGP
	}
	return rule
}

func tooManyGroupsCondition(c *groupRule) metav1.Condition {
	what := "its addresses are not advertised"
	if c.isPlain {
		what = "no routes for single addresses are advertised"
	}
	return metav1.Condition{
		Type: v1.ConditionGroupAdvertised, Status: metav1.ConditionFalse, Reason: v1.ReasonTooManyGroups,
		Message: fmt.Sprintf(
			"%s, as %d older ServiceGroups say how theirs are advertised, the most that a node can follow: join groups that "+
				"say the same, or leave out spec.bgp", what, v1.MaxRoutingGroups,
		),
	}
}

// lacksAllPeers reports whether names are given, and no BGPPeer has any of them.
func (in *Inputs) lacksAllPeers(names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(in.Peers, func(p v1.BGPPeer) bool {
		return slices.Contains(names, p.Name)
	})
}

func noSuchPeerCondition(names []string) metav1.Condition {
	return metav1.Condition{
		Type: v1.ConditionGroupAdvertised, Status: metav1.ConditionFalse, Reason: v1.ReasonNoSuchPeer,
		Message: fmt.Sprintf(
			"its addresses are advertised to nobody: there is no BGPPeer %s, which spec.bgp.peers names",
			textlimit.List(names, maxNamedInMessage, ", "),
		),
	}
}

func hostRoutesCondition() metav1.Condition {
	return metav1.Condition{
		Type: v1.ConditionGroupAdvertised, Status: metav1.ConditionTrue, Reason: v1.ReasonHostRoutes,
		Message: "Services with externalTrafficPolicy Local have addresses of the group, and its routes lead to more " +
			"addresses than one: nodes advertise a route for each address besides. Routers that drop such routes send " +
			"traffic to nodes without an endpoint, too; aggregation /32, or /128, has no other routes",
	}
}

// describeUnknown says which addresses are withheld because nobody knows their ServiceGroup.
func describeUnknown(unknown *netipx.IPSet) string {
	ranges := unknown.Ranges()
	if len(ranges) == 0 {
		return ""
	}
	var texts []string
	for _, r := range ranges {
		texts = append(texts, textOf(r))
	}
	return fmt.Sprintf(
		"not advertised: %s, as the ServiceGroup does not exist any more that says how: create it again, or delete the "+
			"Services", strings.Join(textlimit.First(texts, maxNamedInMessage), ", "),
	)
}

// boundRanges returns ranges that contain all of the given ones, at most so many: instead of those that are
// too many of a family, the last one becomes longer.
func boundRanges(ranges []netipx.IPRange, most int) []netipx.IPRange {
	if len(ranges) <= most {
		return ranges
	}
	var out []netipx.IPRange
	for _, is4 := range []bool{true, false} {
		var family []netipx.IPRange
		for _, r := range ranges {
			if r.From().Is4() == is4 {
				family = append(family, r)
			}
		}
		if last := most/2 - 1; len(family) > last+1 {
			family[last] = netipx.IPRangeFrom(family[last].From(), family[len(family)-1].To())
			family = family[:last+1]
		}
		out = append(out, family...)
	}
	return out
}

// setOf returns the addresses of texts, each an address, a range first-last or a prefix.
func setOf(texts []string) *netipx.IPSet {
	b := netipx.IPSetBuilder{}
	for _, text := range texts {
		if r, err := netipx.ParseIPRange(text); err == nil {
			b.AddRange(r)
		} else if p, err := netip.ParsePrefix(text); err == nil {
			b.AddPrefix(p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			b.Add(a)
		}
	}
	return buildSet(&b)
}

// buildSet returns the set that a builder has: only ranges that are not valid would be an error.
func buildSet(b *netipx.IPSetBuilder) *netipx.IPSet {
	set, err := b.IPSet()
	if err != nil {
		return &netipx.IPSet{}
	}
	return set
}

// textOf returns a range as an address, if it is one, else as first-last.
func textOf(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return r.String()
}
