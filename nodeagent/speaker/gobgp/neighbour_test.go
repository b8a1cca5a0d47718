//go:build !routers

package gobgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"golang.org/x/sys/unix"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// The router and the node of these tests are two addresses of the loopback interface. With the
// tag routers there are real routers instead.
const (
	routerAddress, nodeAddress = "127.0.0.1", "127.0.0.2"
	routerASN, nodeASN         = 65000, 65001
)

// startRouter starts a router that waits for the node, in an autonomous system, and returns the port.
func startRouter(t testing.TB, asnOfNode uint32) (router *server.BgpServer, port int32) {
	t.Helper()
	var errs []error
	for range 10 { // another program may take the port in between
		listener, err := net.Listen("tcp4", routerAddress+":0")
		if err != nil {
			t.Fatal(err)
		}
		port = int32(listener.Addr().(*net.TCPAddr).Port)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		router = server.NewBgpServer()
		go router.Serve()
		err = router.StartBgp(t.Context(), &api.StartBgpRequest{Global: &api.Global{
			Asn: routerASN, RouterId: "192.0.2.1", ListenPort: port, ListenAddresses: []string{routerAddress},
		}})
		if errs = append(errs, err); err == nil {
			break
		}
	}
	if errs[len(errs)-1] != nil {
		t.Fatal(errors.Join(errs...))
	}
	t.Cleanup(func() {
		if err := router.StopBgp(context.Background(), &api.StopBgpRequest{}); err != nil {
			t.Error(err)
		}
	})
	err := router.AddPeer(t.Context(), &api.AddPeerRequest{Peer: &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: nodeAddress, PeerAsn: asnOfNode},
		Transport: &api.Transport{PassiveMode: true}, GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 60},
		AfiSafis: []*api.AfiSafi{afiSafi("IPv4"), afiSafi("IPv6")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return router, port
}

func afiSafi(family purelbv1.IPFamily) *api.AfiSafi {
	return &api.AfiSafi{
		Config:            &api.AfiSafiConfig{Family: apiFamily(family), Enabled: true},
		MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
	}
}

// routesOf returns the routes that a router has, each with its MED and communities if there are any, sorted.
func routesOf(router *server.BgpServer) ([]string, error) {
	var found []string
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		err := router.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family},
			func(prefix bgp.NLRI, paths []*apiutil.Path) {
				for _, path := range paths {
					text := prefix.String()
					for _, attribute := range path.Attrs {
						switch a := attribute.(type) {
						case *bgp.PathAttributeMultiExitDisc:
							text += fmt.Sprintf(" MED %d", a.Value)
						case *bgp.PathAttributeCommunities, *bgp.PathAttributeLargeCommunities:
							text += " " + a.String()
						}
					}
					found = append(found, text)
				}
			})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(found)
	return found, nil
}

// TestNeighbourHearsOfChanges has a router for which the node adds, changes, rejects and
// withdraws routes, until the session ends.
func TestNeighbourHearsOfChanges(t *testing.T) {
	router, port := startRouter(t, nodeASN)
	node := New(logr.Discard(), func() {})
	if err := node.Start(t.Context(), netip.MustParseAddr("192.0.2.11")); err != nil {
		t.Fatal(err)
	}
	isStopped := false
	stop := func() {
		t.Helper()
		if isStopped {
			return
		}
		isStopped = true
		if err := node.Stop(context.Background(), false); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)

	// Without graceful restart, the routes go with the session.
	peer := routes.Peer{Neighbour: netip.MustParseAddr(routerAddress), RoutingPeer: purelbv1.RoutingPeer{
		Name: "router", Address: routerAddress, SourceAddress: nodeAddress, PeerASN: routerASN, MyASN: nodeASN, Port: port,
		Families: []purelbv1.IPFamily{"IPv4", "IPv6"}, HoldSeconds: 90, KeepaliveSeconds: 30, ConnectSeconds: 1,
	}}
	path := func(prefix string) routes.Path { return routes.Path{Prefix: netip.MustParsePrefix(prefix)} }
	var held routes.Config
	change := func(rules []routes.Rule, paths ...routes.Path) {
		t.Helper()
		// The rule gives IPv6 routes a next hop, for which an IPv4 session has none.
		rules = append(
			rules, routes.Rule{Neighbours: []netip.Addr{peer.Neighbour}, NextHop: netip.MustParseAddr("2001:db8::11")},
		)
		desired := routes.Config{Paths: paths, Rules: rules, Peers: []routes.Peer{peer}}
		if refused := node.Apply(t.Context(), routes.Diff(held, desired, true)); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
		held = desired
	}
	has := func(when string, want ...string) {
		t.Helper()
		var got []string
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var err error
			if got, err = routesOf(router); err != nil {
				t.Fatal(err)
			}
			if slices.Equal(got, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the router has %q, and not %q", when, got, want)
			}
		}
	}

	first, second, third := path("198.51.100.1/32"), path("198.51.100.2/32"), path("2001:db8:1::1/128")
	change(nil, first, second, third)
	has("at first", "198.51.100.1/32", "198.51.100.2/32", "2001:db8:1::1/128")
	change(nil, second)
	has("after two are withdrawn", "198.51.100.2/32")
	med := uint32(7)
	second.MED = &med
	change(nil, first, second)
	has("after one changes and one comes back", "198.51.100.1/32", "198.51.100.2/32 MED 7")
	change(
		[]routes.Rule{{Neighbours: []netip.Addr{peer.Neighbour}, Prefixes: []netip.Prefix{first.Prefix}, Reject: true}},
		first, second,
	)
	has("after a rule takes one away", "198.51.100.2/32 MED 7")
	stop()
	has("after the node has ended its sessions")
}

// TestCommunitiesOfServices has Services that ask for communities, for others, and for none any more: the router hears
// of each change, and at no time loses a route.
func TestCommunitiesOfServices(t *testing.T) {
	router, port := startRouter(t, nodeASN)
	losses, node := countLosses(t, router), startNode(t)
	network := func(prefix string, addresses ...string) routes.Network {
		n := routes.Network{Prefix: netip.MustParsePrefix(prefix)}
		for _, a := range addresses {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
		return n
	}
	in := routes.Inputs{
		Spec: purelbv1.NodeRoutingSpec{Peers: []purelbv1.RoutingPeer{gracefulRouter(port).RoutingPeer}},
		Networks: []routes.Network{
			network("198.51.100.1/32", "198.51.100.1"), network("198.51.100.2/32", "198.51.100.2"),
			network("203.0.113.0/24", "203.0.113.1", "203.0.113.2"),
		},
	}
	var held routes.Config
	for _, step := range []struct {
		name    string
		entries []purelbv1.ServiceCommunities
		want    []string
	}{
		{"nobody asks", nil, []string{"198.51.100.1/32", "198.51.100.2/32", "203.0.113.0/24"}},
		{"two ask", []purelbv1.ServiceCommunities{{
			Addresses: []string{"198.51.100.2", "203.0.113.0-203.0.113.9"}, RouteCommunities: purelbv1.RouteCommunities{
				Communities: []purelbv1.Community{"no-export"}, LargeCommunities: []purelbv1.LargeCommunity{"1:2:3"},
			},
		}}, []string{
			"198.51.100.1/32", "198.51.100.2/32 {Communities: no-export} {LargeCommunity: [ 1:2:3]}", "203.0.113.0/24",
		}},
		{"one asks for another", []purelbv1.ServiceCommunities{{
			Addresses:        []string{"198.51.100.1-198.51.100.2"},
			RouteCommunities: purelbv1.RouteCommunities{Communities: []purelbv1.Community{"65001:7"}},
		}}, []string{
			"198.51.100.1/32 {Communities: 65001:7}", "198.51.100.2/32 {Communities: 65001:7}", "203.0.113.0/24",
		}},
		{"none asks any more", nil, []string{"198.51.100.1/32", "198.51.100.2/32", "203.0.113.0/24"}},
	} {
		in.Spec.ServiceCommunities = step.entries
		desired := routes.Decide(in, in.Neighbours())
		if refused := node.Apply(t.Context(), routes.Diff(held, desired, true)); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
		held = desired
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			got, err := routesOf(router)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Equal(got, step.want) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the router has %q, and not %q", step.name, got, step.want)
			}
		}
	}
	if got := losses.Load(); got != 0 {
		t.Errorf("the router has lost routes %d times", got)
	}
}

// TestRulesRefused has rules that the library does not take: without them a new neighbour is not added, which might
// be sent what it is not to have, and no routes are.
func TestRulesRefused(t *testing.T) {
	_, port := startRouter(t, nodeASN)
	node, router := startNode(t), gracefulRouter(port)
	prefix := netip.MustParsePrefix("198.51.100.1/32")
	changes := routes.Changes{
		ReplacesRules: true, Rules: []routes.Rule{{Neighbours: []netip.Addr{{}}, Reject: true}},
		AddPaths: []routes.Path{{Prefix: prefix}}, AddPeers: []routes.Peer{router},
	}
	refused := node.Apply(t.Context(), changes)
	if refused.Rules == nil || refused.Paths[prefix] == nil || refused.Peers[router.Neighbour] == nil {
		t.Errorf("refused: %+v", refused)
	}
	if len(node.neighbours) > 0 || len(node.prefixes) > 0 {
		t.Errorf("the library has %v and %v", node.neighbours, node.prefixes)
	}
	changes.Rules[0].Neighbours[0] = netip.MustParseAddr("192.0.2.77")
	if refused = node.Apply(t.Context(), changes); refused.Err() != nil {
		t.Error(refused.Err())
	}
	if len(node.neighbours) != 1 || len(node.prefixes) != 1 {
		t.Errorf("the library has %v and %v", node.neighbours, node.prefixes)
	}
}

// startNode starts a library that ends with the test.
func startNode(t testing.TB) *Server {
	t.Helper()
	node := New(logr.Discard(), func() {})
	if err := node.Start(t.Context(), netip.MustParseAddr("192.0.2.11")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop(context.Background(), false) })
	return node
}

// TestUnsent has a router that is not sent all that the node has.
func TestUnsent(t *testing.T) {
	_, port := startRouter(t, nodeASN)
	node := startNode(t)
	peer := gracefulRouter(port)
	path := func(prefix string) routes.Path { return routes.Path{Prefix: netip.MustParsePrefix(prefix)} }
	first, second, third := path("198.51.100.1/32"), path("198.51.100.0/24"), path("2001:db8:1::1/128")
	refused := node.Apply(t.Context(), routes.Changes{
		AddPaths: []routes.Path{first, second, third}, AddPeers: []routes.Peer{peer},
	})
	if refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	isUp := func(s routes.Session) bool { return s.State == purelbv1.SessionEstablished }
	if s := sessionWith(t, node, "up", isUp); len(s.Unsent) > 0 || s.Advertised != 2 { // it carries no IPv6
		t.Errorf("at first: %+v", s)
	}
	reject := []routes.Rule{
		{Neighbours: []netip.Addr{peer.Neighbour}, Prefixes: []netip.Prefix{first.Prefix}, Reject: true},
	}
	for _, step := range []struct {
		name    string
		changes routes.Changes
		want    []netip.Prefix
	}{
		{"a rule keeps one from the router", routes.Changes{ReplacesRules: true, Rules: reject, ResendsRoutes: true},
			[]netip.Prefix{first.Prefix}},
		{"nothing is left", routes.Changes{RemovePaths: []netip.Prefix{second.Prefix}}, []netip.Prefix{first.Prefix}},
		{"the rule goes", routes.Changes{ReplacesRules: true, AddPaths: []routes.Path{second}, ResendsRoutes: true}, nil},
	} {
		if refused := node.Apply(t.Context(), step.changes); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
		sessionWith(t, node, step.name, func(s routes.Session) bool { return slices.Equal(s.Unsent, step.want) })
	}
}

// TestCountsRoutesOnce has a session at rest: how many routes it was sent is what was counted last, until a minute is
// over, something changes, or another session is up. The count is altered here, which shows who uses it.
func TestCountsRoutesOnce(t *testing.T) {
	_, port := startRouter(t, nodeASN)
	node := startNode(t)
	peer := gracefulRouter(port)
	path := func(prefix string) routes.Path { return routes.Path{Prefix: netip.MustParsePrefix(prefix)} }
	apply := func(changes routes.Changes) {
		t.Helper()
		if refused := node.Apply(t.Context(), changes); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
	}
	apply(routes.Changes{
		AddPaths: []routes.Path{path("198.51.100.1/32"), path("198.51.100.2/32")}, AddPeers: []routes.Peer{peer},
	})
	const sent, altered = 2, 7
	atRest := func(what string, want int) {
		t.Helper()
		sessionWith(t, node, what+", and counted", func(s routes.Session) bool {
			return isUp(s) && s.Advertised == want && !node.isCountDue.Load()
		})
		counted, ok := node.advertised[routerAddress]
		if !ok || len(counted.routes) != 1 || counted.routes[0] != uint64(want) {
			t.Fatalf("%s: %+v", what, node.advertised)
		}
		counted.routes[0] = altered
	}
	next := func(what string, want int) {
		t.Helper()
		sessions, err := node.TendSessions(t.Context())
		if err != nil || len(sessions) != 1 || sessions[0].Advertised != want {
			t.Fatalf("%s: %+v, %v", what, sessions, err)
		}
	}
	atRest("at first", sent)
	next("at rest", altered)
	node.countedAt = node.countedAt.Add(-countInterval)
	next("after a minute", sent)

	atRest("after that", sent)
	node.advertised[routerAddress] = advertisedRoutes{since: 1, routes: []uint64{altered}}
	next("in another session", sent)

	atRest("in that", sent)
	apply(routes.Changes{AddPaths: []routes.Path{path("198.51.100.3/32")}})
	next("with another route", sent+1)

	atRest("with that", sent+1)
	apply(routes.Changes{RemovePeers: []routes.Peer{peer}})
	apply(routes.Changes{AddPeers: []routes.Peer{peer}})
	atRest("after the neighbour was removed, and added again", sent+1)
}

// TestUnsentAfterRestart has a session that came up after the node restarted, in which the library has yet to wait for
// the neighbour's routes: nothing is sent until it has.
func TestUnsentAfterRestart(t *testing.T) {
	node := New(logr.Discard(), func() {})
	first, second := netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("2001:db8:1::1/128")
	node.prefixes = map[netip.Prefix]bool{first: true, second: true}
	session, _, _ := node.sessionOf(&api.Peer{
		State: &api.PeerState{
			NeighborAddress: routerAddress, SessionState: api.PeerState_SESSION_STATE_ESTABLISHED,
			RemoteCap: []*api.Capability{unicast("IPv4")},
		},
		GracefulRestart: &api.GracefulRestart{LocalRestarting: true},
		AfiSafis: []*api.AfiSafi{{
			Config: &api.AfiSafiConfig{Family: apiFamily("IPv4")}, State: &api.AfiSafiState{Advertised: 1},
		}},
	})
	if err := node.fillUnsent(&session); err != nil {
		t.Fatal(err)
	}
	if session.Advertised != 0 || !slices.Equal(session.Unsent, []netip.Prefix{first}) {
		t.Errorf("%+v", session)
	}
}

// TestFaultPrefixLimit has a router that takes one route, and is sent two: what is reported goes on saying so when the
// router does not open the session any more.
// This test shows the row "it takes fewer routes than it is sent (`maximum-prefix`)" of docs/trust.md.
func TestFaultPrefixLimit(t *testing.T) {
	router, port := startRouter(t, nodeASN)
	limited := afiSafi("IPv4")
	limited.PrefixLimits = &api.PrefixLimit{Family: apiFamily("IPv4"), MaxPrefixes: 1}
	_, err := router.UpdatePeer(t.Context(), &api.UpdatePeerRequest{Peer: &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: nodeAddress, PeerAsn: nodeASN},
		Transport: &api.Transport{PassiveMode: true}, AfiSafis: []*api.AfiSafi{limited},
	}})
	if err != nil {
		t.Fatal(err)
	}
	node := startNode(t)
	peer := gracefulRouter(port)
	refused := node.Apply(t.Context(), routes.Changes{
		AddPaths: []routes.Path{
			{Prefix: netip.MustParsePrefix("198.51.100.1/32")}, {Prefix: netip.MustParsePrefix("198.51.100.2/32")},
		},
		AddPeers: []routes.Peer{peer},
	})
	if refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	isLimited := func(s routes.Session) bool {
		return s.State != purelbv1.SessionEstablished && s.LastError == errorOfLimit
	}
	sessionWith(t, node, "ended for the number of routes", isLimited)
	node.noteConnectError(peer.Neighbour, "the neighbour accepts connections and closes them again")
	sessionWith(t, node, "the reason stays", isLimited)
}

// unicast is the capability of a family.
func unicast(family purelbv1.IPFamily) *api.Capability {
	return &api.Capability{Cap: &api.Capability_MultiProtocol{
		MultiProtocol: &api.MultiProtocolCapability{Family: apiFamily(family)},
	}}
}

// TestNegotiated has neighbours that know both families.
func TestNegotiated(t *testing.T) {
	extended := func(nextHop purelbv1.IPFamily) *api.Capability {
		return &api.Capability{Cap: &api.Capability_ExtendedNexthop{ExtendedNexthop: &api.ExtendedNexthopCapability{
			Tuples: []*api.ExtendedNexthopCapabilityTuple{
				{NlriFamily: apiFamily("IPv4"), NexthopFamily: apiFamily(nextHop)},
			},
		}}}
	}
	both := []*api.Capability{unicast("IPv4"), unicast("IPv6")}
	const four, six, linkLocal = "192.0.2.1", "2001:db8::1", "fe80::1%eth0"
	for _, row := range []struct {
		name, neighbour string
		remote          []*api.Capability
		want            []purelbv1.IPFamily
	}{
		{"over IPv4", four, both, []purelbv1.IPFamily{"IPv4", "IPv6"}},
		{"over IPv6", six, both, []purelbv1.IPFamily{"IPv4", "IPv6"}},
		{"one family", six, both[1:], []purelbv1.IPFamily{"IPv6"}},
		{"a router that takes no next hop of IPv6", linkLocal, both, []purelbv1.IPFamily{"IPv6"}},
		{"another next hop", linkLocal, append(slices.Clone(both), extended("IPv4")), []purelbv1.IPFamily{"IPv6"}},
		{"a router that takes next hops of IPv6", linkLocal, append(slices.Clone(both), extended("IPv6")),
			[]purelbv1.IPFamily{"IPv4", "IPv6"}},
	} {
		p := &api.Peer{
			State:    &api.PeerState{RemoteCap: row.remote},
			AfiSafis: []*api.AfiSafi{afiSafi("IPv4"), afiSafi("IPv6")},
		}
		if got := negotiatedFamilies(p, netip.MustParseAddr(row.neighbour)); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

// gracefulRouter is the router as a neighbour that keeps routes.
func gracefulRouter(port int32) routes.Peer {
	return routes.Peer{Neighbour: netip.MustParseAddr(routerAddress), RoutingPeer: purelbv1.RoutingPeer{
		Name: "router", Address: routerAddress, SourceAddress: nodeAddress, PeerASN: routerASN, MyASN: nodeASN, Port: port,
		Families: []purelbv1.IPFamily{"IPv4"}, HoldSeconds: 90, KeepaliveSeconds: 30, ConnectSeconds: 1, RestartSeconds: 60,
	}}
}

// sessionWith waits until the session with the only neighbour is as wanted, and returns it.
func sessionWith(t testing.TB, node *Server, what string, isSo func(routes.Session) bool) routes.Session {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		sessions, err := node.TendSessions(t.Context())
		if err != nil || len(sessions) != 1 {
			t.Fatalf("%d sessions, %v", len(sessions), err)
		}
		if isSo(sessions[0]) {
			return sessions[0]
		}
		if time.Now().After(end) {
			t.Fatalf("not so: %s: %+v", what, sessions[0])
		}
	}
}

func isUp(s routes.Session) bool { return s.State == purelbv1.SessionEstablished && !s.Since.IsZero() }

// TestSettingsChange changes settings of a neighbour that supports graceful restart. Some need no new
// session, and the others cost no route.
func TestSettingsChange(t *testing.T) {
	router, port := startRouter(t, nodeASN)
	losses := countLosses(t, router)
	node := startNode(t)
	var held routes.Config
	change := func(peer routes.Peer, prefixes ...string) {
		t.Helper()
		desired := routes.Config{Peers: []routes.Peer{peer}}
		for _, p := range prefixes {
			desired.Paths = append(desired.Paths, routes.Path{Prefix: netip.MustParsePrefix(p)})
		}
		if refused := node.Apply(t.Context(), routes.Diff(held, desired, true)); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
		held = desired
	}
	eventually := func(what string, isSo func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !isSo(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not so: %s; routes lost: %d", what, losses.Load())
			}
		}
	}
	has := func(want ...string) {
		t.Helper()
		eventually(fmt.Sprintf("the router has %q", want), func() bool {
			got, err := routesOf(router)
			return err == nil && slices.Equal(got, want)
		})
	}

	peer := gracefulRouter(port)
	change(peer, "198.51.100.1/32")
	has("198.51.100.1/32")
	before := sessionWith(t, node, "the session is up", isUp)

	peer.Name, peer.ConnectSeconds = "another", 30
	change(peer, "198.51.100.1/32", "198.51.100.2/32")
	has("198.51.100.1/32", "198.51.100.2/32")
	if after := sessionWith(t, node, "the session is up", isUp); !after.Since.Equal(before.Since) {
		t.Errorf("another name and connectTime have cost the session: it is up since %s, not %s", after.Since, before.Since)
	}

	peer.HoldSeconds, peer.KeepaliveSeconds = 60, 20
	change(peer, "198.51.100.1/32", "198.51.100.2/32")
	sessionWith(t, node, "the session is opened anew", func(s routes.Session) bool {
		return isUp(s) && s.Since.After(before.Since) && s.HasSentAll
	})
	if got := losses.Load(); got != 0 {
		t.Errorf("the new session has cost the router routes %d times", got)
	}
	change(peer, "198.51.100.1/32")
	has("198.51.100.1/32")
	eventually("the route that was withdrawn is missed", func() bool { return losses.Load() > 0 })
	if got := losses.Load(); got != 1 {
		t.Errorf("the router has lost routes %d times, not once", got)
	}
}

// countLosses counts how often the router has fewer routes than it had. Its library tells of changes, too, but
// reads for that what it marks as stale at the same time. A session that is opened anew takes some
// hundred times as long as it takes to look again.
func countLosses(t *testing.T, router *server.BgpServer) *atomic.Int64 {
	t.Helper()
	losses, had := &atomic.Int64{}, uint64(0)
	ctx, ended := t.Context(), make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			table, err := router.GetTable(
				ctx, &api.GetTableRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: apiFamily("IPv4")},
			)
			if err != nil {
				continue
			}
			if table.NumPath < had {
				losses.Add(1)
			}
			had = table.NumPath
		}
	}()
	t.Cleanup(func() { <-ended })
	return losses
}

// startStalledRouter starts a router that has sessions and sends keepalives, but reads nothing once a
// session is up, and returns the port.
func startStalledRouter(t *testing.T) (port int32) {
	t.Helper()
	// The buffer is small before there is a connection. The window would else end before what the node has sent, and
	// the kernel drop the acknowledgements of the keepalives, too.
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) (err error) {
		controlErr := conn.Control(func(descriptor uintptr) {
			err = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
		return errors.Join(err, controlErr)
	}}
	listener, err := config.Listen(t.Context(), "tcp4", routerAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	send := func(conn net.Conn, m *bgp.BGPMessage, err error) error {
		if err != nil {
			return err
		}
		bytes, err := m.Serialize()
		if err != nil {
			return err
		}
		_, err = conn.Write(bytes)
		return err
	}
	serve := func(conn net.Conn) {
		defer conn.Close()
		open, err := bgp.NewBGPOpenMessage(routerASN, 3, netip.MustParseAddr("192.0.2.1"), []bgp.OptionParameterInterface{
			bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)}),
		})
		for ; send(conn, open, err) == nil && t.Context().Err() == nil; time.Sleep(time.Second) {
			open, err = bgp.NewBGPKeepAliveMessage(), nil // from the second time on
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// shrinkSendBuffer lets the kernel keep little of what a neighbour does not read. It would else keep megabytes: some
// ten thousand messages.
func shrinkSendBuffer(t *testing.T, neighbour netip.Addr, port int32) {
	t.Helper()
	forEachConnectionTo(neighbour, int(port), func(descriptor int) {
		if err := unix.SetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
			t.Error(err)
		}
	})
}

// TestFaultStalledNeighbour has a router that reads nothing of what changes all the time: the session
// is reset, and says why. This test shows the row "it has a session, and reads nothing" of docs/trust.md.
func TestFaultStalledNeighbour(t *testing.T) {
	port := startStalledRouter(t)
	node := New(logr.Discard(), func() {})
	if err := node.Start(t.Context(), netip.MustParseAddr("192.0.2.11")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop(context.Background(), false) })
	peer := routes.Peer{Neighbour: netip.MustParseAddr(routerAddress), RoutingPeer: purelbv1.RoutingPeer{
		Name: "router", Address: routerAddress, SourceAddress: nodeAddress, PeerASN: routerASN, MyASN: nodeASN, Port: port,
		Families: []purelbv1.IPFamily{"IPv4"}, HoldSeconds: 3, KeepaliveSeconds: 1, ConnectSeconds: 1,
	}}
	if refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{peer}}); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	upSince, end := time.Time{}, time.Now().Add(2*time.Minute)
	for round := uint32(0); ; round++ {
		sessions, err := node.TendSessions(t.Context())
		if err != nil || len(sessions) != 1 {
			t.Fatalf("%d sessions, %v", len(sessions), err)
		}
		session := sessions[0]
		if !upSince.IsZero() && session.LastError == errorOfStalled {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the session goes on: %+v", session)
		}
		if session.State != purelbv1.SessionEstablished {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !session.Since.Equal(upSince) { // a slow machine may open it more than once
			upSince = session.Since
			shrinkSendBuffer(t, session.Neighbour, port)
		}
		// Each route has attributes of its own, and so a message.
		var paths []routes.Path
		for i := range uint32(1000) {
			med := round*1000 + i
			paths = append(paths, routes.Path{
				Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), MED: &med,
			})
		}
		if refused := node.Apply(t.Context(), routes.Changes{AddPaths: paths}); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
	}
}

// startSilentRouter starts a router that supports graceful restart, and says nothing more once a session is up. It
// returns the port.
func startSilentRouter(t *testing.T) (port int32) {
	t.Helper()
	listener, err := net.Listen("tcp4", routerAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	const holdSeconds, restartSeconds = 3, 60
	tuple := bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, false)
	open, err := bgp.NewBGPOpenMessage(routerASN, holdSeconds, netip.MustParseAddr("192.0.2.1"),
		[]bgp.OptionParameterInterface{
			bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
				bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC),
				bgp.NewCapGracefulRestart(false, false, restartSeconds, []*bgp.CapGracefulRestartTuple{tuple}),
			}),
		})
	if err != nil {
		t.Fatal(err)
	}
	var greeting []byte
	for _, m := range []*bgp.BGPMessage{open, bgp.NewBGPKeepAliveMessage()} {
		message, err := m.Serialize()
		if err != nil {
			t.Fatal(err)
		}
		greeting = append(greeting, message...)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Write(greeting); err == nil {
					_, _ = io.Copy(io.Discard, conn) // until the node ends the session
				}
			}()
		}
	}()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// TestSilenceSaysWhy has a router that is silent for the hold time: the session says so, also with graceful restart.
func TestSilenceSaysWhy(t *testing.T) {
	port := startSilentRouter(t)
	for name, restartSeconds := range map[string]int32{"with graceful restart": 60, "without": 0} {
		t.Run(name, func(t *testing.T) {
			node, peer := startNode(t), gracefulRouter(port)
			peer.RestartSeconds = restartSeconds
			if refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{peer}}); refused.Err() != nil {
				t.Fatal(refused.Err())
			}
			sessionWith(t, node, "the session is up", isUp)
			ended := sessionWith(t, node, "the session has ended", func(s routes.Session) bool { return s.LastError != "" })
			if ended.LastError != errorOfSilence {
				t.Errorf("the session ended: %s", ended.LastError)
			}
		})
	}
}

// TestExternalIsNotInternal ends a session with a neighbour that is to be in any autonomous system but the
// node's own, and is in that.
func TestExternalIsNotInternal(t *testing.T) {
	_, port := startRouter(t, routerASN)
	node := startNode(t)
	peer := routes.Peer{Neighbour: netip.MustParseAddr(routerAddress), RoutingPeer: purelbv1.RoutingPeer{
		Name: "router", Address: routerAddress, SourceAddress: nodeAddress, MyASN: routerASN, Port: port,
		Families: []purelbv1.IPFamily{"IPv4"}, HoldSeconds: 90, KeepaliveSeconds: 30, ConnectSeconds: 1,
	}}
	if refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{peer}}); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	var last routes.Session
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		sessions, err := node.TendSessions(t.Context())
		if err != nil || len(sessions) != 1 {
			t.Fatalf("%d sessions, %v", len(sessions), err)
		}
		if last = sessions[0]; last.State == "Idle" && last.LastError == errorOfOwnAS {
			return
		}
	}
	t.Errorf("the session goes on: %+v", last)
}

// TestEndReasons ends sessions: the speaker says why where it ends them itself, and what the library says otherwise.
func TestEndReasons(t *testing.T) {
	node, addr := New(logr.Discard(), func() {}), netip.MustParseAddr(routerAddress)
	node.remember(addr)
	turn := func(state bgp.FSMState) {
		event := &apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE}
		event.Peer.State.NeighborAddress, event.Peer.State.SessionState = addr, state
		if state == bgp.BGP_FSM_IDLE {
			event.Peer.State.DisconnectReason = api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED
		}
		node.onPeerUpdate(event, time.Now())
	}
	const silent = errorOfSilence
	refuses := errors.New("refused")
	for _, row := range []struct {
		name string
		// ends are the reasons for which the speaker ends the session, and err what the library says to that.
		ends []string
		err  error
		want string
	}{
		{"the library ends it", nil, nil, silent},
		{"the speaker ends it", []string{errorOfStalled}, nil, errorOfStalled},
		{"the library ends the next one", nil, nil, silent},
		{"who is first says why", []string{errorOfBFD, errorOfStalled}, nil, errorOfBFD},
		{"the library does not end it when asked", []string{errorOfBFD}, refuses, silent},
	} {
		turn(bgp.BGP_FSM_ESTABLISHED)
		for _, why := range row.ends {
			if err := node.endSession(addr, why, func() error { return row.err }); !errors.Is(err, row.err) {
				t.Errorf("%s: %v", row.name, err)
			}
		}
		turn(bgp.BGP_FSM_IDLE)
		if got := node.sessions[addr].lastError; got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if err := node.endSession(addr, errorOfBFD, func() error { return refuses }); err != nil {
			t.Errorf("%s: a session that is down is ended", row.name)
		}
	}
}

// TestResetSaysWhy resets a session as BFD does.
func TestResetSaysWhy(t *testing.T) {
	_, port := startRouter(t, nodeASN)
	node := startNode(t)
	peer := gracefulRouter(port)
	if refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{peer}}); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	sessionWith(t, node, "the session is up", isUp)
	if err := node.ResetSession(t.Context(), peer.Neighbour); err != nil {
		t.Fatal(err)
	}
	sessionWith(t, node, "the session says why it ended", func(s routes.Session) bool { return s.LastError == errorOfBFD })
	sessionWith(t, node, "the session is up again", isUp)
}

// TestLateReports removes a neighbour, of which the library then still reports: the next session with it begins with
// nothing of that.
func TestLateReports(t *testing.T) {
	_, port := startRouter(t, nodeASN)
	node, peer := startNode(t), gracefulRouter(port)
	apply := func(changes routes.Changes) {
		t.Helper()
		if refused := node.Apply(t.Context(), changes); refused.Err() != nil {
			t.Fatal(refused.Err())
		}
	}
	remembered := func() int {
		node.mu.Lock()
		defer node.mu.Unlock()
		return len(node.sessions)
	}
	apply(routes.Changes{AddPeers: []routes.Peer{peer}})
	sessionWith(t, node, "the session is up", isUp)
	apply(routes.Changes{RemovePeers: []routes.Peer{peer}})
	event := &apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE}
	event.Peer.State.NeighborAddress, event.Peer.State.SessionState = peer.Neighbour, bgp.BGP_FSM_IDLE
	event.Peer.State.DisconnectReason = api.PeerState_DISCONNECT_REASON_INVALID_MSG
	for what, report := range map[string]func(){
		"that the session has ended": func() { node.onPeerUpdate(event, time.Now()) },
		"why it cannot connect":      func() { node.noteConnectError(peer.Neighbour, "cannot connect") },
		"nothing, as it is resting":  func() { node.noteRest(peer.Neighbour) },
	} {
		if report(); remembered() != 0 {
			t.Errorf("the library reports %s of a neighbour that was removed: it is remembered", what)
			node.forget(peer.Neighbour)
		}
	}
	refused := node.Apply(t.Context(), routes.Changes{AddPeers: []routes.Peer{{}}})
	if refused.Err() == nil || remembered() != 0 {
		t.Errorf("a neighbour without an address: %v, and %d are remembered", refused.Err(), remembered())
	}
}

// A session has stalled when nothing was sent for twice the hold time.
func TestNoteSent(t *testing.T) {
	begun := time.Now()
	e := &sessionEvents{}
	for i, step := range []struct {
		after time.Duration // since begun
		isUp  bool
		sent  uint64
		hold  time.Duration
		want  bool
	}{
		{0, false, 0, 0, false},
		{time.Hour, true, 2, 9 * time.Second, false}, // the session is up
		{time.Hour + 18*time.Second, true, 2, 9 * time.Second, false},
		{time.Hour + 19*time.Second, true, 2, 9 * time.Second, true},
		{time.Hour + 20*time.Second, false, 2, 9 * time.Second, false}, // it is down
		{2 * time.Hour, true, 3, 9 * time.Second, false},
		{2*time.Hour + 19*time.Second, true, 4, 9 * time.Second, false}, // a keepalive was sent
		{3 * time.Hour, true, 5, 0, false},
		{4 * time.Hour, true, 5, 0, false}, // there are no keepalives
	} {
		if got := e.noteSent(step.isUp, step.sent, step.hold, begun.Add(step.after)); got != step.want {
			t.Errorf("step %d: stalled: %t", i, got)
		}
	}
}
