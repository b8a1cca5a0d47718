package gobgp

import (
	"context"
	"fmt"
	"net/netip"

	api "github.com/osrg/gobgp/v4/api"

	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// ownRoutesPolicy lets the library take the node's own routes, and no other: the library applies the import policy to
// both.
func ownRoutesPolicy() *api.Policy {
	return &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		Name: "own", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: &api.Actions{
			RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
		},
	}}}
}

// setRules replaces the statements of the policy that is applied to each route that is sent.
func (s *Server) setRules(ctx context.Context, rules []routes.Rule) error {
	request := &api.SetPoliciesRequest{Policies: []*api.Policy{{Name: exportPolicy}, ownRoutesPolicy()}}
	// A policy needs a statement; this one changes nothing.
	request.Policies[0].Statements = []*api.Statement{
		{Name: "none", Conditions: &api.Conditions{}, Actions: &api.Actions{}},
	}
	for i, r := range rules {
		neighbours := fmt.Sprintf("neighbours-%d", i)
		add := func(name string, conditions *api.Conditions) {
			conditions.NeighborSet = &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: neighbours}
			statement := &api.Statement{Name: name, Conditions: conditions, Actions: actionsOf(r)}
			request.Policies[0].Statements = append(request.Policies[0].Statements, statement)
		}
		name := fmt.Sprintf("rule-%d", i)
		request.DefinedSets = append(
			request.DefinedSets,
			&api.DefinedSet{
				DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: neighbours, List: textsWithoutZones(r.Neighbours),
			},
		)
		if len(r.Prefixes) == 0 {
			add(name, &api.Conditions{AfiSafiIn: familiesOf(r)})
			continue
		}
		// A set has prefixes of one family.
		for _, is4 := range []bool{true, false} {
			set := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: fmt.Sprintf("prefixes-%d-%t", i, is4)}
			for _, p := range r.Prefixes {
				if p.Addr().Is4() == is4 {
					set.Prefixes = append(
						set.Prefixes, &api.Prefix{IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()), MaskLengthMax: uint32(p.Bits())},
					) //nolint:gosec // at most 128
				}
			}
			if len(set.Prefixes) == 0 {
				continue
			}
			request.DefinedSets = append(request.DefinedSets, set)
			add(name+set.Name, &api.Conditions{PrefixSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set.Name}})
		}
	}
	if err := s.bgp.SetPolicies(ctx, request); err != nil {
		return fmt.Errorf("set the rules for neighbours: %w", err)
	}
	return nil
}

func actionsOf(r routes.Rule) *api.Actions {
	actions := &api.Actions{}
	if r.Reject {
		actions.RouteAction = api.RouteAction_ROUTE_ACTION_REJECT
	}
	if r.Prepend > 0 {
		actions.AsPrepend = &api.AsPrependAction{Asn: r.ASN, Repeat: r.Prepend}
	}
	if r.NextHop.IsValid() {
		actions.Nexthop = &api.NexthopAction{Address: r.NextHop.String()}
	}
	return actions
}

// familiesOf are the families of routes that a rule without prefixes is for.
func familiesOf(r routes.Rule) []*api.Family {
	switch {
	case !r.NextHop.IsValid():
		return nil
	case r.NextHop.Is4():
		return []*api.Family{apiFamily("IPv4")}
	}
	return []*api.Family{apiFamily("IPv6")}
}

// textsWithoutZones are addresses without zones, which the library does not take here.
func textsWithoutZones(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.WithZone("").String())
	}
	return out
}
