package routing_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

var hidden = &v1.ServiceGroupBGP{Advertise: ptr.To(false)}

// advertised are those of some addresses that a node advertises: those in no withheld range, unless the
// first group that has them is not advertised.
func advertised(spec v1.NodeRoutingSpec, addrs ...string) []string {
	hides := func(ranges []string, addr string) bool {
		return slices.ContainsFunc(ranges, func(text string) bool {
			r, err := netipx.ParseIPRange(text)
			return err == nil && r.Contains(netip.MustParseAddr(addr))
		})
	}
	var out []string
	for _, addr := range addrs {
		i := slices.IndexFunc(spec.Groups, func(g v1.RoutingGroup) bool { return hides(g.Ranges, addr) })
		isHidden := i >= 0 && spec.Groups[i].Advertise != nil && !*spec.Groups[i].Advertise
		if !isHidden && !hides(spec.Withheld, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// showRules says in one line each what rules a NodeRouting has.
func showRules(spec v1.NodeRoutingSpec) string {
	var out []string
	for _, g := range spec.Groups {
		text := fmt.Sprintf("%s %v", g.Name, g.Ranges)
		if g.Advertise != nil && !*g.Advertise {
			text += " hidden"
		}
		if g.HostRoutes {
			text += " hosts"
		}
		out = append(out, text)
	}
	if len(spec.Withheld) > 0 {
		out = append(out, fmt.Sprintf("withheld %v", spec.Withheld))
	}
	return strings.Join(out, "; ")
}

// TestRules has groups that are not ready, or were deleted while addresses of theirs are in use: the
// rules of these addresses stay.
func TestRules(t *testing.T) {
	const pool, other = "203.0.113.0-203.0.113.15", "203.0.113.8-203.0.113.15"
	internal := routing.Group{Name: "internal", Ranges: []string{pool}, BGP: hidden}
	notReady := internal
	notReady.Ranges = nil
	plainNotReady := routing.Group{Name: "internal"}
	restored := routing.Group{Name: "restored", Ranges: []string{other}}
	restoredOpen := restored
	restoredOpen.BGP = &v1.ServiceGroupBGP{Prepend: 1}
	hosts := restored
	hosts.NeedsHostRoutes = true
	hostsNotReady := routing.Group{Name: "restored", NeedsHostRoutes: true}
	hadHosts := map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{
		Groups: []v1.RoutingGroup{{Name: "restored", Ranges: []string{pool}, HostRoutes: true}},
	}}}
	rule := func(ranges ...string) map[string]*v1.NodeRouting {
		return map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{
			Groups: []v1.RoutingGroup{{Name: "internal", Ranges: ranges, ServiceGroupBGP: *hidden}},
		}}}
	}
	none := map[string]*v1.NodeRouting{"n1": {}}
	withheld := map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{Withheld: []string{"203.0.113.9-203.0.113.9"}}}}
	const nine, five = "203.0.113.9", "203.0.113.5"
	const ofNine, ofFive = "203.0.113.9-203.0.113.9", "203.0.113.5-203.0.113.5"
	for _, row := range []struct {
		name    string
		groups  []routing.Group
		stored  map[string]*v1.NodeRouting
		used    string // address=group, with ! of an address that no Service has any more
		behind  bool
		want    string
		unknown string
	}{
		{"ready", []routing.Group{internal}, none, nine + "=internal", false, "internal [" + pool + "] hidden", ""},
		{
			"overlapped by a group without rules", []routing.Group{notReady, restored}, rule(pool),
			nine + "=internal " + five + "=internal", false, "internal [" + ofFive + " " + ofNine + "] hidden", "",
		},
		{
			"overlapped by a group with rules", []routing.Group{notReady, restoredOpen}, rule(pool), nine + "=internal", false,
			"internal [" + ofNine + "] hidden; restored [" + other + "]", "",
		},
		{
			"overlapped, and its last Service is gone", []routing.Group{notReady, restoredOpen}, rule(ofNine),
			nine + "=restored!", false, "internal [" + ofNine + "] hidden; restored [" + other + "]", "",
		},
		{
			"not ready, and says nothing, in a group that does", []routing.Group{plainNotReady, restoredOpen}, none,
			nine + "=internal", false, "internal [" + ofNine + "]; restored [" + other + "]", "",
		},
		{"not ready, and says nothing", []routing.Group{plainNotReady, restored}, none, nine + "=internal", false, "", ""},
		{
			"Services with policy Local, and not ready", []routing.Group{hostsNotReady}, none, nine + "=restored", false,
			"restored [" + ofNine + "] hosts", "",
		},
		{
			"not ready, and had routes to single addresses", []routing.Group{{Name: "restored"}}, hadHosts, nine + "=restored",
			false, "restored [" + ofNine + "] hosts", "",
		},
		{
			"Services with policy Local, of which one is outside of the pool", []routing.Group{hosts}, none,
			nine + "=restored " + five + "=restored", false,
			"restored [" + ofFive + "] hosts; restored [" + other + "] hosts", "",
		},
		{"not ready, and nothing was stored", []routing.Group{notReady}, nil, nine + "=internal", false,
			"internal [" + ofNine + "] hidden", ""},
		{"not ready, and nothing is in use", []routing.Group{notReady}, rule(pool), "", false, "", ""},
		{
			"Services with policy Local", []routing.Group{hosts}, none, nine + "=restored", false,
			"restored [" + other + "] hosts", "",
		},
		{"deleted", nil, rule(pool), nine + "=internal", false, "internal [" + ofNine + "] hidden", ""},
		{"deleted, and its last Service is gone", nil, rule(ofNine), nine + "=internal!", false,
			"internal [" + ofNine + "] hidden", ""},
		{"deleted, and nothing is in use", nil, rule(ofNine), "", false, "", ""},
		{"deleted, and an agent has yet to withdraw", nil, rule(ofNine), "", true, "internal [" + ofNine + "] hidden", ""},
		{
			"deleted, an agent has yet to withdraw, and a new group has the pool", []routing.Group{restoredOpen}, rule(pool),
			nine + "=restored", true, "internal [203.0.113.0-203.0.113.7] hidden; restored [" + other + "]", "",
		},
		{"deleted, and had no rules", nil, none, nine + "=internal", false, "", ""},
		{
			"deleted, and nobody knows what it said", nil, nil, nine + "=internal", false, "withheld [" + ofNine + "]",
			"not advertised: 203.0.113.9, as the ServiceGroup does not exist any more that says how: create it again, or " +
				"delete the Services",
		},
		{
			"deleted, and withheld before", nil, withheld, nine + "=internal", false, "withheld [" + ofNine + "]",
			"not advertised: 203.0.113.9, as the ServiceGroup does not exist any more that says how: create it again, or " +
				"delete the Services",
		},
		{"withheld before, and not in use", nil, withheld, "", false, "", ""},
		{"made anew", []routing.Group{internal}, withheld, nine + "=internal", false, "internal [" + pool + "] hidden", ""},
		{
			"an address outside the pools that a group has now", []routing.Group{internal}, rule(pool),
			"198.51.100.1=internal", false,
			"internal [198.51.100.1-198.51.100.1] hidden; internal [" + pool + "] hidden", "",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := routing.Inputs{
				Nodes: []routing.Node{node("n1", 11, "")}, Now: began, Groups: row.groups, Routings: row.stored,
				Peers:           []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)},
				AreAgentsBehind: row.behind, VirtualAddresses: map[netip.Addr]routing.VirtualAddress{},
			}
			for _, word := range strings.Fields(row.used) {
				addr, group, _ := strings.Cut(word, "=")
				in.VirtualAddresses[netip.MustParseAddr(addr)] = routing.VirtualAddress{
					Group: strings.TrimSuffix(group, "!"), HasService: !strings.HasSuffix(group, "!"),
				}
			}
			result := routing.Render(in)
			if got := showRules(result.Specs["n1"]); got != row.want {
				t.Errorf("rules\n%s, not\n%s", got, row.want)
			}
			if c := result.Groups["restored"]; (c.Reason == v1.ReasonHostRoutes) != strings.Contains(row.want, "hosts") {
				t.Errorf("condition %+v", c)
			}
			if result.UnknownGroupsProblem != row.unknown {
				t.Errorf("unknown: %q, not %q", result.UnknownGroupsProblem, row.unknown)
			}
		})
	}
}

// TestTooManyGroups has more groups with rules than a node can follow: the addresses of the youngest are
// advertised to nobody, and its condition says so.
func TestTooManyGroups(t *testing.T) {
	in := routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, "")}, Now: began,
		Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)},
	}
	var addrs []string
	for i := range 65 {
		in.Groups = append(in.Groups, routing.Group{
			Name: fmt.Sprintf("g%02d", 64-i), CreatedAt: began.Add(time.Duration(i) * time.Second),
			Ranges: []string{fmt.Sprintf("203.0.%d.0-203.0.%d.255", i, i)}, BGP: hidden,
		})
		addrs = append(addrs, fmt.Sprintf("203.0.%d.7", i))
	}
	in.Groups = append(in.Groups, routing.Group{Name: "plain", Ranges: []string{"198.51.100.0/24"}})
	result := routing.Render(in)
	spec := result.Specs["n1"]
	if got := advertised(spec, append(addrs, "198.51.100.1")...); !slices.Equal(got, []string{"198.51.100.1"}) {
		t.Errorf("advertised %v", got)
	}
	if diff := cmp.Diff([]string{"203.0.64.0-203.0.64.255"}, spec.Withheld); diff != "" || len(spec.Groups) != 64 {
		t.Errorf("%d groups; withheld (-want +got):\n%s", len(spec.Groups), diff)
	}
	if c := result.Groups["g00"]; len(result.Groups) != 1 || c.Reason != v1.ReasonTooManyGroups || c.Status != "False" {
		t.Errorf("conditions %+v", result.Groups)
	}
	// One that is only to have routes for single addresses loses these, and nothing else.
	in.Groups = append(in.Groups[1:65:65], routing.Group{
		Name: "plain", Ranges: []string{"198.51.100.0/24"}, NeedsHostRoutes: true,
	})
	result = routing.Render(in)
	if got := advertised(result.Specs["n1"], "198.51.100.1"); len(got) != 1 || len(result.Specs["n1"].Withheld) > 0 {
		t.Errorf("advertised %v, withheld %v", got, result.Specs["n1"].Withheld)
	}
	if c := result.Groups["plain"]; len(result.Groups) != 1 || c.Reason != v1.ReasonTooManyGroups {
		t.Errorf("conditions %+v", result.Groups)
	}
	// So does one of which an address is outside of its pools.
	in.Groups[64].Ranges = nil
	in.VirtualAddresses = map[netip.Addr]routing.VirtualAddress{
		netip.MustParseAddr("198.51.100.1"): {Group: "plain", HasService: true},
	}
	result = routing.Render(in)
	if got := advertised(result.Specs["n1"], "198.51.100.1"); len(got) != 1 || len(result.Specs["n1"].Withheld) > 0 {
		t.Errorf("advertised %v, withheld %v", got, result.Specs["n1"].Withheld)
	}
}

// TestLeftOverGroup has as many groups with rules as a node can follow, and an address of a group that was deleted,
// which a node has yet to withdraw: that one gives way, and is withheld.
func TestLeftOverGroup(t *testing.T) {
	in := routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, "")}, Now: began, AreAgentsBehind: true,
		Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)},
		Routings: map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{Groups: []v1.RoutingGroup{
			{Name: "gone", Ranges: []string{"198.51.100.1"}, HostRoutes: true},
		}}}},
	}
	for i := range v1.MaxRoutingGroups {
		in.Groups = append(in.Groups, routing.Group{
			Name: fmt.Sprintf("g%02d", i), CreatedAt: began, Ranges: []string{fmt.Sprintf("203.0.%d.0-203.0.%d.255", i, i)},
			BGP: &v1.ServiceGroupBGP{},
		})
	}
	result := routing.Render(in)
	spec := result.Specs["n1"]
	if len(spec.Groups) != v1.MaxRoutingGroups || len(result.Groups) != 0 {
		t.Errorf("%d groups, conditions %+v", len(spec.Groups), result.Groups)
	}
	if got := advertised(spec, "198.51.100.1", "203.0.63.7"); !slices.Equal(got, []string{"203.0.63.7"}) {
		t.Errorf("advertised %v", got)
	}
	again := in
	again.Routings = map[string]*v1.NodeRouting{"n1": {Spec: spec}}
	result = routing.Render(again)
	if got := advertised(result.Specs["n1"], "198.51.100.1"); len(got) > 0 || result.UnknownGroupsProblem != "" {
		t.Errorf("once more: advertised %v, %s", got, result.UnknownGroupsProblem)
	}
	// With room, it keeps its rule.
	in.Groups = in.Groups[1:]
	result = routing.Render(in)
	if got := advertised(result.Specs["n1"], "198.51.100.1"); len(got) != 1 {
		t.Errorf("with room: advertised %v, rules %s", got, showRules(result.Specs["n1"]))
	}
}

// TestWithheldIsBounded withholds more ranges than a NodeRouting lists, of both families.
func TestWithheldIsBounded(t *testing.T) {
	in := routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, "")}, Now: began, VirtualAddresses: map[netip.Addr]routing.VirtualAddress{},
		Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)},
	}
	var addrs []string
	four, six := netip.MustParseAddr("198.51.100.0"), netip.MustParseAddr("2001:db8::")
	for range 200 {
		four, six = four.Next().Next(), six.Next().Next()
		addrs = append(addrs, four.String(), six.String())
		in.VirtualAddresses[four] = routing.VirtualAddress{Group: "gone"}
		in.VirtualAddresses[six] = routing.VirtualAddress{Group: "gone"}
	}
	spec := routing.Render(in).Specs["n1"]
	if got := advertised(spec, addrs...); len(got) > 0 || len(spec.Withheld) != v1.MaxWithheldRanges {
		t.Errorf("%d ranges are withheld; advertised %v", len(spec.Withheld), got)
	}
}
