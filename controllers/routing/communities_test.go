package routing_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// showCommunities says in one line which communities a NodeRouting has for which addresses.
func showCommunities(entries []v1.ServiceCommunities) string {
	var out []string
	for _, e := range entries {
		out = append(out, fmt.Sprint(e.Addresses, " ", e.Communities, " ", e.LargeCommunities))
	}
	return strings.Join(out, "; ")
}

func communitiesInputs(t *testing.T) routing.Inputs {
	return routing.Inputs{
		Nodes: []routing.Node{node("n1", 11, "")}, Now: began, VirtualAddresses: map[netip.Addr]routing.VirtualAddress{},
		Peers: []v1.BGPPeer{peer(t, "p", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1", 0)},
	}
}

// TestServiceCommunities has Services that ask for communities, of groups that allow some, allow none, or are gone.
func TestServiceCommunities(t *testing.T) {
	t.Parallel()
	open := routing.Group{
		Name: "open", Ranges: []string{"203.0.113.0-203.0.113.255"}, BGP: &v1.ServiceGroupBGP{},
		AllowServices: &v1.RouteCommunities{
			Communities: []v1.Community{"65000:2", "65000:1"}, LargeCommunities: []v1.LargeCommunity{"65000:1:1"},
		},
	}
	closed := routing.Group{Name: "closed", Ranges: []string{"198.51.100.0-198.51.100.255"}}
	stored := map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{ServiceCommunities: []v1.ServiceCommunities{{
		Addresses:        []string{"203.0.113.1-203.0.113.2", "203.0.113.4"},
		RouteCommunities: v1.RouteCommunities{Communities: []v1.Community{"65000:9"}},
	}}}}}
	for _, row := range []struct {
		name   string
		groups []routing.Group
		stored map[string]*v1.NodeRouting
		used   string // address=group=list, with ! behind the group if no Service has the address any more
		behind bool
		want   string
	}{
		{"nobody asks", []routing.Group{open}, nil, "203.0.113.1=open", false, ""},
		{"one asks", []routing.Group{open}, nil, "203.0.113.1=open=65000:1 203.0.113.2=open", false,
			"[203.0.113.1] [65000:1] []"},
		{"neighbours ask for the same", []routing.Group{open}, nil,
			"203.0.113.1=open=65000:1,65000:2 203.0.113.2=open=65000:2,65000:1 203.0.113.4=open=65000:1,65000:2", false,
			"[203.0.113.1-203.0.113.2 203.0.113.4] [65000:1 65000:2] []"},
		{"for different ones, of both families", []routing.Group{open}, nil,
			"203.0.113.1=open=65000:1 2001:db8::1=open=65000:1:1 203.0.113.2=open=65000:1", false,
			"[2001:db8::1] [] [65000:1:1]; [203.0.113.1-203.0.113.2] [65000:1] []"},
		{"for more than is allowed", []routing.Group{open}, nil, "203.0.113.1=open=65000:1,65000:3,x", false,
			"[203.0.113.1] [65000:1] []"},
		{"of a group that allows none", []routing.Group{open, closed}, nil, "198.51.100.1=closed=65000:1", false, ""},
		{"allowed by another group", []routing.Group{open, closed}, nil, "203.0.113.1=closed=65000:1", false, ""},
		{"not any more", []routing.Group{open}, stored, "203.0.113.1=open", false, ""},
		{"the Service is gone, and the address not yet", []routing.Group{open}, stored, "203.0.113.2=open!", false,
			"[203.0.113.2] [65000:9] []"},
		{"the group is gone", nil, stored, "203.0.113.4=open=65000:1 203.0.113.5=open=65000:1", false,
			"[203.0.113.4] [65000:9] []"},
		{"the address is gone", []routing.Group{open}, stored, "", false, ""},
		{"the address is gone, and an agent is behind", []routing.Group{open}, stored, "203.0.113.2=open=65000:1", true,
			"[203.0.113.1 203.0.113.4] [65000:9] []; [203.0.113.2] [65000:1] []"},
	} {
		in := communitiesInputs(t)
		in.Groups, in.Routings, in.AreAgentsBehind = row.groups, row.stored, row.behind
		for _, word := range strings.Fields(row.used) {
			parts := append(strings.Split(word, "="), "")
			in.VirtualAddresses[netip.MustParseAddr(parts[0])] = routing.VirtualAddress{
				Group: strings.TrimSuffix(parts[1], "!"), HasService: !strings.HasSuffix(parts[1], "!"), Communities: parts[2],
			}
		}
		result := routing.Render(in)
		got := showCommunities(result.Specs["n1"].ServiceCommunities)
		if strings.Join(sortedParts(got), "; ") != strings.Join(sortedParts(row.want), "; ") {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		if result.IsProvisional != row.behind {
			t.Errorf("%s: provisional: %t", row.name, result.IsProvisional)
		}
	}
}

// TestLeftOverCommunities has as many sets of communities as a node can follow, and an address without a Service that
// a node has yet to withdraw, with another set: that one gives way, and nobody complains.
func TestLeftOverCommunities(t *testing.T) {
	t.Parallel()
	in := communitiesInputs(t)
	in.AreAgentsBehind = true
	in.Routings = map[string]*v1.NodeRouting{"n1": {Spec: v1.NodeRoutingSpec{ServiceCommunities: []v1.ServiceCommunities{{
		Addresses: []string{"10.0.1.1"}, RouteCommunities: v1.RouteCommunities{Communities: []v1.Community{"65000:9"}},
	}}}}}
	allowed := &v1.RouteCommunities{}
	for i := range v1.MaxServiceCommunities {
		community := v1.Community(fmt.Sprintf("65001:%d", i))
		allowed.Communities = append(allowed.Communities, community)
		in.VirtualAddresses[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = routing.VirtualAddress{
			Group: "g", HasService: true, Communities: string(community), ServiceCreated: began,
		}
	}
	in.Groups = []routing.Group{{Name: "g", Ranges: []string{"10.0.0.0-10.0.255.255"}, AllowServices: allowed}}
	result := routing.Render(in)
	entries := showCommunities(result.Specs["n1"].ServiceCommunities)
	if len(result.Specs["n1"].ServiceCommunities) != v1.MaxServiceCommunities || strings.Contains(entries, "65000:9") {
		t.Errorf("%s", entries)
	}
	if len(result.Groups) != 0 {
		t.Errorf("conditions %+v", result.Groups)
	}
	// With room, it keeps them.
	delete(in.VirtualAddresses, netip.AddrFrom4([4]byte{10, 0, 0, 0}))
	entries = showCommunities(routing.Render(in).Specs["n1"].ServiceCommunities)
	if !strings.Contains(entries, "65000:9") {
		t.Errorf("with room: %s", entries)
	}
}

// TestManyServiceCommunities has 1,000 Services that ask for the same, and then more sets of communities, and more
// addresses, than a node can follow: those of the youngest Services are left out, and their group says so.
func TestManyServiceCommunities(t *testing.T) {
	t.Parallel()
	allowed := &v1.RouteCommunities{}
	for i := range 7 {
		allowed.Communities = append(allowed.Communities, v1.Community(fmt.Sprintf("65000:%d", i)))
	}
	fill := func(services int, list func(int) string) routing.Result {
		in := communitiesInputs(t)
		in.Groups = []routing.Group{{Name: "g", Ranges: []string{"10.0.0.0-10.0.255.255"}, AllowServices: allowed}}
		for i := range services {
			// The younger a Service, the lower its address.
			addr := netip.AddrFrom4([4]byte{10, 0, byte((services - i) / 256), byte((services - i) % 256)})
			in.VirtualAddresses[addr] = routing.VirtualAddress{
				Group: "g", HasService: true, Communities: list(i), ServiceCreated: began.Add(time.Duration(i) * time.Second),
			}
		}
		return routing.Render(in)
	}
	same := func(int) string { return "65000:1,65000:2" }
	bits := func(i int) string {
		var list []string
		for bit := range 7 {
			if (i+1)>>bit&1 == 1 {
				list = append(list, fmt.Sprintf("65000:%d", bit))
			}
		}
		return strings.Join(list, ",")
	}
	for _, row := range []struct {
		name     string
		services int
		list     func(int) string
		entries  int
		first    string
		leftOut  string
	}{
		{"1,000 alike", 1000, same, 1, "[10.0.0.1-10.0.3.232] [65000:1 65000:2] []", ""},
		{"as many sets as fit", 64, bits, 64, "", ""},
		{"two sets more", 66, bits, 64, "", "10.0.0.1, 10.0.0.2"},
		{"as many addresses as fit", 4096, same, 1, "[10.0.0.1-10.0.16.0] [65000:1 65000:2] []", ""},
		{"one address more", 4097, same, 1, "[10.0.0.2-10.0.16.1] [65000:1 65000:2] []", "10.0.0.1"},
	} {
		result := fill(row.services, row.list)
		entries := result.Specs["n1"].ServiceCommunities
		if len(entries) != row.entries || row.first != "" && showCommunities(entries) != row.first {
			t.Errorf("%s: %d entries: %s", row.name, len(entries), showCommunities(entries))
		}
		condition, exists := result.Groups["g"]
		if exists != (row.leftOut != "") || exists && (condition.Reason != v1.ReasonTooManyCommunities ||
			!strings.HasPrefix(condition.Message, "the routes to "+row.leftOut+" are without")) {
			t.Errorf("%s: condition %+v", row.name, condition)
		}
	}
}

// sortedParts are the parts of what showCommunities says, in an order that depends on nothing else.
func sortedParts(text string) []string {
	return slices.Sorted(slices.Values(strings.Split(text, "; ")))
}
