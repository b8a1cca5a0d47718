package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
	"github.com/purelb/purelb-operator/test/lab/internal/node"
	"github.com/purelb/purelb-operator/test/lab/internal/process"
)

// PowerOff ends a node as a power failure does: all its processes die at once, its link
// loses carrier, and its kernel forgets interfaces, addresses, firewall rules and connections that
// are not in its configuration. What is on its disk (/var) stays.
func (l *Lab) PowerOff(ctx context.Context, node string) error {
	h, err := plannedHost(node)
	if err != nil {
		return err
	}
	if err := l.CutLink(ctx, node); err != nil {
		return err
	}
	if err := process.Kill(ctx, l.pidFile(node)); err != nil {
		return fmt.Errorf("power off %s: %w", node, err)
	}
	errs := []error{l.deleteLinks(ctx, node)}
	addresses, err := l.Addresses(ctx, node)
	errs = append(errs, err)
	for _, a := range addresses {
		if a.Link == link && a.Prefix != h.IPv4 && a.Prefix != h.IPv6 && !a.Prefix.Addr().IsLinkLocalUnicast() {
			errs = append(errs, l.ip(ctx, node, "address", "delete", a.Prefix.String(), "dev", link))
		}
	}
	for _, argv := range [][]string{{"nft", "flush", "ruleset"}, {"conntrack", "--flush"}} {
		_, err = l.Exec(ctx, node, argv...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ShutDown ends a node as reboot and poweroff do: it waits for the kubelet, which ends pods first, and then
// does what PowerOff does. Whether the kubelet has ended them in time it does not say.
func (l *Lab) ShutDown(ctx context.Context, name string) error {
	timeout := node.ShutdownGracePeriod + 30*time.Second
	if _, err := l.NodeExec(
		ctx, name, "dbus-send", "--system", "--print-reply", fmt.Sprintf("--reply-timeout=%d", timeout.Milliseconds()),
		"--dest=org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager.PowerOff",
		"boolean:false",
	); err != nil {
		return fmt.Errorf("shut down %s: %w", name, err)
	}
	return l.PowerOff(ctx, name)
}

// deleteLinks deletes what a node has made of links since it was started.
func (l *Lab) deleteLinks(ctx context.Context, node string) error {
	text, err := l.Exec(ctx, node, "ip", "-json", "link", "show")
	if err != nil {
		return err
	}
	var links []struct {
		Name string `json:"ifname"`
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil {
		return fmt.Errorf("parse the links of %s: %w", node, err)
	}
	for _, found := range links {
		if found.Name == "lo" || found.Name == link {
			continue
		}
		// The other end of a pod's link may have gone with the pod meanwhile.
		_ = l.ip(ctx, node, "link", "delete", found.Name)
	}
	return nil
}

// PowerOn starts a node after PowerOff. It returns when the node's process 1 runs; the
// kubelet reports the node Ready some seconds later.
func (l *Lab) PowerOn(ctx context.Context, node string) error {
	if process.Alive(l.pidFile(node)) {
		return l.HealLink(ctx, node)
	}
	if err := l.HealLink(ctx, node); err != nil {
		return err
	}
	if _, err := runCommand(exec.CommandContext(ctx, l.command(), "node-start",
		l.path("nodes", node, "node.json"))); err != nil {
		return fmt.Errorf("power on %s: %w", node, err)
	}
	return nil
}

// Freeze stops all processes of a node at once, as if its processors had stopped. The node's
// kernel, which is this machine's, goes on, and answers ARP, ND and ICMP: with CutLink it is as
// silent as after a power failure, and nothing of the node notices.
func (l *Lab) Freeze(ctx context.Context, name string) error {
	config, err := node.Read(l.path("nodes", name, "node.json"))
	if err != nil {
		return err
	}
	if err := cgroup.Freeze(ctx, config.Hierarchies, name); err != nil {
		return fmt.Errorf("freeze %s: %w", name, err)
	}
	return nil
}

// Thaw undoes Freeze.
func (l *Lab) Thaw(ctx context.Context, name string) error {
	config, err := node.Read(l.path("nodes", name, "node.json"))
	if err != nil {
		return err
	}
	if err := cgroup.Thaw(ctx, config.Hierarchies, name); err != nil {
		return fmt.Errorf("thaw %s: %w", name, err)
	}
	return nil
}

// NodeFiles returns where a folder of a node, below /var, is on this machine.
func (l *Lab) NodeFiles(node, folder string) string { return l.path("nodes", node) + folder }
