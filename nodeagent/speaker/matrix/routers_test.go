//go:build routers

package matrix

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/nodeagent/internal/nstest"
	"github.com/purelb/purelb-operator/nodeagent/internal/routertest"
)

// routers are the daemons of a column. The peer is the neighbour of the nodes: the reflector's, or the router's own.
type routers struct {
	column   Column
	settings settings
	// restart is a reboot of the machine that the peer is on: it is killed, its kernel has lost its routes, and it starts
	// again, with the settings of now. (FRR 8.4 alone, killed, may leave routes over one node, and its successor adds
	// those over both beside them.) configure gives it the settings, and reset resets its sessions with the nodes.
	restart, configure, reset func(t testing.TB)
	sessions                  func() map[string]routertest.Session
	show                      func() string
}

// settings are of a peer.
type settings struct {
	password string
	limit    int // of routes of each family from a node; 0 is none
	isRange  bool
}

// autonomousSystem is the peer's. That of the nodes is 65001.
func (c Column) autonomousSystem() int {
	if c.Kind == Reflected {
		return 65001
	}
	return 65000
}

// peerAddress is the address to which nodes connect.
func (c Column) peerAddress() string {
	four, six := routerIPv4, routerIPv6
	switch c.Kind {
	case Reflected:
		four, six = reflectorIPv4, reflectorIPv6
	case Multihop:
		four, six = loopbackIPv4, loopbackIPv6
	}
	if c.IPv4 {
		return four
	}
	return six
}

// sessionAddress is from which address a node has its session.
func (c Column) sessionAddress(n *node) string {
	if c.IPv4 {
		return n.ipv4
	}
	return n.ipv6
}

// families are those of the column in the words of FRR and BIRD.
func (c Column) families() []string {
	var all []string
	if c.IPv4 {
		all = append(all, "ipv4")
	}
	if c.IPv6 {
		all = append(all, "ipv6")
	}
	return all
}

// startRouters starts the daemons of a column, until the test ends.
func (n *topology) startRouters(t testing.TB, c Column, s settings) *routers {
	t.Helper()
	r := &routers{column: c, settings: s}
	n.flushRouter(t)
	where, address, loseRoutes := n.router, routerIPv4, n.flushRouter
	if c.Kind == Reflected {
		loseRoutes = func(testing.TB) {} // of a reflector the kernel has none
		where, address = n.reflector, reflectorIPv4
		if c.Daemon == FRR {
			routertest.StartFRR(t, n.router, frrClient(c))
		} else {
			routertest.StartBIRD(t, n.router, birdClient(c))
		}
	}
	if c.Daemon == FRR {
		r.startFRR(t, where, loseRoutes, func() string { return frrPeer(c, r.settings, n.nodes, address) })
	} else {
		r.startBIRD(t, where, loseRoutes, func() string { return birdPeer(c, r.settings, n.nodes, address) })
	}
	return r
}

// flushRouter removes from the router's kernel the routes that daemons have left which were killed, and what the kernel
// knows of its neighbours: it would leave out a next hop that did not answer before.
func (n *topology) flushRouter(t testing.TB) {
	t.Helper()
	n.router.Run(t, "ip neigh flush all")
	for _, family := range []string{"-4", "-6"} {
		for _, protocol := range []string{"bgp", "bird"} {
			for try := 0; n.router.Run(t, "ip %s route show proto %s", family, protocol) != ""; try++ {
				if try == 10 {
					t.Fatalf("the routes of %s stay", protocol)
				}
				// FRR's routes go with its next hops, which are objects of their own. Either command fails where what it
				// lists has gone with something else.
				for _, flush := range []string{"nexthop flush", family + " route flush proto " + protocol} {
					_ = exec.Command("nsenter", append([]string{
						fmt.Sprintf("--net=/proc/%d/ns/net", n.router.PID()), "--", "ip",
					}, strings.Fields(flush)...)...).Run()
				}
			}
		}
	}
}

func (r *routers) startFRR(
	t testing.TB, where nstest.Neighbour, loseRoutes func(testing.TB), config func() string,
) {
	t.Helper()
	daemon := routertest.StartFRR(t, where, config())
	r.sessions, r.show = daemon.Sessions, func() string { return daemon.Show("show bgp summary") + daemon.Log() }
	r.restart = func(t testing.TB) {
		daemon.Stop()
		loseRoutes(t)
		daemon.Start(t)
	}
	r.configure = func(testing.TB) {
		commands := []string{fmt.Sprintf("router bgp %d", r.column.autonomousSystem())}
		if r.settings.password != "" {
			commands = append(commands, "neighbor nodes password "+r.settings.password)
		}
		for _, family := range r.column.families() {
			limit := "no neighbor nodes maximum-prefix"
			if r.settings.limit > 0 {
				limit = fmt.Sprintf("neighbor nodes maximum-prefix %d", r.settings.limit)
			}
			commands = append(commands, "address-family "+family+" unicast", limit, "exit-address-family")
		}
		daemon.Configure(commands...)
	}
	r.reset = func(testing.TB) { daemon.Show("clear bgp *") }
}

func (r *routers) startBIRD(
	t testing.TB, where nstest.Neighbour, loseRoutes func(testing.TB), config func() string,
) {
	t.Helper()
	daemon := routertest.StartBIRD(t, where, config())
	r.sessions = func() map[string]routertest.Session { return daemon.Sessions() }
	r.show = func() string { return daemon.Show("show protocols all") }
	r.restart = func(t testing.TB) {
		daemon.Stop()
		loseRoutes(t)
		daemon = routertest.StartBIRD(t, where, config())
	}
	r.configure = func(t testing.TB) {
		t.Helper()
		daemon.Configure(t, config())
	}
	r.reset = func(testing.TB) { daemon.Show(`enable "node*"`); daemon.Show(`restart "node*"`) }
}

// frrPeer is the configuration of FRR as the neighbour of the nodes. An operator restarts nothing when it changes.
func frrPeer(c Column, s settings, nodes []*node, routerID string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n",
		c.autonomousSystem(), routerID)
	b.WriteString(" neighbor nodes peer-group\n neighbor nodes remote-as 65001\n neighbor nodes timers 3 9\n")
	if s.password != "" {
		fmt.Fprintf(&b, " neighbor nodes password %s\n", s.password)
	}
	if c.BFD {
		b.WriteString(" neighbor nodes bfd 3 300 300\n")
	}
	if c.Kind == Multihop {
		fmt.Fprintf(&b, " neighbor nodes ebgp-multihop 2\n neighbor nodes update-source %s\n", c.peerAddress())
	}
	if s.isRange {
		for _, network := range []string{"192.0.2.8/29", "2001:db8::10/124"} {
			fmt.Fprintf(&b, " bgp listen range %s peer-group nodes\n", network)
		}
	} else {
		b.WriteString(" neighbor nodes passive\n")
		for _, n := range nodes {
			fmt.Fprintf(&b, " neighbor %s peer-group nodes\n", c.sessionAddress(n))
		}
	}
	client := routerIPv4
	if !c.IPv4 {
		client = routerIPv6
	}
	if c.Kind == Reflected {
		fmt.Fprintf(&b, " neighbor %s remote-as 65001\n neighbor %s timers 3 9\n", client, client)
	}
	for _, family := range c.families() {
		fmt.Fprintf(&b, " address-family %s unicast\n  neighbor nodes activate\n  maximum-paths 16\n", family)
		if s.limit > 0 {
			fmt.Fprintf(&b, "  neighbor nodes maximum-prefix %d\n", s.limit)
		}
		if c.Kind == Reflected {
			fmt.Fprintf(&b, "  neighbor nodes route-reflector-client\n  neighbor %s activate\n", client)
			fmt.Fprintf(&b, "  neighbor %s route-reflector-client\n  neighbor %s addpath-tx-all-paths\n", client, client)
		}
		b.WriteString(" exit-address-family\n")
	}
	return b.String()
}

// frrClient is the configuration of FRR as the router that has its routes from the reflector.
func frrClient(c Column) string {
	var b strings.Builder
	fmt.Fprintf(&b, "router bgp 65001\n bgp router-id %s\n no bgp default ipv4-unicast\n neighbor %s remote-as 65001\n",
		routerIPv4, c.peerAddress())
	fmt.Fprintf(&b, " neighbor %s timers 3 9\n neighbor %s timers connect 1\n", c.peerAddress(), c.peerAddress())
	for _, family := range c.families() {
		fmt.Fprintf(&b, " address-family %s unicast\n  neighbor %s activate\n  maximum-paths ibgp 16\n exit-address-family\n",
			family, c.peerAddress())
	}
	return b.String()
}

// birdHead is what all configurations of BIRD begin with; the kernel is to have the routes of those that forward.
func birdHead(routerID string, forwards bool) string {
	text := fmt.Sprintf("router id %s;\nprotocol device { scan time 2; }\nprotocol direct { ipv4; ipv6; }\n", routerID)
	if forwards {
		for _, family := range []string{"ipv4", "ipv6"} {
			text += fmt.Sprintf("protocol kernel { %s { export where source = RTS_BGP; }; merge paths on limit 16; }\n", family)
		}
	}
	return text
}

// birdPeer is the configuration of BIRD as the neighbour of the nodes.
func birdPeer(c Column, s settings, nodes []*node, routerID string) string {
	var b strings.Builder
	b.WriteString(birdHead(routerID, c.Kind != Reflected))
	// Without an error wait time, a node that was dead waits for a minute.
	session := fmt.Sprintf(
		"local %s as %d; passive; hold time 9; keepalive time 3; error wait time 1, 5;", c.peerAddress(),
		c.autonomousSystem(),
	)
	if c.BFD {
		b.WriteString("protocol bfd { interface \"*\" { interval 300 ms; multiplier 3; }; }\n")
		session += " bfd on;"
	}
	if s.password != "" {
		session += fmt.Sprintf(" password %q;", s.password)
	}
	switch c.Kind {
	case Reflected:
		session += " rr client; direct;" // else BFD is that of RFC 5883, for neighbours that are not on the link
	case Multihop:
		session += " multihop 2;"
	}
	channels := func(options string) string {
		text := ""
		for _, family := range c.families() {
			text += fmt.Sprintf(" %s { %s };", family, options)
		}
		return text
	}
	taken := "import all; export none;"
	if s.limit > 0 {
		taken += fmt.Sprintf(" import limit %d action disable;", s.limit)
	}
	if s.isRange {
		network := "192.0.2.8/29"
		if !c.IPv4 {
			network = "2001:db8::10/124"
		}
		fmt.Fprintf(&b, "protocol bgp nodes { %s neighbor range %s as 65001; dynamic name \"node\";%s }\n", session, network,
			channels(taken))
	} else {
		for _, n := range nodes {
			fmt.Fprintf(&b, "protocol bgp %s { %s neighbor %s as 65001;%s }\n", n.name, session, c.sessionAddress(n),
				channels(taken))
		}
	}
	if c.Kind == Reflected {
		client := routerIPv4
		if !c.IPv4 {
			client = routerIPv6
		}
		fmt.Fprintf(&b, "protocol bgp below { local %s as 65001; neighbor %s as 65001; rr client; hold time 9;"+
			" connect retry time 1;%s }\n", c.peerAddress(), client,
			channels("import none; export where source = RTS_BGP; add paths tx;"))
	}
	return b.String()
}

// birdClient is the configuration of BIRD as the router that has its routes from the reflector.
func birdClient(c Column) string {
	text := ""
	for _, family := range c.families() {
		text += fmt.Sprintf(" %s { import all; export none; add paths rx; };", family)
	}
	return birdHead(routerIPv4, true) + fmt.Sprintf(
		"protocol bgp above { local as 65001; neighbor %s as 65001; hold time 9; connect retry time 1;%s }\n",
		c.peerAddress(), text,
	)
}
