package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/lab/internal/netns"
)

// buildNetwork makes the namespaces, links, addresses and routes.
func (p plan) buildNetwork(ctx context.Context) error {
	if err := ipBatch(ctx, "", p.namespaceCommands()); err != nil {
		return err
	}
	if err := ipBatch(ctx, "", p.linkCommands()); err != nil {
		return err
	}
	if err := ipBatch(ctx, Namespace(Fabric), p.fabricCommands()); err != nil {
		return err
	}
	for _, h := range p.hosts() {
		for _, key := range p.sysctls(h.Name) {
			if err := netns.SetSysctl(Namespace(h.Name), key, "1"); err != nil {
				return err
			}
		}
		if err := ipBatch(ctx, Namespace(h.Name), p.hostCommands(h)); err != nil {
			return err
		}
	}
	return nil
}

// namespaces returns the names of all network namespaces of the lab.
func (p plan) namespaces() []string {
	all := []string{Namespace(Fabric)}
	for _, h := range p.hosts() {
		all = append(all, Namespace(h.Name))
	}
	return all
}

func (p plan) namespaceCommands() []string {
	var commands []string
	for _, name := range p.namespaces() {
		commands = append(commands, "netns add "+name)
	}
	return commands
}

// cable joins an interface of a host to a port of a bridge in the fabric.
type cable struct{ host, link, mac, port, bridge string }

func (p plan) cables() []cable {
	var all []cable
	for _, h := range p.hosts() {
		all = append(all, cable{h.Name, link, h.MAC, port(h.Name), bridgeOf(h.Name)})
	}
	far := routerTowardsFar()
	return append(all, cable{far.Name, farLink, far.MAC, port(far.Name) + "-far", bridgeOf(Far)})
}

// linkCommands returns the commands that connect all cables.
func (p plan) linkCommands() []string {
	var commands []string
	for _, c := range p.cables() {
		commands = append(commands, fmt.Sprintf("link add %s address %s netns %s type veth peer name %s netns %s",
			c.link, c.mac, Namespace(c.host), c.port, Namespace(Fabric)))
	}
	return commands
}

// fabricCommands returns the commands that make the switches. They have no spanning tree,
// so that ports forward at once. They flood multicast, because no host sends the queries
// that snooping needs.
func (p plan) fabricCommands() []string {
	commands := []string{"link set lo up"}
	for _, name := range []string{bridge, farBridge, splitBridge} {
		commands = append(commands,
			"link add "+name+" type bridge stp_state 0 mcast_snooping 0",
			"link set "+name+" up")
	}
	for _, c := range p.cables() {
		commands = append(commands, fmt.Sprintf("link set %s master %s up", c.port, c.bridge))
	}
	return commands
}

// hostCommands returns the commands that give a host its addresses and routes.
func (p plan) hostCommands(h Host) []string {
	commands := append([]string{"link set lo up"}, addressCommands(link, h)...)
	if h.Name == Router {
		commands = append(commands, addressCommands(farLink, routerTowardsFar())...)
	} else {
		for _, gateway := range gateways(h) {
			commands = append(commands, fmt.Sprintf("route add default via %s", gateway))
		}
	}
	// The nodes, the API server (for webhooks and aggregated APIs) and the
	// router know which node has which pods. The other hosts use the router.
	if h.Name == Client || h.Name == Far {
		return commands
	}
	for _, node := range p.nodes() {
		if node.Name == h.Name {
			continue
		}
		commands = append(commands,
			fmt.Sprintf("route add %s via %s", node.PodCIDRs[0], node.IPv4.Addr()),
			fmt.Sprintf("route add %s via %s", node.PodCIDRs[1], node.IPv6.Addr()))
	}
	return commands
}

func addressCommands(link string, h Host) []string {
	return []string{
		fmt.Sprintf("link set %s up", link),
		fmt.Sprintf("addr add %s dev %s", h.IPv4, link),
		fmt.Sprintf("addr add %s dev %s nodad", h.IPv6, link),
	}
}

// sysctls returns the sysctls to switch on in the namespace of a host.
func (p plan) sysctls(host string) []string {
	forward := []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"}
	if host == Router {
		// Spread flows over next hops by address and port.
		return append(forward, "net.ipv4.fib_multipath_hash_policy", "net.ipv6.fib_multipath_hash_policy")
	}
	for _, node := range p.nodes() {
		if node.Name == host {
			return forward
		}
	}
	return nil
}

// ipBatch runs commands of ip(8) in a namespace, or outside if it is "".
func ipBatch(ctx context.Context, namespace string, commands []string) error {
	args := []string{"-batch", "-"}
	if namespace != "" {
		args = append([]string{"-netns", namespace}, args...)
	}
	command := exec.CommandContext(ctx, "ip", args...)
	command.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if _, err := runCommand(command); err != nil {
		return fmt.Errorf("build the network: %w", err)
	}
	return nil
}

// removeNetwork removes every namespace of the lab that there is. The links in
// them go too.
func removeNetwork(ctx context.Context) error {
	var errs []error
	for _, name := range plan(MaxNodes).namespaces() {
		id, err := netns.ID(name)
		if err != nil || id == 0 {
			errs = append(errs, err)
			continue
		}
		if _, err := runCommand(exec.CommandContext(ctx, "ip", "netns", "delete", name)); err != nil {
			errs = append(errs, fmt.Errorf("remove the network: %w", err))
		}
	}
	return errors.Join(errs...)
}

// netnsDirExists says whether ip-netns(8) has been used on this machine before.
func netnsDirExists() bool {
	_, err := os.Stat(netns.Dir)
	return err == nil
}

// removeNetnsDir removes the folder that "ip netns add" makes and mounts on
// itself, unless there are namespaces in it that are not the lab's.
func removeNetnsDir() error {
	entries, err := os.ReadDir(netns.Dir)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for network namespaces: %w", err)
	}
	if err := unix.Unmount(netns.Dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", netns.Dir, err) // EINVAL: not mounted
	}
	if err := os.Remove(netns.Dir); err != nil {
		return fmt.Errorf("remove %s: %w", netns.Dir, err)
	}
	return nil
}
