//go:build routers

package gobgp_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/pacing"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/internal/routertest"
	"github.com/purelb/purelb-operator/nodeagent/speaker/bfd/udp"
	"github.com/purelb/purelb-operator/nodeagent/speaker/gobgp"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// soon is how long a test waits for what has to happen: a machine may be busy. It is less than the
// hold time of sessions with BFD.
const soon = 60 * time.Second

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }

// bgpd is a configuration of FRR that takes all of the node's routes.
const bgpd = `
router bgp 65000
 bgp router-id 192.0.2.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 192.0.2.11 remote-as 65001
 neighbor 192.0.2.11 timers 1 3
 neighbor 2001:db8::11 remote-as 65001
 address-family ipv4 unicast
  neighbor 192.0.2.11 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 192.0.2.11 activate
  neighbor 2001:db8::11 activate
 exit-address-family
`

// newLink connects the node, 192.0.2.11 and 2001:db8::11, by a switch to a router, 192.0.2.1
// and 2001:db8::1.
func newLink(t *testing.T) (router, switched nstest.Neighbour) {
	t.Helper()
	router, switched = nstest.NewNeighbour(t), nstest.NewNeighbour(t)
	nstest.Run(t, "ip link set lo up")
	nstest.Run(t, "ip link add eth0 type veth peer name port0")
	t.Cleanup(func() { nstest.Run(t, "ip link del eth0") })
	nstest.Run(t, "ip link add far type veth peer name port1")
	router.MoveLink(t, "far")
	switched.Run(t, "ip link add br0 type bridge mcast_snooping 0")
	switched.Run(t, "ip link set br0 up")
	for _, port := range []string{"port0", "port1"} {
		switched.MoveLink(t, port)
		switched.Run(t, "ip link set %s master br0 up", port)
	}
	router.Run(t, "ip link set lo up")
	router.Run(t, "ip link set far up")
	router.Run(t, "ip addr add 192.0.2.1/24 dev far")
	router.Run(t, "ip addr add 2001:db8::1/64 dev far nodad")
	nstest.Run(t, "ip link set eth0 up")
	nstest.Run(t, "ip addr add 192.0.2.11/24 dev eth0")
	nstest.Run(t, "ip addr add 2001:db8::11/64 dev eth0 nodad")
	return router, switched
}

// routerOn is newLink without the switch.
func routerOn(t *testing.T) nstest.Neighbour {
	t.Helper()
	router, _ := newLink(t)
	return router
}

// speaker is a library that holds nothing yet, and BFD that watches nobody, put together as package speaker does.
type speaker struct {
	*gobgp.Server
	bfd    *udp.BFD
	endBFD func()

	// mu protects what follows.
	mu       sync.Mutex
	held     routes.Config
	bfdWaits routes.BFDWaits
	// failures is how often BFD has failed, and hasEnded that the speaker has been stopped.
	failures atomic.Int32
	hasEnded atomic.Bool
}

func newSpeaker(t *testing.T) *speaker {
	t.Helper()
	wake := make(chan struct{}, 1)
	s := &speaker{Server: gobgp.New(logr.Discard(), func() { pacing.Signal(wake) })}
	if err := s.Start(t.Context(), netip.MustParseAddr("192.0.2.11")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watcher, err := udp.Start(ctx, testLog(t), func() { pacing.Signal(wake) }, func(neighbour netip.Addr) {
		s.failures.Add(1)
		go func() { _ = s.ResetSession(ctx, neighbour) }()
	})
	if err != nil {
		t.Fatal(err)
	}
	s.bfd, s.endBFD = watcher, func() { cancel(); watcher.Wait() }
	go func() {
		for ctx.Err() == nil {
			_, _ = s.sessions(ctx)
			select {
			case <-wake:
			case <-time.After(time.Second):
			}
		}
	}()
	t.Cleanup(func() { _ = s.Stop(context.Background(), false) })
	return s
}

// testLog logs to a test.
func testLog(t *testing.T) logr.Logger {
	return funcr.New(func(_, args string) { t.Log(time.Now().Format("05.000"), args) }, funcr.Options{})
}

// Stop ends the sessions, and then BFD.
func (s *speaker) Stop(ctx context.Context, graceful bool) error {
	s.hasEnded.Store(true)
	err := s.Server.Stop(ctx, graceful)
	s.endBFD()
	return err
}

// sessions returns the sessions, and watches their neighbours.
func (s *speaker) sessions(ctx context.Context) ([]routes.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions, err := s.TendSessions(ctx)
	if err == nil && ctx.Err() == nil {
		watched, waits := s.bfdWaits.DecideWatched(s.held.Peers, sessions, s.bfd.State, time.Now())
		s.bfdWaits = waits
		s.bfd.Sync(watched)
	}
	return sessions, err
}

// hold makes the library hold what is desired.
func (s *speaker) hold(t *testing.T, d routes.Config) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused := s.Apply(t.Context(), routes.Diff(s.held, d, true)); refused.Err() != nil {
		t.Fatal(refused.Err())
	}
	s.held = d
}

// session returns the session with a neighbour.
func (s *speaker) session(t *testing.T, neighbour string) routes.Session {
	t.Helper()
	sessions, err := s.sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range sessions {
		if one.Neighbour.String() == neighbour {
			return one
		}
	}
	return routes.Session{}
}

func peer(address string, change ...func(*purelbv1.RoutingPeer)) routes.Peer {
	p := purelbv1.RoutingPeer{
		Name: "p", Address: address, PeerASN: 65000, MyASN: 65001, Port: 179, Families: []purelbv1.IPFamily{"IPv4"},
		HoldSeconds: 9, KeepaliveSeconds: 3, ConnectSeconds: 1, RestartSeconds: 30,
	}
	addr := netip.MustParseAddr(address)
	if addr.Is6() {
		p.Families = []purelbv1.IPFamily{"IPv6"}
	}
	for _, c := range change {
		c(&p)
	}
	return routes.Peer{RoutingPeer: p, Neighbour: addr}
}

func path(prefix string) routes.Path { return routes.Path{Prefix: netip.MustParsePrefix(prefix)} }

func eventually(t *testing.T, what string, isSo func() bool, more func() string) {
	t.Helper()
	for end := time.Now().Add(soon); !isSo(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s\n%s", what, more())
		}
	}
}

// hasRoutes waits until FRR has exactly these routes of one family, and the speaker says of its sessions what FRR does.
func (s *speaker) hasRoutes(t *testing.T, router *routertest.FRR, family string, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the router has %v", want), func() bool {
		var got []string
		for prefix := range router.Routes(family) {
			got = append(got, prefix)
		}
		slices.Sort(got)
		slices.Sort(want)
		return slices.Equal(got, want)
	}, func() string { return router.Show("show bgp "+family+" unicast") + router.Log() })
	s.isAsSeenBy(t, router)
}

// witness is a router that says how its sessions are.
type witness interface {
	Sessions() map[string]routertest.Session
	Show(command string) string
}

// isAsSeenBy waits until the speaker says of its sessions with a router what that says of them from outside: whether
// they are up, and how many routes the speaker has sent. A speaker that has ended says nothing, and needs no session.
func (s *speaker) isAsSeenBy(t *testing.T, router witness) {
	t.Helper()
	command := "show bgp summary"
	if _, isBIRD := router.(*routertest.BIRD); isBIRD {
		command = "show protocols all"
	}
	var differ []string
	eventually(t, "the status says what the router says", func() bool {
		seen := router.Sessions()
		differ = nil
		s.mu.Lock()
		peers := slices.Clone(s.held.Peers)
		s.mu.Unlock()
		if s.hasEnded.Load() {
			peers = nil
		}
		known := map[string]bool{}
		for _, p := range peers {
			from := nodeAddressTowards(p)
			known[from] = true
			said := s.session(t, p.Neighbour.String())
			isUp, advertised := said.State == purelbv1.SessionEstablished, 0
			if isUp {
				advertised = said.Advertised
			}
			if one := seen[from]; one.IsUp() != isUp || isUp && one.Received != advertised {
				differ = append(differ, fmt.Sprintf("the node says %+v, and the router of %s: %+v", said, from, one))
			}
		}
		for from, one := range seen {
			if one.IsUp() && !known[from] && strings.HasPrefix(from, "192.0.2.1") && !s.hasEnded.Load() {
				differ = append(differ, fmt.Sprintf("the router has a session with %s that the node does not know", from))
			}
		}
		return len(differ) == 0
	}, func() string { return strings.Join(differ, "\n") + "\n" + router.Show(command) })
}

// nodeAddressTowards is from which address the node has its session with a neighbour.
func nodeAddressTowards(p routes.Peer) string {
	switch {
	case p.SourceAddress != "":
		return p.SourceAddress
	case p.Neighbour.Is4():
		return "192.0.2.11"
	}
	return "2001:db8::11"
}

func TestRoutesAtFRR(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	s := newSpeaker(t)
	both := func(p *purelbv1.RoutingPeer) {
		p.Families, p.NextHop = []purelbv1.IPFamily{"IPv4", "IPv6"}, "2001:db8::11"
	}
	med, pref := uint32(7), uint32(300)
	marked := routes.Path{
		Prefix: netip.MustParsePrefix("203.0.113.0/24"), Communities: []uint32{65001<<16 | 42},
		LargeCommunities: []routes.LargeCommunity{{65001, 1, 2}}, MED: &med, LocalPref: &pref,
	}
	d := routes.Config{
		Paths: []routes.Path{path("198.51.100.1/32"), marked, path("2001:db8:1::1/128")},
		Peers: []routes.Peer{peer("192.0.2.1", both), peer("2001:db8::1")},
	}
	neighbour4, neighbour6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	d.Rules = []routes.Rule{
		{Neighbours: []netip.Addr{neighbour4}, NextHop: netip.MustParseAddr("2001:db8::11")},
		{Neighbours: []netip.Addr{neighbour4, neighbour6}, Prefixes: []netip.Prefix{marked.Prefix}, ASN: 65001, Prepend: 2},
	}
	s.hold(t, d)
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32", "203.0.113.0/24")
	s.hasRoutes(t, router, "ipv6", "2001:db8:1::1/128")
	eventually(t, "the router has the IPv6 route from both sessions", func() bool {
		return len(router.Routes("ipv6")["2001:db8:1::1/128"].NextHops) == 2
	},
		func() string { return router.Show("show bgp ipv6 unicast") })
	for _, hop := range router.Routes("ipv6")["2001:db8:1::1/128"].NextHops {
		if hop != "2001:db8::11" {
			t.Errorf("a next hop is %s", hop)
		}
	}
	got := router.Details("ipv4", "203.0.113.0/24")
	if got.ASPath != "65001 65001 65001" || got.Communities != "65001:42" || got.Large != "65001:1:2" || got.MED != 7 {
		t.Errorf("attributes: %+v", got)
	}
	if plain := router.Details("ipv4", "198.51.100.1/32"); plain.ASPath != "65001" || plain.Communities != "" ||
		len(plain.NextHops) != 1 || plain.NextHops[0] != "192.0.2.11" {
		t.Errorf("attributes of a plain route: %+v", plain)
	}
	if session := s.session(t, "192.0.2.1"); session.Advertised != 3 || len(session.Families) != 2 ||
		session.PeerASN != 65000 || session.Since.IsZero() {
		t.Errorf("session: %+v", session)
	}

	t.Run("a route goes, another changes", func(t *testing.T) {
		next := d
		drained := path("198.51.100.1/32")
		drained.Communities = []uint32{routes.GracefulShutdownCommunity}
		next.Paths = []routes.Path{drained, path("2001:db8:1::1/128")}
		next.Rules = d.Rules[:1]
		s.hold(t, next)
		s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
		eventually(t, "the router avoids the node", func() bool {
			return router.Details("ipv4", "198.51.100.1/32").Communities == "graceful-shutdown"
		},
			func() string { return router.Show("show bgp ipv4 unicast 198.51.100.1/32 json") })
	})
	t.Run("a rule keeps a route from a neighbour", func(t *testing.T) {
		next := s.held
		next.Rules = append(
			slices.Clone(s.held.Rules),
			routes.Rule{
				Reject: true, Neighbours: []netip.Addr{neighbour4},
				Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::1/128")},
			},
		)
		s.hold(t, next)
		eventually(t, "the router has the route from one session", func() bool {
			return len(router.Routes("ipv6")["2001:db8:1::1/128"].NextHops) == 1
		},
			func() string { return router.Show("show bgp ipv6 unicast") })
	})
	t.Run("a neighbour goes", func(t *testing.T) {
		next := s.held
		next.Peers = next.Peers[1:]
		next.Rules = nil
		s.hold(t, next)
		s.hasRoutes(t, router, "ipv4")
	})
}

// TestFaultSessions gives neighbours that cannot work, and wants to hear why in words. This test shows
// the row "it expects another autonomous system or password, is away, or refuses connections" of
// docs/trust.md.
func TestFaultSessions(t *testing.T) {
	where, _ := newLink(t)
	routertest.StartFRR(t, where, strings.Replace(bgpd, "192.0.2.11 remote-as 65001", "192.0.2.11 remote-as 65009", 1)+`
router bgp 65000
 neighbor 2001:db8::11 password secret
 neighbor 2001:db8::12 remote-as 65001
 address-family ipv6 unicast
  neighbor 2001:db8::12 activate
 exit-address-family
`)
	nstest.Run(t, "ip addr add 2001:db8::12/64 dev eth0 nodad")
	where.Run(t, "ip addr add 2001:db8::2/64 dev far nodad")
	for _, row := range []struct {
		name, neighbour, want string
		peer                  routes.Peer
	}{
		{
			"the router expects another ASN", "192.0.2.1",
			"refuses the session: it expects the node in another autonomous system", peer("192.0.2.1"),
		},
		{"the router is in another ASN", "2001:db8::1", "in another autonomous system than peerASN says",
			peer("2001:db8::1", func(p *purelbv1.RoutingPeer) { p.PeerASN, p.SourceAddress = 65009, "2001:db8::12" })},
		{
			"no password", "2001:db8::1", "its password differs",
			peer("2001:db8::1", func(p *purelbv1.RoutingPeer) { p.SourceAddress = "2001:db8::11" }),
		},
		{
			"no such neighbour", "192.0.2.77", "no route to host",
			peer("192.0.2.77", func(p *purelbv1.RoutingPeer) { p.ConnectSeconds = 6 }),
		},
		{
			"nothing listens", "2001:db8::1", "refuses connections",
			peer("2001:db8::1", func(p *purelbv1.RoutingPeer) { p.Port = 1790 }),
		},
		{"no route", "198.51.100.7", "no route to the neighbour", peer("198.51.100.7")},
		{
			"a source that is not the node's", "192.0.2.1", "does not have the source address",
			peer("192.0.2.1", func(p *purelbv1.RoutingPeer) { p.SourceAddress = "192.0.2.99" }),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newSpeaker(t)
			s.hold(t, routes.Config{Peers: []routes.Peer{row.peer}})
			eventually(t, row.want, func() bool { return strings.Contains(s.session(t, row.neighbour).LastError, row.want) },
				func() string { return fmt.Sprintf("%+v", s.session(t, row.neighbour)) })
		})
	}
}

func TestPassword(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd+"router bgp 65000\n neighbor 192.0.2.11 password secret\n")
	s := newSpeaker(t)
	wrong := peer("192.0.2.1")
	wrong.Password = "other"
	s.hold(t, routes.Config{Peers: []routes.Peer{wrong}, Paths: []routes.Path{path("198.51.100.1/32")}})
	eventually(t, "the password differs", func() bool {
		return strings.Contains(s.session(t, "192.0.2.1").LastError, "password differs")
	},
		func() string { return fmt.Sprintf("%+v", s.session(t, "192.0.2.1")) })
	right := peer("192.0.2.1")
	right.Password = "secret"
	s.hold(t, routes.Config{Peers: []routes.Peer{right}, Paths: s.held.Paths})
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
}

// TestFaultRouterRestarts kills the router, and starts it again. This test shows the row "it restarts"
// of docs/trust.md.
func TestFaultRouterRestarts(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	s := newSpeaker(t)
	s.hold(t, routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}})
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	router.Stop()
	eventually(t, "the session is down", func() bool {
		session := s.session(t, "192.0.2.1")
		return session.State != purelbv1.SessionEstablished && session.LastError != ""
	}, func() string { return fmt.Sprintf("%+v", s.session(t, "192.0.2.1")) })
	router.Start(t)
	began := time.Now()
	eventually(t, "the session is up again", func() bool {
		return s.session(t, "192.0.2.1").State == purelbv1.SessionEstablished
	}, func() string { return fmt.Sprintf("%+v", s.session(t, "192.0.2.1")) })
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	t.Logf("the router has the route %v after its return", time.Since(began).Round(10*time.Millisecond))
}

// TestRouterComesLater has a router that is not there when the speaker starts.
func TestRouterComesLater(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	router.Stop()
	s := newSpeaker(t)
	s.hold(t, routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}})
	eventually(t, "the first call has failed", func() bool {
		return strings.Contains(s.session(t, "192.0.2.1").LastError, "refuses connections")
	}, func() string { return fmt.Sprintf("%+v", s.session(t, "192.0.2.1")) })
	router.Start(t)
	began := time.Now()
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	t.Logf("the router has the route %v after it came", time.Since(began).Round(10*time.Millisecond))
}

// TestGracefulRestart replaces the speaker by another: the router keeps the routes meanwhile,
// and then has what the next one advertises.
func TestGracefulRestart(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	first := newSpeaker(t)
	first.hold(
		t,
		routes.Config{
			Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32"), path("198.51.100.2/32")},
		},
	)
	first.hasRoutes(t, router, "ipv4", "198.51.100.1/32", "198.51.100.2/32")
	if err := first.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(
		t, "the routes are stale", func() bool { return router.Routes("ipv4")["198.51.100.1/32"].IsStale },
		func() string { return router.Show("show bgp ipv4 unicast") },
	)
	next := newSpeaker(t)
	restarted := peer("192.0.2.1")
	restarted.SetsRestartState = true
	next.hold(t, routes.Config{Peers: []routes.Peer{restarted}, Paths: []routes.Path{path("198.51.100.1/32")}})
	eventually(t, "the router has the route anew", func() bool {
		r, exists := router.Routes("ipv4")["198.51.100.1/32"]
		if !exists {
			t.Fatal("the router dropped the route")
		}
		return !r.IsStale
	}, func() string { return router.Show("show bgp ipv4 unicast") })
	next.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	eventually(
		t, "all has been sent", func() bool { return next.session(t, "192.0.2.1").HasSentAll }, func() string { return "" },
	)
}

// TestReopen changes settings that the session is opened with: the router keeps the route until it has
// it anew.
func TestReopen(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	s := newSpeaker(t)
	d := routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}}
	s.hold(t, d)
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	before := s.session(t, "192.0.2.1").Since
	began := time.Now()
	s.hold(t, routes.Config{Peers: []routes.Peer{peer("192.0.2.1", func(p *purelbv1.RoutingPeer) {
		p.HoldSeconds, p.KeepaliveSeconds = 12, 4
	})}, Paths: d.Paths})
	wasStale := false
	eventually(t, "the router has the route anew", func() bool {
		r, exists := router.Routes("ipv4")["198.51.100.1/32"]
		if !exists {
			t.Fatal("the router dropped the route")
		}
		wasStale = wasStale || r.IsStale
		session := s.session(t, "192.0.2.1")
		return !r.IsStale && session.HasSentAll && session.Since.After(before)
	}, func() string { return router.Show("show bgp ipv4 unicast") })
	t.Logf(
		"the session was opened anew in %v; the route was stale: %t", time.Since(began).Round(10*time.Millisecond), wasStale,
	)
}

// TestHardStop ends a speaker whose node is to send no more traffic here.
func TestHardStop(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	s := newSpeaker(t)
	s.hold(t, routes.Config{Peers: []routes.Peer{peer("192.0.2.1")}, Paths: []routes.Path{path("198.51.100.1/32")}})
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	if err := s.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	s.hasRoutes(t, router, "ipv4")
}

func TestRoutesAtBIRD(t *testing.T) {
	router := routertest.StartBIRD(t, routerOn(t), `
router id 192.0.2.1;
protocol device { }
protocol bgp v4 { local as 65000; neighbor 192.0.2.11 as 65001; ipv4 { import all; export none; }; }
protocol bgp v6 { local as 65000; neighbor 2001:db8::11 as 65001; ipv6 { import all; export none; }; }
`)
	s := newSpeaker(t)
	s.hold(
		t,
		routes.Config{
			Peers: []routes.Peer{peer("192.0.2.1"), peer("2001:db8::1")},
			Paths: []routes.Path{path("198.51.100.1/32"), path("2001:db8:1::1/128")},
		},
	)
	eventually(t, "BIRD has both routes", func() bool {
		table := router.Show("show route")
		return strings.Contains(table, "198.51.100.1/32") && strings.Contains(table, "2001:db8:1::1/128")
	}, func() string { return router.Show("show protocols all") })
	s.isAsSeenBy(t, router)
	if err := s.Stop(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if table := router.Show("show route"); !strings.Contains(table, "198.51.100.1/32") {
		t.Errorf("BIRD dropped the routes of a speaker that restarts:\n%s", table)
	}
}
