package routes_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/plan"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

var (
	compareAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
	first, second    = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func TestNetworks(t *testing.T) {
	want := []routes.Network{
		{Prefix: prefix("198.51.100.1/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		{
			Prefix:    prefix("203.0.113.0/24"),
			Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.9")},
		},
		{Prefix: prefix("2001:db8::1/128"), Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::1")}},
	}
	got := routes.Networks([]netip.Prefix{
		prefix("203.0.113.9/24"), prefix("203.0.113.5/24"), prefix("198.51.100.1/32"), prefix("2001:db8::1/128"),
	})
	if diff := cmp.Diff(want, got, compareAddresses); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

// inputs has two neighbours: a, external, and b, internal.
func inputs() routes.Inputs {
	return routes.Inputs{
		Spec: purelbv1.NodeRoutingSpec{Peers: []purelbv1.RoutingPeer{
			{Name: "a", Address: first.String(), PeerASN: 65000, MyASN: 65001, RestartSeconds: 30}, {
				Name: "b", Address: second.String(), PeerASN: 65001, MyASN: 65001,
			},
		}},
		Networks: []routes.Network{
			{Prefix: prefix("198.51.100.1/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
			{Prefix: prefix("203.0.113.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.5")}},
		},
		Password:        func(string) (string, bool) { return "", false },
		RouterAddressOn: func(string) (netip.Addr, error) { return netip.Addr{}, errors.New("no router yet") },
	}
}

func TestAttributes(t *testing.T) {
	group := func(bgp purelbv1.ServiceGroupBGP) []purelbv1.RoutingGroup {
		return []purelbv1.RoutingGroup{
			{Name: "g", Ranges: []string{"203.0.113.4-203.0.113.7", "2001:db8::/120"}, ServiceGroupBGP: bgp},
		}
	}
	plain := routes.Path{Prefix: prefix("198.51.100.1/32")}
	marked := func(p routes.Path) []routes.Path {
		p.Prefix = prefix("203.0.113.0/24")
		return []routes.Path{plain, p}
	}
	for _, row := range []struct {
		name  string
		bgp   purelbv1.ServiceGroupBGP
		drain routes.DrainPhase
		want  []routes.Path
		rules []routes.Rule
	}{
		{"nothing said", purelbv1.ServiceGroupBGP{}, routes.NotDraining, marked(routes.Path{}), nil},
		{"everything", purelbv1.ServiceGroupBGP{
			Advertise: ptr.To(true), Communities: []purelbv1.Community{"no-export", "65001:7"},
			LargeCommunities: []purelbv1.LargeCommunity{"4200000000:2:3", "1:2:3"},
			LocalPref:        ptr.To[int64](4294967295), MED: ptr.To[int64](0),
		}, routes.NotDraining, marked(routes.Path{
			Communities: []uint32{65001<<16 | 7, 0xFFFFFF01}, LargeCommunities: []routes.LargeCommunity{
				{1, 2, 3}, {4200000000, 2, 3},
			}, LocalPref: ptr.To[uint32](4294967295), MED: ptr.To[uint32](0),
		}), nil},
		{"not advertised", purelbv1.ServiceGroupBGP{Advertise: ptr.To(false)}, routes.NotDraining, []routes.Path{plain}, nil},
		{"some neighbours", purelbv1.ServiceGroupBGP{Peers: []string{"b", "x"}}, routes.NotDraining, marked(routes.Path{}),
			[]routes.Rule{{Prefixes: []netip.Prefix{prefix("203.0.113.0/24")}, Neighbours: []netip.Addr{first}, Reject: true}}},
		{"prepended towards external neighbours", purelbv1.ServiceGroupBGP{Prepend: 2}, routes.NotDraining,
			marked(routes.Path{}),
			[]routes.Rule{
				{Prefixes: []netip.Prefix{prefix("203.0.113.0/24")}, Neighbours: []netip.Addr{first}, Prepend: 2, ASN: 65001},
			}},
		{"draining", purelbv1.ServiceGroupBGP{
			Communities: []purelbv1.Community{"graceful-shutdown"}, LocalPref: ptr.To[int64](9),
		}, routes.Avoid, []routes.Path{
			{Prefix: plain.Prefix, Communities: []uint32{0xFFFF0000}, LocalPref: new(uint32)},
			{Prefix: prefix("203.0.113.0/24"), Communities: []uint32{0xFFFF0000}, LocalPref: new(uint32)},
		}, nil},
		{"drained", purelbv1.ServiceGroupBGP{Prepend: 1}, routes.Withdrawn, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := inputs()
			in.Spec.Groups, in.Drain = group(row.bgp), row.drain
			d := routes.Decide(in, in.Neighbours())
			if diff := cmp.Diff(row.want, d.Paths, compareAddresses); diff != "" {
				t.Errorf("paths (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.rules, d.Rules, compareAddresses); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
		})
	}
}

// TestServiceCommunities adds what Services ask for to routes to single addresses, besides what their group says: not
// to the route to a network, which is not that of one Service.
func TestServiceCommunities(t *testing.T) {
	const exported, large = purelbv1.Community("no-export"), purelbv1.LargeCommunity("1:2:3")
	entry := func(community purelbv1.Community, addresses ...string) purelbv1.ServiceCommunities {
		return purelbv1.ServiceCommunities{Addresses: addresses, RouteCommunities: purelbv1.RouteCommunities{
			Communities: []purelbv1.Community{community}, LargeCommunities: []purelbv1.LargeCommunity{large},
		}}
	}
	ofGroup := purelbv1.RoutingGroup{Name: "g", Ranges: []string{"203.0.113.0-203.0.113.255"}, HostRoutes: true}
	ofGroup.Communities = []purelbv1.Community{"65001:7", exported}
	in := inputs()
	in.Networks = []routes.Network{
		{Prefix: prefix("198.51.100.1/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		{Prefix: prefix("198.51.100.2/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.2")}},
		{Prefix: prefix("203.0.113.0/24"), Addresses: []netip.Addr{
			netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.9"),
		}},
		{Prefix: prefix("2001:db8::1/128"), Addresses: []netip.Addr{netip.MustParseAddr("2001:db8::1")}},
	}
	in.Spec.Groups = []purelbv1.RoutingGroup{ofGroup}
	in.Spec.ServiceCommunities = []purelbv1.ServiceCommunities{
		entry("65001:9", "198.51.100.2", "2001:db8::-2001:db8::f", "oops"), entry(exported, "203.0.113.4-203.0.113.5"),
	}
	numbers := []routes.LargeCommunity{{1, 2, 3}}
	group := []uint32{65001<<16 | 7, 0xFFFFFF01}
	asked := []uint32{65001<<16 | 9}
	want := []routes.Path{
		{Prefix: prefix("198.51.100.1/32")},
		{Prefix: prefix("198.51.100.2/32"), Communities: asked, LargeCommunities: numbers},
		{Prefix: prefix("203.0.113.0/24"), Communities: group},
		{Prefix: prefix("203.0.113.5/32"), Communities: group, LargeCommunities: numbers},
		{Prefix: prefix("203.0.113.9/32"), Communities: group},
		{Prefix: prefix("2001:db8::1/128"), Communities: asked, LargeCommunities: numbers},
	}
	d := routes.Decide(in, in.Neighbours())
	if diff := cmp.Diff(want, d.Paths, compareAddresses); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	// A Service that asks for something else changes its route, which stays.
	in.Spec.ServiceCommunities = in.Spec.ServiceCommunities[1:]
	changes := routes.Diff(d, routes.Decide(in, in.Neighbours()), true)
	want = []routes.Path{{Prefix: prefix("198.51.100.2/32")}, {Prefix: prefix("2001:db8::1/128")}}
	if diff := cmp.Diff(want, changes.AddPaths, compareAddresses); diff != "" || len(changes.RemovePaths) > 0 {
		t.Errorf("removed %v; added (-want +got):\n%s", changes.RemovePaths, diff)
	}
}

// TestWithheld advertises to nobody what is withheld, whatever a group says of it.
func TestWithheld(t *testing.T) {
	in := inputs()
	in.Spec.Groups = []purelbv1.RoutingGroup{{Name: "g", Ranges: []string{"203.0.113.0/24"}}}
	in.Spec.Withheld = []string{"203.0.113.5-203.0.113.9"}
	want := []routes.Path{{Prefix: prefix("198.51.100.1/32")}}
	if diff := cmp.Diff(want, routes.Decide(in, in.Neighbours()).Paths, compareAddresses); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

// TestIgnored advertises as if the node did not have the addresses that are ignored: a network that has others stays,
// with the attributes of the lowest of those.
func TestIgnored(t *testing.T) {
	in := inputs()
	in.Networks = []routes.Network{
		{Prefix: prefix("198.51.100.1/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		{Prefix: prefix("203.0.113.0/24"), Addresses: []netip.Addr{
			netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.20"),
		}},
	}
	in.Spec.Groups = []purelbv1.RoutingGroup{
		{
			Name: "a", Ranges: []string{"203.0.113.5-203.0.113.5"}, HostRoutes: true,
			ServiceGroupBGP: purelbv1.ServiceGroupBGP{MED: ptr.To[int64](7)},
		},
		{Name: "b", Ranges: []string{"203.0.113.6-203.0.113.31"}, HostRoutes: true},
	}
	in.Spec.Ignored = []string{"198.51.100.1-198.51.100.1", "203.0.113.5-203.0.113.9"}
	want := []routes.Path{{Prefix: prefix("203.0.113.0/24")}, {Prefix: prefix("203.0.113.20/32")}}
	d := routes.Decide(in, in.Neighbours())
	if diff := cmp.Diff(want, d.Paths, compareAddresses); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	wantNetworks := []routes.Network{
		{Prefix: prefix("203.0.113.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.20")}},
	}
	if diff := cmp.Diff(wantNetworks, d.Networks, compareAddresses); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

// TestHostRoutes advertises a route for each address of a group that wants that, as the address's own
// group says, besides that of the network.
func TestHostRoutes(t *testing.T) {
	in := inputs()
	in.Networks = []routes.Network{
		{Prefix: prefix("198.51.100.1/32"), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		{Prefix: prefix("203.0.113.0/24"), Addresses: []netip.Addr{
			netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.20"),
			netip.MustParseAddr("203.0.113.30"), netip.MustParseAddr("203.0.113.40"),
		}},
	}
	in.Spec.Groups = []purelbv1.RoutingGroup{
		{
			Name: "a", Ranges: []string{"203.0.113.0-203.0.113.15", "198.51.100.0/24"}, HostRoutes: true,
			ServiceGroupBGP: purelbv1.ServiceGroupBGP{MED: ptr.To[int64](7), Peers: []string{"a"}},
		},
		{Name: "b", Ranges: []string{"203.0.113.16-203.0.113.31"}, HostRoutes: true},
	}
	in.Spec.Withheld = []string{"203.0.113.30-203.0.113.30"}
	med := ptr.To[uint32](7)
	want := []routes.Path{
		{Prefix: prefix("198.51.100.1/32"), MED: med}, {Prefix: prefix("203.0.113.0/24"), MED: med},
		{Prefix: prefix("203.0.113.5/32"), MED: med}, {Prefix: prefix("203.0.113.9/32"), MED: med},
		{Prefix: prefix("203.0.113.20/32")},
	}
	d := routes.Decide(in, in.Neighbours())
	if diff := cmp.Diff(want, d.Paths, compareAddresses); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	rules := []routes.Rule{{Reject: true, Neighbours: []netip.Addr{second}, Prefixes: []netip.Prefix{
		prefix("198.51.100.1/32"), prefix("203.0.113.0/24"), prefix("203.0.113.5/32"), prefix("203.0.113.9/32"),
	}}}
	if diff := cmp.Diff(rules, d.Rules, compareAddresses); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestPeers(t *testing.T) {
	in := inputs()
	in.IsRestart = true
	in.Spec.Peers = append(in.Spec.Peers,
		purelbv1.RoutingPeer{Name: "secret", Address: "192.0.2.3", PasswordFile: "secret"},
		purelbv1.RoutingPeer{Name: "missing", Address: "192.0.2.4", PasswordFile: "missing"},
		purelbv1.RoutingPeer{Name: "unnumbered", Interface: "eth1"},
		purelbv1.RoutingPeer{Name: "none", Interface: "eth2"},
		purelbv1.RoutingPeer{Name: "twice", Address: first.String()},
		purelbv1.RoutingPeer{Name: "gateway", Address: "fe80::9", Interface: "eth0", NextHop: "192.0.2.11"},
	)
	in.Password = func(file string) (string, bool) { return "pw of " + file, file == "secret" }
	in.RouterAddressOn = func(iface string) (netip.Addr, error) {
		if iface == "eth1" {
			return netip.MustParseAddr("fe80::1"), nil
		}
		return netip.Addr{}, errors.New("no router on " + iface)
	}
	d := routes.Decide(in, in.Neighbours())
	var got []string
	for _, p := range d.Peers {
		got = append(got, fmt.Sprint(p.Name, " ", p.Neighbour, " ", p.Password, " ", p.SetsRestartState))
	}
	want := []string{
		"a 192.0.2.1  true", "b 192.0.2.2  false", "secret 192.0.2.3 pw of secret false", "unnumbered fe80::1%eth1  false",
		"gateway fe80::9%eth0  false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("neighbours (-want +got):\n%s", diff)
	}
	got = nil
	for _, w := range d.Waiting {
		got = append(got, w.Peer.Name+": "+w.Why)
	}
	want = []string{
		"missing: the password is not on the node yet: see passwordSecretRef of the BGPPeer", "none: no router on eth2",
		"twice: 192.0.2.1 is the neighbour of another BGPPeer already",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	rules := []routes.Rule{
		{Neighbours: []netip.Addr{netip.MustParseAddr("fe80::9%eth0")}, NextHop: netip.MustParseAddr("192.0.2.11")},
	}
	if diff := cmp.Diff(rules, d.Rules, compareAddresses); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

// TestPasswords has a file with a password that is not there, or is: a session that there is goes on until it is.
func TestPasswords(t *testing.T) {
	for _, row := range []struct {
		name string
		file string // what is in it
		held []routes.Peer
		want string
	}{
		{"no session, no file", "", nil, "waits"},
		{"no session", "new", nil, "new"},
		{"a session, no file", "", []routes.Peer{{Neighbour: first, Password: "old"}}, "old"},
		{"a session without a password, no file", "", []routes.Peer{{Neighbour: first}}, ""},
		{"another session, no file", "", []routes.Peer{{Neighbour: second, Password: "old"}}, "waits"},
		{"a session", "new", []routes.Peer{{Neighbour: first, Password: "old"}}, "new"},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := inputs()
			in.Spec.Peers = []purelbv1.RoutingPeer{{Name: "p", Address: first.String(), PasswordFile: "p"}}
			in.Held = row.held
			in.Password = func(string) (string, bool) { return row.file, row.file != "" }
			d, got := routes.Decide(in, in.Neighbours()), "waits"
			if len(d.Peers) == 1 && len(d.Waiting) == 0 {
				got = d.Peers[0].Password
			}
			if got != row.want {
				t.Errorf("the password is %q, not %q", got, row.want)
			}
		})
	}
}

// TestSourceInterface has neighbours that the node reaches from an address of its interface lo.
func TestSourceInterface(t *testing.T) {
	at := func(iface, text string, change func(*plan.Address)) plan.Address {
		a := plan.Address{Interface: iface, Prefix: prefix(text)}
		if change != nil {
			change(&a)
		}
		return a
	}
	ours, temporary := func(a *plan.Address) { a.IsOurs = true }, func(a *plan.Address) { a.IsTemporary = true }
	addresses := []plan.Address{
		at("eth0", "10.0.0.1/24", nil), at("lo", "127.0.0.1/8", nil), at("lo", "10.9.9.8/32", nil),
		at("lo", "10.9.9.7/32", nil), at("lo", "10.9.9.1/32", ours), at("lo", "::1/128", nil), at("lo", "fe80::1/64", nil),
		at("lo", "2001:db8::1/128", temporary), at("lo", "2001:db8::7/128", nil), at("eth0", "169.254.255.0/31", nil),
	}
	for _, row := range []struct{ name, neighbour, iface, source, want, why string }{
		{"IPv4", "192.0.2.1", "lo", "", "10.9.9.7", ""},
		{"IPv6", "2001:db8:1::1", "lo", "", "2001:db8::7", ""},
		{"link-local", "fe80::9", "lo", "", "", ""},
		{"link-local of IPv4", "169.254.255.1", "eth0", "", "169.254.255.0", ""},
		{"link-local of IPv4, from another interface", "169.254.255.1", "lo", "", "10.9.9.7", ""},
		{"by its address", "192.0.2.1", "", "10.9.9.8", "10.9.9.8", ""},
		{
			"no such family", "2001:db8:1::1", "eth0", "", "",
			"the node's interface eth0 has no IPv6 address of its own: see sourceInterface of the BGPPeer",
		},
		{
			"no such interface", "192.0.2.1", "eth9", "", "",
			"the node's interface eth9 has no IPv4 address of its own: see sourceInterface of the BGPPeer",
		},
	} {
		in := inputs()
		in.AddressesOn = func(iface string) ([]plan.Address, error) {
			return slices.DeleteFunc(slices.Clone(addresses), func(a plan.Address) bool { return a.Interface != iface }), nil
		}
		in.Spec.Peers = []purelbv1.RoutingPeer{
			{Name: "a", Address: row.neighbour, SourceInterface: row.iface, SourceAddress: row.source},
		}
		got, why := "", ""
		d := routes.Decide(in, in.Neighbours())
		if len(d.Peers) == 1 {
			got = d.Peers[0].SourceAddress
		}
		if len(d.Waiting) == 1 {
			why = d.Waiting[0].Why
		}
		if got != row.want || why != row.why || len(d.Peers)+len(d.Waiting) != 1 {
			t.Errorf("%s: from %q, waiting %q", row.name, got, why)
		}
	}
}

// TestSourceIsAway has a source interface without an address: a session that there is keeps the address that it was
// opened from, and the others wait.
func TestSourceIsAway(t *testing.T) {
	held := func(neighbour netip.Addr, iface string) []routes.Peer {
		return []routes.Peer{{
			Neighbour: neighbour, RoutingPeer: purelbv1.RoutingPeer{SourceInterface: iface, SourceAddress: "10.9.9.7"},
		}}
	}
	for _, row := range []struct {
		name      string
		addresses []plan.Address
		held      []routes.Peer
		want      string
	}{
		{"no session", nil, nil, "waits"},
		{"a session", nil, held(first, "eth0"), "10.9.9.7"},
		{"another session", nil, held(second, "eth0"), "waits"},
		{"a session from another interface", nil, held(first, "lo"), "waits"},
		{
			"a session, and another address", []plan.Address{{Interface: "eth0", Prefix: prefix("10.9.9.8/24")}},
			held(first, "eth0"), "10.9.9.8",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := inputs()
			in.Spec.Peers = []purelbv1.RoutingPeer{{Name: "p", Address: first.String(), SourceInterface: "eth0"}}
			in.Held = row.held
			in.AddressesOn = func(string) ([]plan.Address, error) { return row.addresses, nil }
			d, got := routes.Decide(in, in.Neighbours()), "waits"
			if len(d.Peers) == 1 && len(d.Waiting) == 0 {
				got = d.Peers[0].SourceAddress
			}
			if got != row.want {
				t.Errorf("the source is %q, not %q", got, row.want)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	a, b := routes.Path{Prefix: prefix("198.51.100.1/32")}, routes.Path{Prefix: prefix("198.51.100.2/32")}
	changed := a
	changed.Communities = []uint32{1}
	peerA := routes.Peer{Neighbour: first, RoutingPeer: purelbv1.RoutingPeer{Name: "a", HoldSeconds: 9}}
	slower := peerA
	slower.HoldSeconds = 90
	restarted := peerA
	restarted.SetsRestartState, restarted.NextHop = true, "192.0.2.11"
	rule := func(p routes.Path) routes.Rule {
		return routes.Rule{Prefixes: []netip.Prefix{p.Prefix}, Neighbours: []netip.Addr{first}, Reject: true}
	}
	for _, row := range []struct {
		name          string
		held, desired routes.Config
		withoutPeers  bool
		want          routes.Changes
	}{
		{
			"nothing", routes.Config{Paths: []routes.Path{a}, Peers: []routes.Peer{peerA}},
			routes.Config{Paths: []routes.Path{a}, Peers: []routes.Peer{peerA}}, false, routes.Changes{},
		},
		{
			"begin", routes.Config{}, routes.Config{Paths: []routes.Path{a}, Peers: []routes.Peer{peerA}}, false,
			routes.Changes{AddPaths: []routes.Path{a}, AddPeers: []routes.Peer{peerA}},
		},
		{
			"begin without peers", routes.Config{}, routes.Config{Paths: []routes.Path{a}, Peers: []routes.Peer{peerA}}, true,
			routes.Changes{AddPaths: []routes.Path{a}},
		},
		{"one goes, one comes", routes.Config{Paths: []routes.Path{a}}, routes.Config{Paths: []routes.Path{b}}, false,
			routes.Changes{RemovePaths: []netip.Prefix{a.Prefix}, AddPaths: []routes.Path{b}}},
		{
			"other attributes", routes.Config{Paths: []routes.Path{a}}, routes.Config{Paths: []routes.Path{changed}}, false,
			routes.Changes{AddPaths: []routes.Path{changed}},
		},
		{"a rule for a new route", routes.Config{Paths: []routes.Path{a}}, routes.Config{
			Paths: []routes.Path{a, b}, Rules: []routes.Rule{rule(b)},
		}, false,
			routes.Changes{ReplacesRules: true, Rules: []routes.Rule{rule(b)}, AddPaths: []routes.Path{b}}},
		{"a rule for a route that stays", routes.Config{Paths: []routes.Path{a}}, routes.Config{
			Paths: []routes.Path{a}, Rules: []routes.Rule{rule(a)},
		}, false,
			routes.Changes{ReplacesRules: true, Rules: []routes.Rule{rule(a)}, ResendsRoutes: true}},
		{"a route goes with its rule", routes.Config{Paths: []routes.Path{a}, Rules: []routes.Rule{rule(a)}},
			routes.Config{}, false,
			routes.Changes{RemovePaths: []netip.Prefix{a.Prefix}, ReplacesRules: true}},
		{
			"other settings", routes.Config{Peers: []routes.Peer{peerA}}, routes.Config{Peers: []routes.Peer{slower}}, false,
			routes.Changes{ReopenPeers: []routes.Peer{slower}},
		},
		{
			"no settings of a session", routes.Config{Peers: []routes.Peer{peerA}},
			routes.Config{Peers: []routes.Peer{restarted}}, false, routes.Changes{},
		},
		{
			"a neighbour goes", routes.Config{Peers: []routes.Peer{peerA}}, routes.Config{}, false,
			routes.Changes{RemovePeers: []routes.Peer{peerA}},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := routes.Diff(row.held, row.desired, !row.withoutPeers)
			if diff := cmp.Diff(row.want, got, compareAddresses); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			after := routes.AfterChanges(row.held, row.desired, got, routes.Refusals{})
			if again := routes.Diff(after, row.desired, !row.withoutPeers); !again.IsEmpty() {
				t.Errorf("not done after one round: %+v", again)
			}
		})
	}
}

// TestSettings changes one setting of a neighbour at a time: its session goes on, or is opened anew.
func TestSettings(t *testing.T) {
	const nothing, update, reopen, another = "nothing", "update", "reopen", "another neighbour"
	before := routes.Peer{Neighbour: first, Password: "secret", RoutingPeer: purelbv1.RoutingPeer{
		Name: "a", Address: first.String(), PeerASN: 65000, MyASN: 65001, Port: 179, Families: []purelbv1.IPFamily{"IPv4"},
		PasswordFile: "a", HoldSeconds: 9, KeepaliveSeconds: 3, ConnectSeconds: 5, RestartSeconds: 30,
	}}
	for _, row := range []struct {
		name   string
		change func(*routes.Peer)
		want   string
	}{
		{"none", func(*routes.Peer) {}, nothing},
		{"the name", func(p *routes.Peer) { p.Name, p.PasswordFile = "b", "b" }, nothing},
		{"the next hop of another family", func(p *routes.Peer) { p.NextHop = "2001:db8::11" }, nothing},
		{"an earlier speaker", func(p *routes.Peer) { p.SetsRestartState = true }, nothing},
		{"connectTime", func(p *routes.Peer) { p.ConnectSeconds = 6 }, update},
		{"BFD", func(p *routes.Peer) { p.BFDIntervalMilliseconds, p.BFDMultiplier = 300, 3 }, nothing},
		{"holdTime", func(p *routes.Peer) { p.HoldSeconds = 90 }, reopen},
		{"keepaliveTime", func(p *routes.Peer) { p.KeepaliveSeconds = 1 }, reopen},
		{"the restart time", func(p *routes.Peer) { p.RestartSeconds = 0 }, reopen},
		{"peerASN", func(p *routes.Peer) { p.PeerASN = 0 }, reopen},
		{"myASN", func(p *routes.Peer) { p.MyASN = 65002 }, reopen},
		{"the password", func(p *routes.Peer) { p.Password = "other" }, reopen},
		{"the port", func(p *routes.Peer) { p.Port = 1790 }, reopen},
		{"the source address", func(p *routes.Peer) { p.SourceAddress = "192.0.2.11" }, reopen},
		{"families", func(p *routes.Peer) { p.Families = append(p.Families, "IPv6") }, reopen},
		{"the TTL", func(p *routes.Peer) { p.EBGPMultihop = 2 }, reopen},
		{"TTL security", func(p *routes.Peer) { p.TTLSecurity = true }, reopen},
		{"the address", func(p *routes.Peer) { p.Neighbour, p.Address = second, second.String() }, another},
		{"the interface", func(p *routes.Peer) { p.Neighbour = netip.MustParseAddr("fe80::1%eth1") }, another},
	} {
		t.Run(row.name, func(t *testing.T) {
			after := before
			row.change(&after)
			want := routes.Changes{}
			switch row.want {
			case update:
				want.UpdatePeers = []routes.Peer{after}
			case reopen:
				want.ReopenPeers = []routes.Peer{after}
			case another:
				want.RemovePeers, want.AddPeers = []routes.Peer{before}, []routes.Peer{after}
			}
			held, desired := routes.Config{Peers: []routes.Peer{before}}, routes.Config{Peers: []routes.Peer{after}}
			changes := routes.Diff(held, desired, true)
			if diff := cmp.Diff(want, changes, compareAddresses); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			// The status has the new settings, the name included, even if the library needs no change.
			held = routes.AfterChanges(held, desired, changes, routes.Refusals{})
			if diff := cmp.Diff(desired, held, compareAddresses); diff != "" {
				t.Errorf("what is held then (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	up := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	held := routes.Config{
		Paths: []routes.Path{{Prefix: prefix("198.51.100.1/32")}},
		Peers: []routes.Peer{
			{Neighbour: first, RoutingPeer: purelbv1.RoutingPeer{Name: "a", Families: []purelbv1.IPFamily{"IPv4", "IPv6"}}},
		},
	}
	routing := &purelbv1.NodeRouting{Spec: purelbv1.NodeRoutingSpec{Peers: make([]purelbv1.RoutingPeer, 1)}}
	routing.Generation = 3
	session := routes.Session{
		Neighbour: first, State: purelbv1.SessionEstablished, Since: up, PeerASN: 65000,
		Families: []purelbv1.IPFamily{"IPv4", "IPv6"}, Advertised: 1, BFD: "Up", LastError: "it was down before",
	}
	describe := func(s purelbv1.NodeRoutingStatus) string {
		c := s.Conditions[0]
		if s.SessionsText != fmt.Sprint(s.Established, "/", s.Desired) {
			t.Errorf("the table shows %q", s.SessionsText)
		}
		return fmt.Sprint(s.Established, "/", s.Desired, " ", s.Networks, " ", c.Status, " ", c.Reason, " ", c.Message)
	}
	if got, want := describe(routes.Status(routing, held, []routes.Session{session}, false, "")),
		"1/1 1 True Established 1 of 1 sessions are up, 1 networks are advertised"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := routes.Status(routing, held, []routes.Session{session}, false, "").Sessions[0].LastError; got != "" {
		t.Errorf("a session that is up has the error %q", got)
	}
	session.State, session.LastError = "Active", strings.Repeat("x", 600)
	status := routes.Status(routing, held, []routes.Session{session}, false, "")
	want := "0/1 1 False SessionsDown 0 of 1 sessions are up, 1 networks are advertised; 192.0.2.1 is Active: xxx"
	if got := describe(status); !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(status.Sessions[0].LastError) > 512 {
		t.Error("the error is longer than the API server takes")
	}
	session = routes.Session{Neighbour: first, State: purelbv1.SessionEstablished, Families: []purelbv1.IPFamily{"IPv4"}}
	if got := routes.Status(routing, held, []routes.Session{session}, false, "").Sessions[0].LastError; !strings.Contains(
		got, "does not take IPv6",
	) {
		t.Errorf("a family that is not negotiated: %q", got)
	}
	session.Families, session.Neighbour = []purelbv1.IPFamily{"IPv6"}, netip.MustParseAddr("fe80::1%eth0")
	held.Peers[0].Neighbour = session.Neighbour
	if got := routes.Status(routing, held, []routes.Session{session}, false, "").Sessions[0].LastError; !strings.Contains(
		got, "does not take IPv4 in this session: enable the address family there, with next hops of IPv6",
	) {
		t.Errorf("routes without a next hop that the neighbour takes: %q", got)
	}
	held = routes.Config{
		Waiting: []routes.WaitingPeer{{Peer: purelbv1.RoutingPeer{Name: "a", Interface: "eth1"}, Why: "no router"}},
	}
	if got, want := describe(routes.Status(routing, held, nil, false, "")),
		"0/1 0 False SessionsDown 0 of 1 sessions are up, 0 networks are advertised; eth1 is Idle: no router"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := describe(routes.Status(routing, held, nil, true, "")),
		"0/1 0 True Drained all routes are withdrawn, as traffic is to leave the node"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := describe(routes.Status(routing, held, nil, true, "the library refuses a route")),
		"0/1 0 False Degraded 0 of 1 sessions are up, 0 networks are advertised; the library refuses a route"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestRefused has a library that refuses something of each kind: that alone is changed again.
func TestRefused(t *testing.T) {
	refusal := errors.New("refused")
	a, b := routes.Path{Prefix: prefix("198.51.100.1/32")}, routes.Path{Prefix: prefix("198.51.100.2/32")}
	changed := a
	changed.Communities = []uint32{1}
	peerA, peerB := routes.Peer{Neighbour: first}, routes.Peer{Neighbour: second}
	slow, other := peerA, peerA
	slow.ConnectSeconds, other.HoldSeconds = 60, 90
	rule := []routes.Rule{{Prefixes: []netip.Prefix{b.Prefix}, Neighbours: []netip.Addr{first}, Reject: true}}
	path := func(p routes.Path) routes.Refusals {
		return routes.Refusals{Paths: map[netip.Prefix]error{p.Prefix: refusal}}
	}
	peer := func(p routes.Peer) routes.Refusals {
		return routes.Refusals{Peers: map[netip.Addr]error{p.Neighbour: refusal}}
	}
	for _, row := range []struct {
		name          string
		held, desired routes.Config
		refused       routes.Refusals
		again         routes.Changes
	}{
		{"nothing", routes.Config{}, routes.Config{Paths: []routes.Path{a}}, routes.Refusals{}, routes.Changes{}},
		{"a route", routes.Config{}, routes.Config{Paths: []routes.Path{a, b}}, path(b),
			routes.Changes{AddPaths: []routes.Path{b}}},
		{"other attributes", routes.Config{Paths: []routes.Path{a}}, routes.Config{Paths: []routes.Path{changed}}, path(a),
			routes.Changes{AddPaths: []routes.Path{changed}}},
		{"a withdrawal", routes.Config{Paths: []routes.Path{a, b}}, routes.Config{}, path(b),
			routes.Changes{RemovePaths: []netip.Prefix{b.Prefix}}},
		{"rules", routes.Config{Paths: []routes.Path{b}}, routes.Config{Paths: []routes.Path{b}, Rules: rule},
			routes.Refusals{Rules: refusal}, routes.Changes{ReplacesRules: true, Rules: rule, ResendsRoutes: true}},
		{"a neighbour", routes.Config{}, routes.Config{Peers: []routes.Peer{peerA, peerB}}, peer(peerB),
			routes.Changes{AddPeers: []routes.Peer{peerB}}},
		{"settings in a session", routes.Config{Peers: []routes.Peer{peerA}}, routes.Config{Peers: []routes.Peer{slow}},
			peer(peerA), routes.Changes{UpdatePeers: []routes.Peer{slow}}},
		{"a session that is opened anew", routes.Config{Peers: []routes.Peer{peerA}},
			routes.Config{Peers: []routes.Peer{other}}, peer(peerA), routes.Changes{AddPeers: []routes.Peer{other}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			after := routes.AfterChanges(row.held, row.desired, routes.Diff(row.held, row.desired, true), row.refused)
			if diff := cmp.Diff(row.again, routes.Diff(after, row.desired, true), compareAddresses); diff != "" {
				t.Errorf("what is changed again (-want +got):\n%s", diff)
			}
			if isRefused := row.refused.Err() != nil; isRefused == row.again.IsEmpty() {
				t.Errorf("the error is %v", row.refused.Err())
			}
		})
	}
}

// TestFailuresAreReportedOnce follows the attempts to open a session that never comes up: what is to be
// reported does not change while the reason stays the same, and a change of the reason alone may wait.
func TestFailuresAreReportedOnce(t *testing.T) {
	held := routes.Config{Peers: []routes.Peer{{Neighbour: first, RoutingPeer: purelbv1.RoutingPeer{Name: "a"}}}}
	routing := &purelbv1.NodeRouting{Spec: purelbv1.NodeRoutingSpec{Peers: make([]purelbv1.RoutingPeer, 1)}}
	const refused, silent = "the neighbour refuses the session", "nothing came"
	for _, step := range []struct {
		state   purelbv1.SessionState
		asn     uint32
		why     string
		changes bool
		mayWait bool
	}{
		{"Active", 0, "", true, false}, // the first report
		{"OpenSent", 0, "", false, true},
		{"Idle", 65000, refused, true, true},
		{"Active", 0, refused, false, true},
		{"OpenConfirm", 65000, refused, false, true},
		{"Idle", 0, refused, false, true},
		{"Idle", 0, silent, true, true},
		{purelbv1.SessionEstablished, 65000, "", true, false},
		{"Idle", 65000, silent, true, false},
		{"Active", 65000, silent, false, true},
	} {
		after := routes.Status(
			routing, held,
			[]routes.Session{{Neighbour: first, State: step.state, PeerASN: step.asn, LastError: step.why}}, false, "",
		)
		if changes := !equality.Semantic.DeepEqual(routing.Status, after); changes != step.changes {
			t.Errorf("%+v: changes %t: %+v", step, changes, after.Sessions)
		}
		if mayWait := routes.EqualExceptFailures(routing.Status, after); mayWait != step.mayWait {
			t.Errorf("%+v: may wait %t", step, mayWait)
		}
		routing.Status = after
	}
}
