package routing

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// AdmitGroup checks how a ServiceGroup's addresses are advertised, given all BGPPeers, the other groups,
// and the Services with externalTrafficPolicy Local that have addresses of the group. before is the group that
// is changed, nil if it is new. Two groups may share a network, one route, only if they say the same of it. Of
// two that share one already AdmitGroup only warns: one of them has to be changed before the other.
func AdmitGroup(
	before, sg *v1.ServiceGroup, groups []v1.ServiceGroup, peers []v1.BGPPeer, withPolicyLocal []string,
) (warnings []string, errs field.ErrorList) {
	path := field.NewPath("spec", "bgp")
	group, _, parseErrs := allocation.ParseGroup(sg)
	if len(parseErrs) > 0 {
		return nil, nil // they are reported as such
	}
	var groupBefore allocation.Group
	if before != nil {
		groupBefore, _, _ = allocation.ParseGroup(before)
	}
	for i := range groups {
		other := &groups[i]
		if other.Name == sg.Name || other.Namespace != sg.Namespace || saysTheSame(bgpOf(sg), bgpOf(other)) {
			continue
		}
		theirs, _, _ := allocation.ParseGroup(other)
		if network, shared := sharedNetwork(&group, &theirs); shared {
			text := fmt.Sprintf("the addresses of ServiceGroup %s are in the same network %s, which is one route: both have "+
				"to say the same, or set another aggregation", other.Name, network)
			if _, already := sharedNetwork(&groupBefore, &theirs); already {
				warnings = append(warnings, fmt.Sprintf("%s: %s", path, text))
				continue
			}
			errs = append(errs, field.Invalid(path, field.OmitValueType{}, text))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	if len(withPolicyLocal) > 0 && len(peers) > 0 && group.Type == v1.PoolTypeRemote && HasAggregateRoutes(&group) {
		warnings = append(warnings, fmt.Sprintf(
			"aggregation: the group's routes lead to more addresses than one, and externalTrafficPolicy of %s is Local: nodes "+
				"advertise a route for each address besides", textlimit.List(withPolicyLocal, maxNamedInMessage, ", "),
		))
	}
	if bgp := bgpOf(sg); bgp != nil {
		warnings = append(warnings, groupWarnings(bgp, peers, path)...)
	}
	return warnings, nil
}

// bgpOf returns how the addresses of a ServiceGroup are advertised, or nil if it does not say. What Services may
// ask for does not change the route of a network.
func bgpOf(sg *v1.ServiceGroup) *v1.ServiceGroupBGP {
	if sg.Spec.BGP == nil {
		return nil
	}
	return &sg.Spec.BGP.ServiceGroupBGP
}

func groupWarnings(bgp *v1.ServiceGroupBGP, peers []v1.BGPPeer, path *field.Path) []string {
	var warnings []string
	hasInternal, hasPeer := false, false
	for _, name := range bgp.Peers {
		if !slices.ContainsFunc(peers, func(p v1.BGPPeer) bool { return p.Name == name }) {
			warnings = append(warnings, fmt.Sprintf("%s: there is no BGPPeer %s", path.Child("peers"), name))
		}
	}
	for i := range peers {
		if len(bgp.Peers) > 0 && !slices.Contains(bgp.Peers, peers[i].Name) {
			continue
		}
		own := uint32(0)
		if peers[i].Spec.MyASN != nil {
			own = uint32(*peers[i].Spec.MyASN) //nolint:gosec // the schema bounds it
		}
		hasPeer = true
		hasInternal = hasInternal || isInternal(peers[i].Spec.PeerASN, own) ||
			own == 0 && peers[i].Spec.PeerASN != v1.PeerASNExternal
	}
	if bgp.LocalPref != nil && hasPeer && !hasInternal {
		warnings = append(
			warnings,
			fmt.Sprintf(
				"%s: has no effect, as all these BGPPeers are external: use med, prepend or communities", path.Child("localPref"),
			),
		)
	}
	return warnings
}

// HasAggregateRoutes reports whether a route of a group leads to more than one address.
func HasAggregateRoutes(group *allocation.Group) bool {
	return slices.ContainsFunc(group.Ranges, func(r allocation.Range) bool { return r.Mask < r.Addrs.From().BitLen() })
}

// saysTheSame compares how two groups are advertised; absent is the same as all defaults.
func saysTheSame(a, b *v1.ServiceGroupBGP) bool {
	normal := func(bgp *v1.ServiceGroupBGP) v1.ServiceGroupBGP {
		if bgp == nil {
			return v1.ServiceGroupBGP{}
		}
		n := *bgp
		if n.Advertise != nil && *n.Advertise {
			n.Advertise = nil
		}
		n.Peers, n.Communities = slices.Sorted(slices.Values(n.Peers)), slices.Sorted(slices.Values(n.Communities))
		n.LargeCommunities = slices.Sorted(slices.Values(n.LargeCommunities))
		return n
	}
	return equality.Semantic.DeepEqual(normal(a), normal(b))
}

// sharedNetwork returns a network in which both groups have addresses on the virtual interface.
func sharedNetwork(a, b *allocation.Group) (netip.Prefix, bool) {
	for _, x := range a.Ranges {
		for _, y := range b.Ranges {
			if x.Mask != y.Mask || x.Family() != y.Family() {
				continue
			}
			first := netip.PrefixFrom(x.Addrs.From(), x.Mask).Masked().Addr()
			last := netip.PrefixFrom(x.Addrs.To(), x.Mask).Masked().Addr()
			otherFirst := netip.PrefixFrom(y.Addrs.From(), y.Mask).Masked().Addr()
			otherLast := netip.PrefixFrom(y.Addrs.To(), y.Mask).Masked().Addr()
			if !last.Less(otherFirst) && !otherLast.Less(first) && x.Mask < x.Addrs.From().BitLen() {
				shared := first
				if shared.Less(otherFirst) {
					shared = otherFirst
				}
				return netip.PrefixFrom(shared, x.Mask), true
			}
		}
	}
	return netip.Prefix{}, false
}
