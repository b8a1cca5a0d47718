//go:build routers

package gobgp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/internal/routertest"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// TestTTLSecurity has a router that takes packets from its own link only, and sends such: a session has to do so, too.
func TestTTLSecurity(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd+"router bgp 65000\n neighbor 192.0.2.11 ttl-security hops 1\n")
	s := newSpeaker(t)
	d := routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}}
	s.hold(t, d)
	eventually(t, "the session does not come up, and says so", func() bool {
		return s.session(t, "192.0.2.1").LastError != ""
	}, func() string { return fmt.Sprintf("%+v\n%s", s.session(t, "192.0.2.1"), router.Log()) })
	s.hasRoutes(t, router, "ipv4")
	d.Peers = []routes.Peer{peer("192.0.2.1", func(p *purelbv1.RoutingPeer) { p.TTLSecurity = true })}
	s.hold(t, d)
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
}

// TestMultihop has a router behind another one: the session needs a TTL that gets there.
func TestMultihop(t *testing.T) {
	const neighbour = "203.0.113.2"
	hop := routerOn(t)
	behind := nstest.NewNeighbour(t)
	nstest.Run(t, "ip link add inner type veth peer name outer")
	hop.MoveLink(t, "inner")
	behind.MoveLink(t, "outer")
	hop.Run(t, "sysctl -qw net.ipv4.ip_forward=1") // of its own namespace
	hop.Run(t, "ip link set inner up")
	hop.Run(t, "ip addr add 203.0.113.1/24 dev inner")
	behind.Run(t, "ip link set lo up")
	behind.Run(t, "ip link set outer up")
	behind.Run(t, "ip addr add %s/24 dev outer", neighbour)
	behind.Run(t, "ip route add 192.0.2.0/24 via 203.0.113.1")
	nstest.Run(t, "ip route add 203.0.113.0/24 via 192.0.2.1")
	router := routertest.StartFRR(t, behind, bgpd+"router bgp 65000\n neighbor 192.0.2.11 ebgp-multihop 4\n")
	s := newSpeaker(t)
	d := routes.Config{Peers: []routes.Peer{peer(neighbour)}, Paths: []routes.Path{path("198.51.100.1/32")}}
	s.hold(t, d)
	eventually(t, "packets do not get there, and the session says so", func() bool {
		return s.session(t, neighbour).LastError != ""
	}, func() string { return fmt.Sprintf("%+v", s.session(t, neighbour)) })
	s.hasRoutes(t, router, "ipv4")
	d.Peers = []routes.Peer{peer(neighbour, func(p *purelbv1.RoutingPeer) { p.EBGPMultihop = 2 })}
	s.hold(t, d)
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	if hops := router.Details("ipv4", "198.51.100.1/32").NextHops; len(hops) != 1 || hops[0] != "192.0.2.11" {
		t.Errorf("next hops: %v", hops)
	}
}

// TestLinkLocalOfIPv4 has a router with an IPv4 link-local address: the session needs no extended next hops.
func TestLinkLocalOfIPv4(t *testing.T) {
	where := routerOn(t)
	where.Run(t, "ip addr add 169.254.255.1/31 dev far")
	nstest.Run(t, "ip addr add 169.254.255.0/31 dev eth0")
	router := routertest.StartFRR(t, where, strings.ReplaceAll(bgpd, "192.0.2.11", "169.254.255.0"))
	s := newSpeaker(t)
	s.hold(t, routes.Config{Peers: []routes.Peer{peer("169.254.255.1")}, Paths: []routes.Path{path("198.51.100.1/32")}})
	eventually(t, "FRR has the route, by the node's link-local address", func() bool {
		hops := router.Details("ipv4", "198.51.100.1/32").NextHops
		return len(hops) == 1 && hops[0] == "169.254.255.0"
	}, func() string { return router.Show("show bgp ipv4 unicast") + router.Log() })
	eventually(t, "the node says that the session carries IPv4, and one route", func() bool {
		session := s.session(t, "169.254.255.1")
		return slices.Equal(session.Families, []purelbv1.IPFamily{"IPv4"}) && session.Advertised == 1
	}, func() string { return fmt.Sprintf("%+v", s.session(t, "169.254.255.1")) })
}

// TestRouteReflector has FRR reflect the node's routes, in the node's own autonomous system, to BIRD, which has a
// session with the reflector alone: the routes lead to the node, and have its local preference.
func TestRouteReflector(t *testing.T) {
	where, switched := newLink(t)
	switched.Run(t, "ip addr add 192.0.2.3/24 dev br0")
	reflector := routertest.StartFRR(t, where, `
router bgp 65001
 bgp router-id 192.0.2.1
 bgp cluster-id 192.0.2.1
 neighbor 192.0.2.11 remote-as 65001
 neighbor 192.0.2.3 remote-as 65001
 address-family ipv4 unicast
  neighbor 192.0.2.11 route-reflector-client
  neighbor 192.0.2.3 route-reflector-client
 exit-address-family
`)
	client := routertest.StartBIRD(t, switched, `
router id 192.0.2.3;
protocol device { }
protocol direct { ipv4; }
protocol bgp { local as 65001; neighbor 192.0.2.1 as 65001; connect retry time 1; ipv4 { import all; export none; }; }
`)
	s := newSpeaker(t)
	pref := uint32(300)
	preferred := path("198.51.100.1/32")
	preferred.LocalPref = &pref
	internal := peer("192.0.2.1", func(p *purelbv1.RoutingPeer) { p.PeerASN = 65001 })
	s.hold(t, routes.Config{Peers: []routes.Peer{internal}, Paths: []routes.Path{preferred, path("198.51.100.2/32")}})
	s.hasRoutes(t, reflector, "ipv4", "198.51.100.1/32", "198.51.100.2/32")
	shows := func(prefix string, want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("BIRD has %s with %q", prefix, want), func() bool {
			text := client.Show("show route all for " + prefix)
			for _, one := range want {
				if !strings.Contains(text, one) {
					return false
				}
			}
			return true
		}, func() string {
			return client.Show("show route all") + client.Show("show protocols all") + reflector.Log()
		})
	}
	shows("198.51.100.1/32", "BGP.next_hop: 192.0.2.11", "BGP.local_pref: 300", "BGP.originator_id: 192.0.2.11")
	shows("198.51.100.2/32", "BGP.next_hop: 192.0.2.11", "BGP.local_pref: 100")
	s.hold(t, routes.Config{Peers: []routes.Peer{internal}, Paths: []routes.Path{path("198.51.100.2/32")}})
	s.hasRoutes(t, reflector, "ipv4", "198.51.100.2/32")
	eventually(t, "BIRD has one route", func() bool {
		return !strings.Contains(client.Show("show route"), "198.51.100.1/32")
	}, func() string { return client.Show("show route all") })
}

// TestBothFamiliesAtBIRD has one session for both families: from the node's IPv4 address, and from its IPv6 one.
func TestBothFamiliesAtBIRD(t *testing.T) {
	both := []purelbv1.IPFamily{"IPv4", "IPv6"}
	for _, row := range []struct {
		name, neighbour, from, nextHop string
	}{
		{"over IPv4", "192.0.2.1", "192.0.2.11", "2001:db8::11"}, {"over IPv6", "2001:db8::1", "2001:db8::11", "192.0.2.11"},
	} {
		t.Run(row.name, func(t *testing.T) {
			router := routertest.StartBIRD(t, routerOn(t), fmt.Sprintf(`
router id 192.0.2.1;
protocol device { }
protocol direct { ipv4; ipv6; }
protocol bgp { local as 65000; neighbor %s as 65001; ipv4 { import all; export none; }; ipv6 { import all; export none; }; }
`, row.from))
			s := newSpeaker(t)
			p := peer(row.neighbour, func(p *purelbv1.RoutingPeer) { p.Families, p.NextHop = both, row.nextHop })
			rules := routes.Decide(routes.Inputs{}, routes.Neighbours{Peers: []routes.Peer{p}}).Rules
			s.hold(t, routes.Config{
				Peers: []routes.Peer{p}, Paths: []routes.Path{path("198.51.100.1/32"), path("2001:db8:1::1/128")}, Rules: rules,
			})
			eventually(t, "BIRD has both routes, by the node's address of each family", func() bool {
				four, six := router.Show("show route all for 198.51.100.1/32"), router.Show("show route all for 2001:db8:1::1/128")
				return strings.Contains(four, "BGP.next_hop: 192.0.2.11") && strings.Contains(six, "BGP.next_hop: 2001:db8::11")
			}, func() string { return router.Show("show route all") + router.Show("show protocols all") })
			s.isAsSeenBy(t, router)
		})
	}
}
