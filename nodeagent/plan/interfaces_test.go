package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

func route(iface, destination, gateway string, metric int, origin RouteOrigin) Route {
	r := Route{Interface: iface, Destination: netip.MustParsePrefix(destination), Metric: metric, Origin: origin}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

func TestInterfaces(t *testing.T) {
	t.Parallel()
	temporary := func(a *Address) { a.IsTemporary = true }
	observed := Observed{
		Interfaces: []NetworkInterface{
			{Name: "wlan0", MAC: "02:00:00:00:00:03"},
			{Name: "lo", IsLoopback: true},
			{Name: "eth1", MAC: "02:00:00:00:00:02"},
			{Name: "eth0", MAC: "02:00:00:00:00:01"},
			{Name: "kube-lb0"},
			{Name: "old-lb0", IsOurs: true},
			{Name: "eth0.5"},
		},
		Addresses: []Address{
			on("lo", "127.0.0.1/8", notOurs), on("lo", "203.0.113.1/32", notOurs),
			on("eth0", "10.77.0.11/24", notOurs), on("eth0", "10.77.0.240/24"),
			on("eth0", "fd00:77::11/128", notOurs), on("eth0", "fe80::1/64", notOurs),
			on("eth0", "fd00:77::abcd/64", notOurs, temporary),
			on("eth1", "10.88.0.11/16", notOurs), on("eth1", "fd00:88::11/64", notOurs), on("eth1", "fd00:99::1/64"),
			on("wlan0", "10.99.0.11/24", notOurs),
			on("kube-lb0", "198.51.100.1/32"), on("kube-lb0", "10.1.1.1/24", notOurs),
			on("old-lb0", "198.51.100.2/32"), on("old-lb0", "fe80::2/64", notOurs),
		},
		Routes: []Route{
			route("wlan0", "0.0.0.0/0", "10.99.0.1", 600, OriginOther),
			route("eth0", "0.0.0.0/0", "10.77.0.1", 100, OriginOther),
			route("eth0", "0.0.0.0/0", "10.77.0.2", 200, OriginOther),
			route("eth1", "::/0", "fe80::99", 1024, OriginRA),
			route("eth1", "::/0", "fe80::98", 1024, OriginRA),
			route("eth0", "::/0", "fe80::99", 2048, OriginRA),
			route("kube-lb0", "::/0", "fe80::99", 1, OriginOther),
			route("eth0", "10.77.0.0/24", "", 0, OriginKernel),
			route("eth0", "fd00:77::/64", "", 256, OriginRA),
			route("eth0", "fd00:77::11/128", "", 256, OriginKernel),
			route("eth0", "fe80::/64", "", 256, OriginKernel),
			route("eth0", "10.66.0.0/16", "", 0, OriginOther),
			route("eth0", "10.67.0.0/16", "10.77.0.9", 0, OriginOther),
			route("eth1", "fd00:99::/64", "", 256, OriginKernel), // came with an address of ours
		},
	}
	eth0 := purelbv1.NodeInterface{
		Name: "eth0", MAC: "02:00:00:00:00:01",
		Subnets:      []string{"10.77.0.11/24", "fd00:77::/64", "fd00:77::11/128"},
		DefaultRoute: []purelbv1.IPFamily{"IPv4"},
		Gateways:     []string{"10.77.0.1", "10.77.0.2", "fe80::99"},
	}
	eth0v4 := eth0
	eth0v4.Subnets, eth0v4.Gateways = []string{"10.77.0.11/24"}, []string{"10.77.0.1", "10.77.0.2"}
	eth1 := purelbv1.NodeInterface{
		Name: "eth1", MAC: "02:00:00:00:00:02",
		Subnets:      []string{"10.88.0.11/16", "fd00:88::11/64"},
		DefaultRoute: []purelbv1.IPFamily{"IPv6"},
		Gateways:     []string{"fe80::98", "fe80::99"},
	}
	eth1v6 := eth1
	eth1v6.Subnets = []string{"fd00:88::11/64"}
	wlan0 := purelbv1.NodeInterface{
		Name: "wlan0", MAC: "02:00:00:00:00:03", Subnets: []string{"10.99.0.11/24"}, Gateways: []string{"10.99.0.1"},
	}

	down := func(nic purelbv1.NodeInterface, defaults ...purelbv1.IPFamily) purelbv1.NodeInterface {
		nic.Down, nic.DefaultRoute = true, defaults
		return nic
	}

	// The default routes among the interfaces that are up.
	wlan0Default := wlan0
	wlan0Default.DefaultRoute = []purelbv1.IPFamily{"IPv4"}
	eth0Default := eth0
	eth0Default.DefaultRoute = []purelbv1.IPFamily{"IPv4", "IPv6"}

	for name, tc := range map[string]struct {
		selection Selection
		want      []purelbv1.NodeInterface
		down      []string
	}{
		"default, for each family by itself": {
			Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{eth0v4, eth1v6}, nil,
		},
		"default and a name": {
			Selection{LocalInterface: "default", Interfaces: []string{"wlan0", "eth1", "none"}},
			[]purelbv1.NodeInterface{eth0v4, eth1, wlan0}, nil,
		},
		"expression": {
			Selection{LocalInterface: "eth0|wl.*"}, []purelbv1.NodeInterface{eth0, wlan0}, nil,
		},
		"expression matches the whole name": {Selection{LocalInterface: "eth"}, []purelbv1.NodeInterface{}, nil},
		"expression matches everything": {
			Selection{LocalInterface: ".*"}, []purelbv1.NodeInterface{eth0, eth1, wlan0}, nil,
		},
		"names that never count": {
			Selection{LocalInterface: "none", Interfaces: []string{"lo", "kube-lb0", "old-lb0"}}, []purelbv1.NodeInterface{},
			nil,
		},
		"one that is down, with the default route": {
			Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{eth1v6, wlan0Default}, []string{"eth0"},
		},
		"one that is down, picked by name": {
			Selection{LocalInterface: "none", Interfaces: []string{"eth0", "eth1"}},
			[]purelbv1.NodeInterface{eth0Default, down(eth1)}, []string{"eth1"},
		},
		"all are down": {Selection{LocalInterface: ".*"}, []purelbv1.NodeInterface{
			down(eth0, "IPv4"), down(eth1, "IPv6"), down(wlan0),
		},
			[]string{"eth0", "eth1", "wlan0"}},
		"all are down, default": {Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{
			down(eth0v4, "IPv4"), down(eth1v6, "IPv6"),
		},
			[]string{"eth0", "eth1", "wlan0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.selection.VirtualInterface = "kube-lb0"
			for range 20 { // in whatever order the kernel lists them
				o := Observed{
					append([]NetworkInterface(nil), observed.Interfaces...), append([]Address(nil), observed.Addresses...),
					append([]Route(nil), observed.Routes...),
				}
				for i := range o.Interfaces {
					o.Interfaces[i].IsUp = !slices.Contains(tc.down, o.Interfaces[i].Name)
				}
				rand.Shuffle(len(o.Interfaces), func(i, j int) {
					o.Interfaces[i], o.Interfaces[j] = o.Interfaces[j], o.Interfaces[i]
				})
				rand.Shuffle(len(o.Addresses), func(i, j int) { o.Addresses[i], o.Addresses[j] = o.Addresses[j], o.Addresses[i] })
				rand.Shuffle(len(o.Routes), func(i, j int) { o.Routes[i], o.Routes[j] = o.Routes[j], o.Routes[i] })
				got, err := NodeInterfaces(tc.selection, o)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestInterfacesRefuses(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{"eth[", "a)|(b", "*"} {
		if got, err := NodeInterfaces(Selection{LocalInterface: expression}, Observed{}); err == nil {
			t.Errorf("%q is accepted: %v", expression, got)
		}
	}
}

// What we put on an interface neither makes it one that can hold Local addresses nor
// keeps it from being one.
func TestInterfacesDoNotDependOnOurAddresses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		own    []Address
		routes []Route
		ours   []Address
		// came are the routes that come with ours.
		came []Route
		want int
	}{
		"one that knows its subnet from the router alone": {
			own: []Address{on("eth1", "fe80::1/64", notOurs)},
			routes: []Route{
				route("eth1", "2001:db8::/64", "", 1024, OriginRA), route("eth1", "::/0", "fe80::99", 1024, OriginRA),
			},
			ours: []Address{on("eth1", "2001:db8::240/128")},
			want: 1,
		},
		"the same, with the address and the route of an older agent": {
			routes: []Route{route("eth1", "2001:db8::/64", "", 1024, OriginRA)},
			ours:   []Address{on("eth1", "2001:db8::240/64")},
			came:   []Route{route("eth1", "2001:db8::/64", "", 256, OriginKernel)},
			want:   1,
		},
		"one without any": {
			routes: []Route{route("eth1", "0.0.0.0/0", "192.0.2.254", 0, OriginOther)},
			ours:   []Address{on("eth1", "192.0.2.1/32"), on("eth1", "198.51.100.1/24")},
			came:   []Route{route("eth1", "198.51.100.0/24", "", 0, OriginKernel)},
			want:   0,
		},
		"one with its own": {
			own: []Address{on("eth1", "192.0.2.11/24", notOurs)},
			routes: []Route{
				route("eth1", "192.0.2.0/24", "", 0, OriginKernel), route("eth1", "0.0.0.0/0", "192.0.2.254", 0, OriginOther),
			},
			ours: []Address{on("eth1", "192.0.2.1/24")},
			want: 1,
		},
	} {
		for _, selected := range []string{"default", "eth1"} {
			o := Observed{
				Interfaces: []NetworkInterface{{Name: "eth1", MAC: "02:00:00:00:00:01", IsUp: true}},
				Addresses:  tc.own, Routes: tc.routes,
			}
			selection := Selection{LocalInterface: selected, VirtualInterface: "kube-lb0"}
			before, err := NodeInterfaces(selection, o)
			if err != nil {
				t.Fatal(err)
			}
			o.Addresses, o.Routes = slices.Concat(tc.own, tc.ours), slices.Concat(tc.routes, tc.came)
			after, err := NodeInterfaces(selection, o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s, %s: (-without +with ours):\n%s", name, selected, diff)
			}
			if selected == "eth1" && len(before) != tc.want {
				t.Errorf("%s: %d interfaces, want %d", name, len(before), tc.want)
			}
		}
	}
}

// Which of several default routes counts.
func TestDefaultInterface(t *testing.T) {
	t.Parallel()
	up, down := true, false
	for name, c := range map[string]struct {
		eth0Up, eth1Up         bool
		eth0Metric, eth1Metric int
		want                   string
	}{
		"the lower metric":                       {up, up, 200, 100, "eth1"},
		"of equal metrics the first by name":     {up, up, 100, 100, "eth0"},
		"a carrier counts more than a metric":    {up, down, 200, 100, "eth0"},
		"without a carrier the lower metric":     {down, down, 200, 100, "eth1"},
		"without a carrier the first, if equal":  {down, down, 100, 100, "eth0"},
		"the only one that has a carrier counts": {down, up, 100, 100, "eth1"},
	} {
		routes := []Route{
			route("eth0", "0.0.0.0/0", "192.0.2.254", c.eth0Metric, OriginOther),
			route("eth1", "0.0.0.0/0", "192.0.2.254", c.eth1Metric, OriginOther),
		}
		for range 2 { // in whatever order
			slices.Reverse(routes)
			observed := Observed{
				// The interface of a route may have gone.
				Routes: append([]Route{
					route("gone", "0.0.0.0/0", "192.0.2.254", 0, OriginOther),
					route("eth1", "10.0.0.0/8", "192.0.2.254", 0, OriginOther),
				}, routes...),
				Interfaces: []NetworkInterface{{Name: "eth0", IsUp: c.eth0Up}, {Name: "eth1", IsUp: c.eth1Up}},
			}
			if got := defaultInterface(Selection{}, observed, "IPv4"); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	}
}

// TestFaultNextHopOfBothFamilies has one next hop for the default routes of both families
// (RFC 8950). The API server takes a list of gateways only if each of them is there once. This test
// shows the row "one next hop for both families (RFC 8950)" of docs/trust.md.
func TestFaultNextHopOfBothFamilies(t *testing.T) {
	t.Parallel()
	observed := Observed{
		Interfaces: []NetworkInterface{{Name: "eth0", MAC: "02:00:00:00:00:01", IsUp: true}},
		Addresses:  []Address{on("eth0", "192.0.2.11/24", notOurs), on("eth0", "2001:db8::11/64", notOurs)},
		Routes: []Route{
			route("eth0", "0.0.0.0/0", "192.0.2.1", 200, OriginOther), route("eth0", "0.0.0.0/0", "fe80::1", 100, OriginOther),
			route("eth0", "::/0", "fe80::1", 1024, OriginRA), route("eth0", "::/0", "fe80::2", 1024, OriginRA),
		},
	}
	for _, selected := range []string{purelbv1.InterfaceDefault, "eth0"} {
		got, err := NodeInterfaces(Selection{LocalInterface: selected}, observed)
		if want := []string{"192.0.2.1", "fe80::1", "fe80::2"}; err != nil || len(got) != 1 ||
			!slices.Equal(got[0].Gateways, want) {
			t.Errorf("localInterface %s: %+v, %v; want the gateways %v", selected, got, err, want)
		}
	}
}

// The facts fit into the status, however many there are.
func TestInterfacesAreBounded(t *testing.T) {
	t.Parallel()
	var observed Observed
	for i := range 65 {
		name := fmt.Sprintf("eth%02d", i)
		observed.Interfaces = append(observed.Interfaces, NetworkInterface{Name: name, IsUp: true})
		observed.Addresses = append(observed.Addresses, Address{Interface: name, Prefix: netip.PrefixFrom(nth(i), 24)})
		observed.Addresses = append(observed.Addresses, Address{Interface: "eth00", Prefix: netip.PrefixFrom(nth(i), 25)})
		observed.Routes = append(
			observed.Routes, Route{Interface: "eth00", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: nth(i)},
		)
	}
	got, err := NodeInterfaces(Selection{LocalInterface: ".*"}, observed)
	if err != nil || len(got) != 64 || got[0].Name != "eth00" || len(got[0].Subnets) != 64 || len(got[0].Gateways) != 16 {
		t.Errorf(
			"%d interfaces, the first of %d subnets and %d gateways, %v; want 64, 64, 16", len(got), len(got[0].Subnets),
			len(got[0].Gateways), err,
		)
	}
}

// Addresses and routes that make no subnet.
func TestSubnets(t *testing.T) {
	t.Parallel()
	observed := Observed{
		Addresses: []Address{
			on("eth0", "192.0.2.11/24", notOurs), on("eth0", "169.254.0.1/16", notOurs), on("eth0", "224.0.0.9/32", notOurs),
			on("eth0", "127.0.0.2/8", notOurs),
			on("eth0", "0.0.0.0/32", notOurs), on("eth1", "10.0.0.1/8", notOurs),
		},
		Routes: []Route{
			route("eth0", "198.51.100.0/24", "", 0, OriginKernel), route("eth0", "203.0.113.0/24", "", 0, OriginRA),
			route("eth0", "198.51.100.7/32", "", 0, OriginKernel), route("eth0", "169.254.0.0/16", "", 0, OriginKernel),
			route("eth0", "10.1.0.0/16", "", 0, OriginOther),
			route("eth0", "10.2.0.0/16", "192.0.2.254", 0, OriginKernel), route("eth1", "10.3.0.0/16", "", 0, OriginKernel),
			route("eth0", "0.0.0.0/0", "", 0, OriginKernel),
			route("eth0", "2001:db8::/64", "", 0, OriginKernel), route("eth0", "192.0.2.0/24", "", 0, OriginKernel),
		},
	}
	want := []string{"192.0.2.11/24", "198.51.100.0/24", "203.0.113.0/24"}
	if diff := cmp.Diff(want, subnetsOf(observed, "eth0", "IPv4")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodeGateways has nodes with an uplink to each of two switches: the gateways of both are reported,
// whichever interface the LBNodeAgent selects, also where they are link-local.
func TestNodeGateways(t *testing.T) {
	t.Parallel()
	links := []NetworkInterface{
		{Name: "lo", IsLoopback: true}, {Name: "eth1", IsUp: true}, {Name: "eth0", IsUp: true}, {Name: "kube-lb0"},
	}
	for name, row := range map[string]struct {
		routes []Route
		want   []purelbv1.NodeGateway
	}{
		"one route by each": {
			[]Route{
				route("eth1", "0.0.0.0/0", "10.2.0.10", 0, OriginOther), route("eth0", "0.0.0.0/0", "10.1.0.10", 0, OriginOther),
			},
			[]purelbv1.NodeGateway{{Interface: "eth0", Address: "10.1.0.10"}, {Interface: "eth1", Address: "10.2.0.10"}},
		},
		"link-local addresses only": {
			[]Route{route("eth0", "::/0", "fe80::a%eth0", 0, OriginRA), route("eth1", "::/0", "fe80::a%eth1", 0, OriginRA)},
			[]purelbv1.NodeGateway{{Interface: "eth0", Address: "fe80::a"}, {Interface: "eth1", Address: "fe80::a"}},
		},
		"routes that lead to no neighbour": {
			[]Route{
				route("kube-lb0", "0.0.0.0/0", "10.3.0.1", 0, OriginOther), route("lo", "0.0.0.0/0", "10.3.0.2", 0, OriginOther),
				route("eth0", "0.0.0.0/0", "", 0, OriginOther), route("eth0", "10.0.0.0/8", "10.1.0.10", 0, OriginOther),
				route("gone", "0.0.0.0/0", "10.3.0.3", 0, OriginOther),
			}, nil,
		},
		"beside routes that lead to no neighbour": {
			[]Route{
				route("kube-lb0", "0.0.0.0/0", "10.3.0.1", 0, OriginOther), route("eth1", "0.0.0.0/0", "10.2.0.10", 0, OriginOther),
				route("lo", "0.0.0.0/0", "10.3.0.2", 0, OriginOther), route("eth0", "0.0.0.0/0", "10.1.0.10", 0, OriginOther),
				route("gone", "0.0.0.0/0", "10.3.0.3", 0, OriginOther),
			},
			[]purelbv1.NodeGateway{{Interface: "eth0", Address: "10.1.0.10"}, {Interface: "eth1", Address: "10.2.0.10"}},
		},
	} {
		for range 20 { // interfaces come in any order
			got := NodeGateways(
				Selection{LocalInterface: purelbv1.InterfaceDefault, VirtualInterface: "kube-lb0"},
				Observed{Interfaces: links, Routes: row.routes},
			)
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
	var many []Route
	for i := range 40 {
		many = append(many, Route{Interface: "eth0", Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: nth(i)})
	}
	if got := NodeGateways(Selection{}, Observed{Interfaces: links, Routes: many}); len(got) != 32 {
		t.Errorf("%d gateways do not fit into the status", len(got))
	}
}

func TestGateways(t *testing.T) {
	got := Gateways(Observed{Routes: []Route{
		route("eth0", "0.0.0.0/0", "10.77.0.1", 100, OriginOther),
		route("eth0", "::/0", "fe80::99%eth0", 1024, OriginRA),
		route("eth1", "0.0.0.0/0", "10.88.0.1", 200, OriginOther),
		route("eth2", "0.0.0.0/0", "", 0, OriginOther),
		route("eth2", "10.66.0.0/16", "10.77.0.9", 0, OriginKernel),
	}})
	want := map[string][]string{"eth0": {"10.77.0.1", "fe80::99"}, "eth1": {"10.88.0.1"}}
	texts := map[string][]string{}
	for iface, addrs := range got {
		texts[iface] = textlimit.Texts(addrs)
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("next hops of default routes (-want +got):\n%s", diff)
	}
}
