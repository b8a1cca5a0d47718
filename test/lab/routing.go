package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// virtualLink is the nodes' interface whose addresses the routing daemons advertise.
const virtualLink = "kube-lb0"

const (
	routerAS, nodeAS = 65000, 65001
)

// StartRouting runs a routing daemon (bird) on each node and on the router. So the router
// gets routes, with equal cost, to the networks that the nodes have on kube-lb0.
// StartRouting returns when all sessions are up. It replaces daemons that run already.
func (l *Lab) StartRouting(ctx context.Context) error {
	if err := l.StopRouting(ctx); err != nil {
		return err
	}
	configs := map[string]string{Router: l.plan().routerBirdConfig()}
	for _, n := range l.plan().nodes() {
		configs[n.Name] = nodeBirdConfig(n)
	}
	for host, config := range configs {
		dir := l.path("routing", host)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start routing on %s: %w", host, err)
		}
		if err := os.WriteFile(dir+"/bird.conf", []byte(config), 0o644); err != nil {
			return fmt.Errorf("start routing on %s: %w", host, err)
		}
		argv := ExecArgv(host, "bird", "-f", "-c", dir+"/bird.conf", "-s", l.routingSocket(host), "-P", dir+"/bird.pid")
		if err := process.Start(l.pidFile(routingProcess(host)), l.logFile(routingProcess(host)), argv...); err != nil {
			return fmt.Errorf("start routing on %s: %w", host, err)
		}
	}
	const sessionTimeout = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	for {
		up, err := l.countSessions(ctx)
		if want := 2 * len(l.plan().nodes()); up == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("start routing: %d sessions are up: %w", up, ctx.Err()), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// countSessions returns how many of the router's sessions are up.
func (l *Lab) countSessions(ctx context.Context) (int, error) {
	text, err := l.Exec(ctx, Router, "birdc", "-s", l.routingSocket(Router), "show", "protocols")
	return strings.Count(text, "Established"), err
}

// StopRouting ends what StartRouting has started, and removes the router's routes.
func (l *Lab) StopRouting(ctx context.Context) error {
	hosts := []string{Router}
	for _, n := range l.plan().nodes() {
		hosts = append(hosts, n.Name)
	}
	var errs []error
	for _, host := range hosts {
		if process.Alive(l.pidFile(routingProcess(host))) {
			// A daemon that ends this way removes its routes from the kernel.
			_, err := l.Exec(ctx, host, "birdc", "-s", l.routingSocket(host), "down")
			errs = append(errs, err)
		}
		errs = append(errs, process.Kill(ctx, l.pidFile(routingProcess(host))))
	}
	return errors.Join(errs...)
}

func routingProcess(host string) string { return "routing-" + host }

func (l *Lab) routingSocket(host string) string { return l.path("routing", host, "bird.ctl") }

// nodeBirdConfig returns the configuration of a node's daemon, which advertises the
// networks of virtualLink to the router.
func nodeBirdConfig(n Node) string {
	router, err := plannedHost(Router)
	if err != nil {
		panic(err) // it is planned
	}
	var b strings.Builder
	fmt.Fprintf(&b, "router id %s;\nprotocol device { scan time 1; }\n", n.IPv4.Addr())
	fmt.Fprintf(&b, "protocol direct addresses { ipv4; ipv6; interface %q; }\n", virtualLink)
	for i, remote := range []netip.Addr{router.IPv4.Addr(), router.IPv6.Addr()} {
		fmt.Fprintf(&b, "protocol bgp v%d {\n  local %s as %d;\n  neighbor %s as %d;\n  %s\n  %s { import none; export "+
			"where proto = \"addresses\"; next hop self; };\n}\n",
			[]int{4, 6}[i], n.addresses()[i], nodeAS, remote, routerAS, timers, []string{"ipv4", "ipv6"}[i])
	}
	return b.String()
}

// timers make sessions come up soon.
const timers = "hold time 9; keepalive time 3; connect retry time 1; connect delay time 1; error wait time 1, 2;"

// routerBirdConfig returns the configuration of the router's daemon. A network that several
// nodes advertise gets a route through all of them.
func (p plan) routerBirdConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "router id 10.77.0.1;\nprotocol device { }\n")
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, "protocol kernel { %s { export where source = RTS_BGP; }; merge paths on limit 16; }\n", family)
	}
	for _, n := range p.nodes() {
		for i, remote := range n.addresses() {
			fmt.Fprintf(&b, "protocol bgp %s_v%d {\n  local as %d;\n  neighbor %s as %d;\n  passive;\n  %s\n  %s { import "+
				"all; export none; };\n}\n",
				n.Name, []int{4, 6}[i], routerAS, remote, nodeAS, timers, []string{"ipv4", "ipv6"}[i])
		}
	}
	return b.String()
}
