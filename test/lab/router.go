package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// Daemon is the software with which the lab's router speaks BGP.
type Daemon string

// The daemons, which are packages of Debian.
const (
	FRR  Daemon = "frr"
	BIRD Daemon = "bird"
)

// frrDaemons are those of FRR that the router runs, in the order in which they start.
var frrDaemons = []string{"zebra", "bfdd", "bgpd"}

const (
	frrDir = "/usr/lib/frr"
	// frrState is for the files of FRR, which runs as a user of its own.
	frrState = "/run/purelb-lab-frr"
	frrUser  = "frr"
)

// RouterOptions say how the router speaks BGP with the nodes.
type RouterOptions struct {
	Daemon Daemon
	// BFD is whether the router watches nodes by BFD, every 100 ms.
	BFD bool
	// WithoutGracefulRestart makes the router drop the routes of a speaker that restarts.
	WithoutGracefulRestart bool
	// Password of the sessions.
	Password string
	// NodeASN is the autonomous system of the nodes; 0 is 65001.
	NodeASN int
	// More is configuration that is added to that of FRR's bgpd.
	More string
}

// StartRouter makes the router speak BGP with nodes that connect to it, in autonomous system
// 65000. It replaces a daemon that runs already. A route of several nodes goes over all of them.
func (l *Lab) StartRouter(ctx context.Context, options RouterOptions) error {
	if err := l.StopRouter(ctx); err != nil {
		return err
	}
	if options.NodeASN == 0 {
		options.NodeASN = nodeAS
	}
	if options.Daemon == BIRD {
		dir := l.path("routing", Router)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start the router: %w", err)
		}
		return l.startRouterDaemon(
			"bird", routerBird(options), dir, "bird", "-f", "-c", dir+"/bird.conf", "-s", l.routingSocket(Router), "-P",
			dir+"/bird.pid",
		)
	}
	dir := frrState
	err := makeFRRState()
	if err != nil {
		return fmt.Errorf("start the router: %w", err)
	}
	for _, name := range frrDaemons {
		config := ""
		if name == "bgpd" {
			config = routerFRR(options)
		}
		argv := []string{filepath.Join(frrDir, name), "-f", dir + "/" + name + ".conf", "-i", dir + "/" + name + ".pid",
			"-z", dir + "/zserv.api", "--vty_socket", dir, "-A", "127.0.0.1", "--log", "file:" + dir + "/" + name + ".log"}
		switch name {
		case "bfdd":
			argv = append(argv, "--bfdctl", dir+"/bfdd.sock")
		case "zebra":
			// Else zebra deletes an IPv6 route and adds it anew to change next hops, and
			// packets in between are refused.
			argv = append(argv, "--v6-rr-semantics")
		}
		if err := l.startRouterDaemon(name, config, dir, argv...); err != nil {
			return err
		}
		if err := waitForFile(ctx, dir+"/"+name+".vty"); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	return nil
}

func (l *Lab) startRouterDaemon(name, config, dir string, argv ...string) error {
	if err := os.WriteFile(dir+"/"+name+".conf", []byte(config), 0o644); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := process.Start(l.pidFile("router-"+name), l.logFile("router-"+name),
		ExecArgv(Router, argv...)...); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return nil
}

// makeFRRState makes the folder for FRR's files.
func makeFRRState() error {
	account, err := user.Lookup(frrUser)
	if err != nil {
		return fmt.Errorf("FRR is not installed (apt-get install frr): %w", err)
	}
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	return errors.Join(uidErr, gidErr, os.MkdirAll(frrState, 0o755), os.Chown(frrState, uid, gid))
}

func waitForFile(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// StopRouter kills what StartRouter has started, as a router that fails, and removes its routes.
func (l *Lab) StopRouter(ctx context.Context) error {
	var errs []error
	for _, name := range append([]string{"bird"}, "bgpd", "bfdd", "zebra") {
		errs = append(errs, process.Kill(ctx, l.pidFile("router-"+name)))
	}
	errs = append(errs, os.RemoveAll(frrState))
	for _, family := range []string{"-4", "-6"} {
		for _, proto := range []string{"bgp", "bird"} {
			errs = append(errs, l.flushRoutes(ctx, family, proto))
		}
	}
	return errors.Join(errs...)
}

// flushTries is how often flushRoutes tries.
const flushTries = 20

// flushRoutes removes the routes of a routing daemon that has ended. A flush ends early where routes
// change meanwhile, so it is repeated until none is left.
func (l *Lab) flushRoutes(ctx context.Context, family, proto string) error {
	left := ""
	for range flushTries {
		var err error
		if left, err = l.Exec(ctx, Router, "ip", family, "route", "show", "proto", proto); err != nil ||
			strings.TrimSpace(left) == "" {
			return err
		}
		_, _ = l.Exec(ctx, Router, "ip", family, "route", "flush", "proto", proto) // the next look shows what is left
	}
	return fmt.Errorf("routes of %s stay on the router: %s", proto, left)
}

// Vtysh runs a command of FRR's shell on the router.
func (l *Lab) Vtysh(ctx context.Context, command string) (string, error) {
	return l.Exec(ctx, Router, "vtysh", "--vty_socket", frrState, "-c", command)
}

// Birdc runs a command of BIRD's shell on the router.
func (l *Lab) Birdc(ctx context.Context, command string) (string, error) {
	return l.Exec(ctx, Router, append([]string{"birdc", "-s", l.routingSocket(Router)}, strings.Fields(command)...)...)
}

// routerFRR is the configuration of FRR's bgpd.
func routerFRR(o RouterOptions) string {
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"router bgp %d\n bgp router-id 10.77.0.1\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp "+
			"bestpath as-path multipath-relax\n",
		routerAS,
	)
	if o.WithoutGracefulRestart {
		b.WriteString(" bgp graceful-restart-disable\n")
	}
	fmt.Fprintf(&b, " neighbor nodes peer-group\n neighbor nodes remote-as %d\n neighbor nodes timers 1 3\n", o.NodeASN)
	if o.Password != "" {
		fmt.Fprintf(&b, " neighbor nodes password %s\n", o.Password)
	}
	if o.BFD {
		b.WriteString(" neighbor nodes bfd 3 100 100\n")
	}
	b.WriteString(" bgp listen range 10.77.0.0/24 peer-group nodes\n bgp listen range fd00:77::/64 peer-group nodes\n")
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(
			&b, " address-family %s unicast\n  neighbor nodes activate\n  maximum-paths 16\n exit-address-family\n", family,
		)
	}
	b.WriteString("exit\n" + o.More)
	return b.String()
}

// routerBird is the configuration of BIRD.
func routerBird(o RouterOptions) string {
	var b strings.Builder
	b.WriteString("router id 10.77.0.1;\nprotocol device { }\n")
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, "protocol kernel { %s { export where source = RTS_BGP; }; merge paths on limit 16; }\n", family)
	}
	more := ""
	if o.BFD {
		b.WriteString("protocol bfd { interface \"*\" { interval 100 ms; multiplier 3; }; }\n")
		more += "  bfd on;\n"
	}
	if o.WithoutGracefulRestart {
		more += "  graceful restart off;\n"
	}
	if o.Password != "" {
		more += fmt.Sprintf("  password %q;\n", o.Password)
	}
	for i, subnet := range []string{"10.77.0.0/24", "fd00:77::/64"} {
		fmt.Fprintf(&b, "protocol bgp nodes%d {\n  local as %d;\n  neighbor range %s as %d;\n  dynamic name \"v%d_\";\n  "+
			"passive;\n  hold time 3;\n  keepalive time 1;\n%s  %s { import all; export none; };\n}\n",
			i, routerAS, subnet, o.NodeASN, []int{4, 6}[i], more, []string{"ipv4", "ipv6"}[i])
	}
	return b.String()
}
