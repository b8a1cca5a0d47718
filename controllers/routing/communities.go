package routing

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/order"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// communityGrant is an address, and the communities that the routes to it are to have: those of its Service, as far as
// its ServiceGroup allows them.
type communityGrant struct {
	addr        netip.Addr
	group       string
	communities v1.RouteCommunities
	// serviceCreated is when the Service was made.
	serviceCreated time.Time
	// isLeftOver is that no Service has the address any more: nodes are about to withdraw it.
	isLeftOver bool
}

// addServiceCommunities adds the communities for which Services ask, as far as their ServiceGroups allow. The
// addresses with the same communities are one entry. If there are more sets of communities, or more addresses, than a
// node can follow, those of the youngest Services are left out, and their ServiceGroups say so.
func (r *rulesBuilder) addServiceCommunities(out *rules) {
	addresses := map[string]*netipx.IPSetBuilder{}
	communities := map[string]v1.RouteCommunities{}
	leftOut := map[string][]string{}
	for i, a := range r.communityGrants() {
		key := fmt.Sprint(a.communities)
		b := addresses[key]
		if i >= v1.MaxServiceCommunityAddresses || b == nil && len(addresses) == v1.MaxServiceCommunities {
			if !a.isLeftOver {
				leftOut[a.group] = append(leftOut[a.group], a.addr.String())
			}
			continue
		}
		if b == nil {
			b = &netipx.IPSetBuilder{}
			addresses[key], communities[key] = b, a.communities
		}
		b.Add(a.addr)
	}
	for _, key := range slices.Sorted(maps.Keys(addresses)) {
		entry := v1.ServiceCommunities{RouteCommunities: communities[key]}
		for _, of := range buildSet(addresses[key]).Ranges() {
			entry.Addresses = append(entry.Addresses, textOf(of))
		}
		out.serviceCommunities = append(out.serviceCommunities, entry)
	}
	for group, addrs := range leftOut {
		if _, isKnown := r.groupByName[group]; isKnown && out.conditions[group].Status != metav1.ConditionFalse {
			out.conditions[group] = tooManyCommunitiesCondition(addrs)
		}
	}
}

// communityGrants returns the addresses whose Services get communities, those of the oldest Services first. What an
// address had stays while nodes are about to withdraw it, as far as Services leave room, and after its ServiceGroup
// was deleted.
func (r *rulesBuilder) communityGrants() []communityGrant {
	type request struct{ group, list string }
	granted := map[request]v1.RouteCommunities{}
	stored := r.storedCommunities()
	var grants []communityGrant
	add := func(addr netip.Addr, a VirtualAddress, communities v1.RouteCommunities) {
		if !communities.IsEmpty() {
			grants = append(grants, communityGrant{addr, a.Group, communities, a.ServiceCreated, !a.HasService})
		}
	}
	for addr, a := range r.VirtualAddresses {
		group := r.groupByName[a.Group]
		if !a.HasService || group == nil {
			add(addr, a, stored[addr])
			continue
		}
		asked := request{a.Group, a.Communities}
		if _, isKnown := granted[asked]; !isKnown {
			granted[asked], _ = allocation.GrantCommunities(a.Communities, group.AllowServices)
		}
		add(addr, a, granted[asked])
	}
	if r.AreAgentsBehind {
		for addr, communities := range stored {
			if _, isKnown := r.VirtualAddresses[addr]; !isKnown {
				add(addr, VirtualAddress{}, communities)
			}
		}
	}
	slices.SortFunc(grants, func(a, b communityGrant) int {
		return cmp.Or(
			order.TrueFirst(b.isLeftOver, a.isLeftOver), a.serviceCreated.Compare(b.serviceCreated), a.addr.Compare(b.addr),
		)
	})
	return grants
}

// storedCommunities returns the communities of addresses in NodeRoutings, of which all have the same: as the first
// says that has any.
func (r *rulesBuilder) storedCommunities() map[netip.Addr]v1.RouteCommunities {
	stored := map[netip.Addr]v1.RouteCommunities{}
	for _, node := range slices.Sorted(maps.Keys(r.Routings)) {
		for _, entry := range r.Routings[node].Spec.ServiceCommunities {
			for _, of := range setOf(entry.Addresses).Ranges() {
				for addr := of.From(); of.Contains(addr) && len(stored) < v1.MaxServiceCommunityAddresses; addr = addr.Next() {
					stored[addr] = entry.RouteCommunities
				}
			}
		}
		if len(stored) > 0 {
			break
		}
	}
	return stored
}

func tooManyCommunitiesCondition(addrs []string) metav1.Condition {
	slices.Sort(addrs)
	return metav1.Condition{
		Type: v1.ConditionGroupAdvertised, Status: metav1.ConditionTrue, Reason: v1.ReasonTooManyCommunities,
		Message: fmt.Sprintf(
			"the routes to %s are without the communities for which their Services ask: a node can follow %d different sets "+
				"of communities, for %d addresses, and those of older Services count",
			textlimit.List(addrs, maxNamedInMessage, ", "), v1.MaxServiceCommunities, v1.MaxServiceCommunityAddresses,
		),
	}
}
