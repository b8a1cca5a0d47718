package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// CutLink pulls the cable of a host: its eth0 loses carrier, and keeps its addresses and
// routes.
func (l *Lab) CutLink(ctx context.Context, host string) error {
	return l.ip(ctx, Fabric, "link", "set", port(host), "down")
}

// HealLink undoes CutLink.
func (l *Lab) HealLink(ctx context.Context, host string) error {
	return l.ip(ctx, Fabric, "link", "set", port(host), "up")
}

// UnplugPort disconnects a host as a failure inside the network does: its eth0 keeps
// carrier, but no frame gets through.
func (l *Lab) UnplugPort(ctx context.Context, host string) error {
	return l.ip(ctx, Fabric, "link", "set", port(host), "nomaster")
}

// PlugPort undoes UnplugPort.
func (l *Lab) PlugPort(ctx context.Context, host string) error {
	return l.ip(ctx, Fabric, "link", "set", port(host), "master", bridgeOf(host))
}

// apiCutTable is the nftables table that CutAPI makes in a node.
const apiCutTable = "purelb-lab-cut"

// CutAPI drops, silently, every packet between a node (and its pods) and the
// API server. Everything else on the node works as before.
func (l *Lab) CutAPI(ctx context.Context, node string) error {
	cp, err := plannedHost(ControlPlane)
	if err != nil {
		return err
	}
	_, err = l.Exec(ctx, node, "nft", apiCutRules(cp))
	return err
}

// HealAPI undoes CutAPI.
func (l *Lab) HealAPI(ctx context.Context, node string) error {
	_, err := l.Exec(ctx, node, "nft", "delete table inet "+apiCutTable)
	return err
}

func apiCutRules(cp Host) string {
	var rules strings.Builder
	fmt.Fprintf(&rules, "add table inet %s\n", apiCutTable)
	for _, hook := range []string{"input", "output", "forward"} {
		// Priority 10: after kube-proxy has turned 10.96.0.1 into the real address.
		fmt.Fprintf(&rules, "add chain inet %s %s { type filter hook %s priority 10; }\n", apiCutTable, hook, hook)
		for _, end := range []string{"saddr", "daddr"} {
			fmt.Fprintf(&rules, "add rule inet %s %s ip %s %s drop\n", apiCutTable, hook, end, cp.IPv4.Addr())
			fmt.Fprintf(&rules, "add rule inet %s %s ip6 %s %s drop\n", apiCutTable, hook, end, cp.IPv6.Addr())
		}
	}
	return rules.String()
}

// echoTable is the nftables table that BlockEcho makes in a node.
const echoTable = "purelb-lab-echo"

// BlockEcho drops, silently, every ICMP(v6) echo request that comes to a node, as a firewall may.
func (l *Lab) BlockEcho(ctx context.Context, node string) error {
	_, err := l.Exec(ctx, node, "nft", echoRules())
	return err
}

// AllowEcho undoes BlockEcho.
func (l *Lab) AllowEcho(ctx context.Context, node string) error {
	_, err := l.Exec(ctx, node, "nft", "delete table inet "+echoTable)
	return err
}

func echoRules() string {
	return "add table inet " + echoTable + "\n" +
		"add chain inet " + echoTable + " input { type filter hook input priority 0; }\n" +
		"add rule inet " + echoTable + " input icmp type echo-request drop\n" +
		"add rule inet " + echoTable + " input icmpv6 type echo-request drop\n"
}

// SplitLink parts hosts from the others on the nodes' link, as two switches are parted whose
// cable is cut: all keep carrier, and reach those of their own side.
func (l *Lab) SplitLink(ctx context.Context, hosts ...string) error {
	return ipBatch(ctx, Namespace(Fabric), moveCommands(splitBridge, hosts))
}

// JoinLink undoes SplitLink.
func (l *Lab) JoinLink(ctx context.Context, hosts ...string) error {
	return ipBatch(ctx, Namespace(Fabric), moveCommands(bridge, hosts))
}

// moveCommands returns the commands that connect hosts to a bridge, one just after the other.
func moveCommands(bridge string, hosts []string) []string {
	var commands []string
	for _, host := range hosts {
		commands = append(commands, fmt.Sprintf("link set %s master %s", port(host), bridge))
	}
	return commands
}

// AddRoute gives a host a route to prefix through one next hop or, with equal cost,
// several. It replaces an earlier route to prefix.
func (l *Lab) AddRoute(ctx context.Context, host string, prefix netip.Prefix, nextHops ...netip.Addr) error {
	return l.ip(ctx, host, routeArgs(prefix, nextHops)...)
}

func routeArgs(prefix netip.Prefix, nextHops []netip.Addr) []string {
	args := []string{"route", "replace", prefix.String()}
	for _, hop := range nextHops {
		args = append(args, "nexthop", "via", hop.String())
	}
	return args
}

// DeleteRoute undoes AddRoute.
func (l *Lab) DeleteRoute(ctx context.Context, host string, prefix netip.Prefix) error {
	return l.ip(ctx, host, "route", "delete", prefix.String())
}

// ip runs ip(8) in the network namespace of a host.
func (l *Lab) ip(ctx context.Context, host string, args ...string) error {
	_, err := l.Exec(ctx, host, append([]string{"ip"}, args...)...)
	return err
}
