package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
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
	temporary := func(a *Address) { a.Temporary = true }
	observed := Observed{
		Links: []Link{
			{Name: "wlan0", MAC: "02:00:00:00:00:03"},
			{Name: "lo", Loopback: true},
			{Name: "eth1", MAC: "02:00:00:00:00:02"},
			{Name: "eth0", MAC: "02:00:00:00:00:01"},
			{Name: "kube-lb0"},
			{Name: "old-lb0"},
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
	wlan0 := purelbv1.NodeInterface{Name: "wlan0", MAC: "02:00:00:00:00:03", Subnets: []string{"10.99.0.11/24"}, Gateways: []string{"10.99.0.1"}}

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
		"default, for each family by itself":       {Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{eth0v4, eth1v6}, nil},
		"default and a name":                       {Selection{LocalInterface: "default", Interfaces: []string{"wlan0", "eth1", "none"}}, []purelbv1.NodeInterface{eth0v4, eth1, wlan0}, nil},
		"expression":                               {Selection{LocalInterface: "eth0|wl.*"}, []purelbv1.NodeInterface{eth0, wlan0}, nil},
		"expression matches the whole name":        {Selection{LocalInterface: "eth"}, []purelbv1.NodeInterface{}, nil},
		"expression matches everything":            {Selection{LocalInterface: ".*"}, []purelbv1.NodeInterface{eth0, eth1, wlan0}, nil},
		"names that never count":                   {Selection{LocalInterface: "none", Interfaces: []string{"lo", "kube-lb0", "old-lb0"}}, []purelbv1.NodeInterface{}, nil},
		"one that is down, with the default route": {Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{eth1v6, wlan0Default}, []string{"eth0"}},
		"one that is down, picked by name":         {Selection{LocalInterface: "none", Interfaces: []string{"eth0", "eth1"}}, []purelbv1.NodeInterface{eth0Default, down(eth1)}, []string{"eth1"}},
		"all are down": {Selection{LocalInterface: ".*"}, []purelbv1.NodeInterface{down(eth0, "IPv4"), down(eth1, "IPv6"), down(wlan0)},
			[]string{"eth0", "eth1", "wlan0"}},
		"all are down, default": {Selection{LocalInterface: "default"}, []purelbv1.NodeInterface{down(eth0v4, "IPv4"), down(eth1v6, "IPv6")},
			[]string{"eth0", "eth1", "wlan0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.selection.VirtualInterface = "kube-lb0"
			for range 20 { // in whatever order the kernel lists them
				o := Observed{append([]Link(nil), observed.Links...), append([]Address(nil), observed.Addresses...), append([]Route(nil), observed.Routes...)}
				for i := range o.Links {
					o.Links[i].Up = !slices.Contains(tc.down, o.Links[i].Name)
				}
				rand.Shuffle(len(o.Links), func(i, j int) { o.Links[i], o.Links[j] = o.Links[j], o.Links[i] })
				rand.Shuffle(len(o.Addresses), func(i, j int) { o.Addresses[i], o.Addresses[j] = o.Addresses[j], o.Addresses[i] })
				rand.Shuffle(len(o.Routes), func(i, j int) { o.Routes[i], o.Routes[j] = o.Routes[j], o.Routes[i] })
				got, err := Interfaces(tc.selection, o)
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
		if got, err := Interfaces(Selection{LocalInterface: expression}, Observed{}); err == nil {
			t.Errorf("%q is accepted: %v", expression, got)
		}
	}
}
