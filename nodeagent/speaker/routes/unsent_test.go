package routes_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestUnsent has a node with addresses, of which the library holds routes, and has not sent all of them to the
// neighbour of BGPPeer a.
func TestUnsent(t *testing.T) {
	t.Parallel()
	prefixes := func(texts string) (list []netip.Prefix) {
		for text := range strings.FieldsSeq(texts) {
			list = append(list, prefix(text))
		}
		return list
	}
	var alternating, sent, want []string
	for i := range 40 {
		alternating = append(alternating, fmt.Sprintf("10.0.0.%d/32", i))
		if i%2 == 1 {
			sent = append(sent, alternating[i])
		} else if i < 16 {
			want = append(want, fmt.Sprintf("10.0.0.%d-10.0.0.%d", i, i))
		}
	}
	want[7] = "10.0.0.14-10.0.0.38"
	const many = "10.0.0.1/32 10.0.0.2/32 10.0.0.9/32 10.0.1.1/32"
	group := func(bgp purelbv1.ServiceGroupBGP, ranges ...string) []purelbv1.RoutingGroup {
		return []purelbv1.RoutingGroup{{Name: "g", Ranges: ranges, ServiceGroupBGP: bgp}}
	}
	for _, row := range []struct {
		name, own, held, unsent string
		groups                  []purelbv1.RoutingGroup
		withheld                []string
		families, want          string
	}{
		{name: "all sent", own: many, held: many},
		{name: "none held", own: many, want: "10.0.0.1-10.0.1.1"},
		{name: "none sent", own: many, held: many, unsent: many, want: "10.0.0.1-10.0.1.1"},
		{name: "one not held", own: many, held: "10.0.0.1/32 10.0.0.2/32 10.0.1.1/32", want: "10.0.0.9-10.0.0.9"},
		{name: "two ranges", own: many, held: many, unsent: "10.0.0.1/32 10.0.0.2/32 10.0.1.1/32",
			want: "10.0.0.1-10.0.0.2 10.0.1.1-10.0.1.1"},
		{name: "a network leads to its addresses", own: "10.0.0.1/24 10.0.0.9/24 10.0.1.1/24",
			held: "10.0.0.0/24 10.0.1.0/24", unsent: "10.0.1.0/24", want: "10.0.1.1-10.0.1.1"},
		{name: "a network of others leads to them", own: "10.0.0.1/16 10.0.0.9/24", held: "10.0.0.0/16 10.0.0.0/24",
			unsent: "10.0.0.0/24"},
		{name: "a host route, without the network", own: "10.0.0.1/24 10.0.0.9/24", held: "10.0.0.0/24 10.0.0.9/32",
			unsent: "10.0.0.0/24", want: "10.0.0.1-10.0.0.1"},
		{name: "a route that lingers", own: "10.0.0.1/24", held: "10.0.0.1/32 10.0.0.0/24", unsent: "10.0.0.0/24"},
		{name: "both families", own: "10.0.0.1/32 fd01::1/128", held: "", families: "IPv4 IPv6",
			want: "10.0.0.1-10.0.0.1 fd01::1-fd01::1"},
		{name: "a family that the session does not carry", own: "10.0.0.1/32 fd01::1/128", held: "10.0.0.1/32"},
		{name: "a group for this neighbour", own: many, groups: group(purelbv1.ServiceGroupBGP{Peers: []string{"a"}},
			"10.0.0.0-10.0.0.9"), want: "10.0.0.1-10.0.1.1"},
		{name: "a group for others", own: many, groups: group(purelbv1.ServiceGroupBGP{Peers: []string{"b"}},
			"10.0.0.2-10.0.0.9"), want: "10.0.0.1-10.0.1.1"},
		{name: "a group for others alone", own: many, groups: group(purelbv1.ServiceGroupBGP{Peers: []string{"b"}},
			"10.0.0.0-10.0.1.9")},
		{name: "a group that is not advertised", own: many,
			groups: group(purelbv1.ServiceGroupBGP{Advertise: ptr.To(false)}, "10.0.0.0-10.0.0.9"), want: "10.0.1.1-10.0.1.1"},
		{name: "withheld", own: many, withheld: []string{"10.0.0.0-10.0.0.9"}, want: "10.0.1.1-10.0.1.1"},
		{name: "too many ranges", own: strings.Join(alternating, " "), held: strings.Join(sent, " "),
			want: strings.Join(want, " ")},
	} {
		held := routes.Config{Networks: routes.Networks(prefixes(row.own)), Peers: []routes.Peer{
			{Neighbour: first, RoutingPeer: purelbv1.RoutingPeer{Name: "a"}},
		}}
		for _, p := range prefixes(row.held) {
			held.Paths = append(held.Paths, routes.Path{Prefix: p})
		}
		session := routes.Session{
			Neighbour: first, State: purelbv1.SessionEstablished, Families: []purelbv1.IPFamily{"IPv4"},
			Unsent: prefixes(row.unsent),
		}
		if row.families != "" {
			session.Families = []purelbv1.IPFamily{"IPv4", "IPv6"}
		}
		routing := &purelbv1.NodeRouting{Spec: purelbv1.NodeRoutingSpec{Groups: row.groups, Withheld: row.withheld}}
		unsent := func() []string {
			return routes.Status(routing, held, []routes.Session{session}, false, "").Sessions[0].Unsent
		}
		if got := unsent(); !slices.Equal(got, strings.Fields(row.want)) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
		if session.State = "Active"; len(unsent()) > 0 {
			t.Errorf("%s: a session that is down lists %q", row.name, unsent())
		}
	}
}
