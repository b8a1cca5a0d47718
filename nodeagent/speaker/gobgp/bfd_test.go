//go:build routers

package gobgp_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	purelbv1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/internal/routertest"
	"github.com/purelb/purelb-operator/nodeagent/speaker/routes"
)

// Configurations of FRR and BIRD with BFD, and a hold time that no test waits for. In the first the node is
// a neighbour by its address, in the second any station of the link is.
const (
	frrStatic = bgpd + `
router bgp 65000
 neighbor 192.0.2.11 timers 30 90
 neighbor 192.0.2.11 bfd 15 200 200
`
	frrRange = `
router bgp 65000
 bgp router-id 192.0.2.1
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as 65001
 neighbor nodes timers 30 90
 neighbor nodes bfd 15 200 200
 bgp listen range 192.0.2.0/24 peer-group nodes
`
	bird = `
router id 192.0.2.1;
protocol device { }
protocol bfd { interface "*" { interval 200 ms; multiplier 15; }; }
protocol bgp v4 {
  local 192.0.2.1 as 65000; neighbor range 192.0.2.0/24 as 65001; hold time 90; %s
  ipv4 { import all; export none; };
}
`
)

// withBFD gives a neighbour BFD. The machine may be busy, and each side is dead for the other after 3 s only.
func withBFD(p *purelbv1.RoutingPeer) {
	p.BFDIntervalMilliseconds, p.BFDMultiplier, p.HoldSeconds, p.KeepaliveSeconds = 200, 15, 90, 30
}

// hellos returns how many datagrams have come, which are all of BFD.
func hellos(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "Udp:" && fields[1] != "InDatagrams" {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no counter of datagrams")
	return 0
}

// staysUp waits until session and BFD are up, and then for thirty hellos in a row during which they stay so.
func (s *speaker) staysUp(t *testing.T, more func() string) {
	t.Helper()
	var last routes.Session
	isUp := func() bool {
		last = s.session(t, "192.0.2.1")
		return last.State == purelbv1.SessionEstablished && last.BFD == "Up"
	}
	eventually(t, "session and BFD are up", isUp, func() string { return fmt.Sprintf("%+v\n%s", last, more()) })
	since, first, failures := last.Since, hellos(t), s.failures.Load()
	eventually(t, "thirty hellos", func() bool {
		if !isUp() || !last.Since.Equal(since) || s.failures.Load() != failures {
			t.Fatalf("they do not stay up: %+v, %d failures\n%s", last, s.failures.Load()-failures, more())
		}
		return hellos(t) >= first+30
	}, more)
}

func oneRoute(change ...func(*purelbv1.RoutingPeer)) routes.Config {
	return routes.Config{
		Peers: []routes.Peer{peer("192.0.2.1", append(change, withBFD)...)}, Paths: []routes.Path{path("198.51.100.1/32")},
	}
}

// TestBFDAtFRR has a router that begins first, and one that begins last; then each side restarts, and at last
// the link dies.
func TestBFDAtFRR(t *testing.T) {
	for name, config := range map[string]string{"a neighbour by address": frrStatic, "any station of the link": frrRange} {
		for _, isFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the router is first %t", name, isFirst), func(t *testing.T) {
				where, switched := newLink(t)
				var router *routertest.FRR
				if isFirst {
					router = routertest.StartFRR(t, where, config)
				}
				s := newSpeaker(t)
				s.hold(t, oneRoute())
				if !isFirst {
					eventually(t, "the node has tried", func() bool { return s.session(t, "192.0.2.1").LastError != "" },
						func() string { return "" })
					router = routertest.StartFRR(t, where, config)
				}
				more := func() string { return router.Show("show bfd peers") + router.Log() }
				s.staysUp(t, more)
				s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")

				router.Stop()
				eventually(t, "the session is down", func() bool {
					return s.session(t, "192.0.2.1").State != purelbv1.SessionEstablished
				}, func() string { return "" })
				router.Start(t)
				s.staysUp(t, more)
				s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")

				if err := s.Stop(t.Context(), true); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the route is stale", func() bool { return router.Routes("ipv4")["198.51.100.1/32"].IsStale }, more)
				eventually(t, "the router's BFD is down", func() bool {
					return !strings.Contains(router.Show("show bfd peers"), "Status: up")
				}, more)
				if _, exists := router.Routes("ipv4")["198.51.100.1/32"]; !exists {
					t.Error("the router drops the route of a speaker that restarts, when its BFD ends")
				}
				next := newSpeaker(t)
				restarted := oneRoute()
				restarted.Peers[0].SetsRestartState = true
				next.hold(t, restarted)
				next.staysUp(t, more)
				next.hasRoutes(t, router, "ipv4", "198.51.100.1/32")

				switched.Run(t, "ip link set port0 down")
				next.hasRoutes(t, router, "ipv4")
				eventually(t, "the session is down because of BFD", func() bool {
					session := next.session(t, "192.0.2.1")
					return session.State != purelbv1.SessionEstablished && session.BFD == "Down" &&
						strings.Contains(session.LastError, "BFD is down")
				}, func() string { return fmt.Sprintf("%+v", next.session(t, "192.0.2.1")) })
				if got := next.failures.Load(); got != 1 {
					t.Errorf("BFD has failed %d times", got)
				}
				switched.Run(t, "ip link set port0 up")
				next.staysUp(t, more)
				next.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
			})
		}
	}
}

// TestBFDWithBGP has a router that has BFD with the node before BGP is up: BFD of the node waits for BGP, and
// the first session stays.
func TestBFDWithBGP(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), frrStatic)
	more := func() string { return router.Show("show bfd peers") + router.Log() }
	eventually(t, "the router's BFD has begun", func() bool {
		return strings.Contains(router.Show("show bfd peers"), "192.0.2.11")
	}, more)
	s := newSpeaker(t)
	s.hold(t, oneRoute())
	s.staysUp(t, more)
	const once = `"connectionsEstablished":1,`
	if neighbour := router.Show("show bgp neighbors 192.0.2.11 json"); !strings.Contains(neighbour, once) {
		t.Errorf("not the first session:\n%s", neighbour)
	}
	if got := s.failures.Load(); got > 0 {
		t.Errorf("BFD has failed %d times", got)
	}
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
}

// TestBFDAtBIRD has the same with BIRD. What happens to the route when the speaker restarts or the node dies
// depends on its configuration.
func TestBFDAtBIRD(t *testing.T) {
	for _, row := range []struct {
		config string
		// stays is that BIRD keeps the route when BFD is down: that of a speaker that restarts, and
		// that of a node that is dead.
		stays bool
	}{{"bfd on;", false}, {"bfd graceful;", true}} {
		t.Run(row.config, func(t *testing.T) {
			where, switched := newLink(t)
			router := routertest.StartBIRD(t, where, fmt.Sprintf(bird, row.config))
			more := func() string { return router.Show("show protocols all") + router.Show("show bfd sessions") }
			hasRoute := func() bool { return strings.Contains(router.Show("show route"), "198.51.100.1/32") }
			s := newSpeaker(t)
			s.hold(t, oneRoute())
			s.staysUp(t, more)
			eventually(t, "BIRD has the route", hasRoute, more)
			s.isAsSeenBy(t, router)
			if err := s.Stop(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			eventually(t, "BIRD's BFD is down", func() bool {
				return !strings.Contains(router.Show("show bfd sessions"), "Up")
			}, more)
			if got := hasRoute(); got != row.stays {
				t.Errorf("BIRD keeps the route: %t\n%s", got, more())
			}
			next := newSpeaker(t)
			restarted := oneRoute()
			restarted.Peers[0].SetsRestartState = true
			next.hold(t, restarted)
			next.staysUp(t, more)
			eventually(t, "BIRD has the route", hasRoute, more)
			router.Stop()
			eventually(t, "the session is down", func() bool {
				return next.session(t, "192.0.2.1").State != purelbv1.SessionEstablished
			}, func() string { return "" })
			router = routertest.StartBIRD(t, where, fmt.Sprintf(bird, row.config))
			next.staysUp(t, more)
			eventually(t, "BIRD has the route", hasRoute, more)
			switched.Run(t, "ip link set port0 down")
			eventually(t, "BIRD's BFD is down", func() bool {
				return !strings.Contains(router.Show("show bfd sessions"), "Up")
			}, more)
			if got := hasRoute(); got != row.stays {
				t.Errorf("BIRD keeps the route of a node that is dead: %t\n%s", got, more())
			}
			eventually(t, "BIRD drops the route in the end", func() bool { return !hasRoute() }, more)
		})
	}
}

// TestBFDWithSource has sessions from an address of the node's that is not the first one.
func TestBFDWithSource(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), frrRange)
	nstest.Run(t, "ip addr add 192.0.2.12/24 dev eth0")
	s := newSpeaker(t)
	s.hold(t, oneRoute(func(p *purelbv1.RoutingPeer) { p.SourceAddress = "192.0.2.12" }))
	s.staysUp(t, func() string { return router.Show("show bfd peers") + router.Log() })
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
}

// TestBFDFailsAlone has a router whose BFD dies, and not its BGP, to which BFD does not matter. The node resets
// the session, upon which the router drops the route although it supports graceful restart, and opens it
// again.
func TestBFDFailsAlone(t *testing.T) {
	router := routertest.StartFRR(t, routerOn(t), bgpd)
	for _, command := range []string{
		"detect-multiplier 15", "receive-interval 200", "transmit-interval 200", "no shutdown",
	} {
		router.Configure("bfd", "peer 192.0.2.11", command)
	}
	s := newSpeaker(t)
	s.hold(t, oneRoute())
	s.staysUp(t, func() string { return router.Show("show bfd peers") + router.Log() })
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	before := s.session(t, "192.0.2.1").Since
	router.StopDaemon("bfdd")
	s.hasRoutes(t, router, "ipv4")
	eventually(t, "the session is up again without BFD", func() bool {
		session := s.session(t, "192.0.2.1")
		return session.State == purelbv1.SessionEstablished && session.Since.After(before) && session.BFD == "Down"
	}, router.Log)
	s.hasRoutes(t, router, "ipv4", "198.51.100.1/32")
	if got := s.failures.Load(); got != 1 {
		t.Errorf("BFD has failed %d times", got)
	}
}
