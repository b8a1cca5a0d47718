package routing_test

import (
	"net/netip"
	"testing"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// TestNodeWithoutRule has a group whose addresses are to be kept from routers, and what two nodes have been told of it.
func TestNodeWithoutRule(t *testing.T) {
	const pool, pool6 = "203.0.113.0-203.0.113.15", "2001:db8:1::/64"
	told := func(bgp v1.ServiceGroupBGP, ranges ...string) v1.NodeRoutingSpec {
		return v1.NodeRoutingSpec{Groups: []v1.RoutingGroup{
			{Name: "other", Ranges: []string{"0.0.0.0/0"}, ServiceGroupBGP: *hidden},
			{Name: "internal", Ranges: ranges, ServiceGroupBGP: bgp},
		}}
	}
	nothing, all := v1.NodeRoutingSpec{}, told(*hidden, pool, pool6)
	half := told(*hidden, "203.0.113.0-203.0.113.7")
	withheld := v1.NodeRoutingSpec{Withheld: []string{"203.0.113.8-203.0.113.9"}}
	for _, row := range []struct {
		name        string
		first, last v1.NodeRoutingSpec
		addr, want  string
	}{
		{"both know", all, all, "203.0.113.9", ""},
		{"both know, IPv6", all, all, "2001:db8:1::9", ""},
		{"none knows", nothing, nothing, "203.0.113.9", "n1"},
		{"the last one does not know", all, nothing, "203.0.113.9", "n2"},
		{"the last one does not know, IPv6", all, half, "2001:db8:1::9", "n2"},
		{"one knows of other addresses", half, all, "203.0.113.9", "n1"},
		{"it knows of these", half, all, "203.0.113.7", ""},
		{"one was told otherwise before", all, told(v1.ServiceGroupBGP{Prepend: 1}, pool), "203.0.113.9", "n2"},
		{"one withholds them", all, withheld, "203.0.113.9", ""},
		{"one withholds others", all, withheld, "203.0.113.10", "n2"},
		{"the address is in no range of the group", nothing, all, "203.0.113.99", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			groups := []routing.Group{
				{Name: "internal", Ranges: []string{pool, pool6}, BGP: hidden},
				{Name: "plain", Ranges: []string{"198.51.100.0/24"}}, {Name: "not ready", BGP: hidden},
			}
			addr := netip.MustParseAddr(row.addr)
			routings := map[string]*v1.NodeRouting{"n2": {Spec: row.last}, "n1": {Spec: row.first}}
			ruled := routing.NewRuledAddresses(groups, routings)
			for range 2 {
				if got := ruled.NodeWithoutRule("internal", addr); got != row.want {
					t.Errorf("not told: %q, not %q", got, row.want)
				}
			}
			for group, of := range map[string]netip.Addr{
				"plain": netip.MustParseAddr("198.51.100.1"), "not ready": addr, "deleted": addr,
			} {
				if got := ruled.NodeWithoutRule(group, of); got != "" {
					t.Errorf("a group that is %s waits for %s", group, got)
				}
			}
			if got := routing.NewRuledAddresses(groups, nil).NodeWithoutRule("internal", addr); got != "" {
				t.Errorf("without speakers it waits for %s", got)
			}
		})
	}
}
