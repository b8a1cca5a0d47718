// Package debian makes sure that the programs which the lab runs are there,
// and on Debian and its relatives installs those that are not.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// program is something to run, and the Debian package that has it.
type program struct{ name, pkg string }

func programs() []program {
	return []program{
		{"containerd", "containerd"},
		{"containerd-shim-runc-v2", "containerd"},
		{"ctr", "containerd"},
		{"runc", "runc"},
		{"nft", "nftables"},
		{"iptables", "iptables"}, // the kubelet and the CNI plugin portmap
		{"conntrack", "conntrack"},
		{"dbus-daemon", "dbus"},
		{"dbus-send", "dbus"},
		{"ip", "iproute2"},
		{"arping", "iputils-arping"},
		{"ndisc6", "ndisc6"},
		{"tcpdump", "tcpdump"},
		{"mount", "mount"},
		{"nsenter", "util-linux"},
		{"pkill", "procps"},
		{"bird", "bird2"},
		{"vtysh", "frr"},
	}
}

// Ensure installs the packages that are missing. Where it cannot, its error names them. It
// calls say with what it does.
func Ensure(ctx context.Context, say func(string)) error { return ensure(ctx, Missing, say) }

// EnsureIPVS is Ensure for what kube-proxy in IPVS mode runs.
func EnsureIPVS(ctx context.Context, say func(string)) error {
	return ensure(ctx, missingOf([]program{{"ipset", "ipset"}, {"ipvsadm", "ipvsadm"}}), say)
}

func ensure(ctx context.Context, missingNow func() []string, say func(string)) error {
	missing := missingNow()
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if !isDebian() {
		return fmt.Errorf("programs are missing: install what these Debian packages hold: %s", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("programs are missing: as root, run: apt-get install --no-install-recommends %s", list)
	}
	say("installing Debian packages: " + list)
	if err := install(ctx, missing); err != nil {
		// The lists of packages may be old or, in a container, not there.
		if err := aptGet(ctx, "update"); err != nil {
			return err
		}
		if err := install(ctx, missing); err != nil {
			return err
		}
	}
	if still := missingNow(); len(still) > 0 {
		return fmt.Errorf("programs of these packages are missing although they are installed: %s", strings.Join(still, " "))
	}
	return nil
}

// Missing lists the packages that lack a program, sorted.
func Missing() []string {
	missing := missingOf(programs())()
	if _, err := CNIPlugins(); err != nil {
		missing = append(missing, "containernetworking-plugins")
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// missingOf lists the packages of programs that are not there, each time anew.
func missingOf(programs []program) func() []string {
	return func() []string {
		var missing []string
		for _, p := range programs {
			if _, err := exec.LookPath(p.name); err != nil {
				missing = append(missing, p.pkg)
			}
		}
		return missing
	}
}

// CNIPlugins returns the folder of the standard CNI plugins.
func CNIPlugins() (string, error) {
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		if _, err := os.Stat(dir + "/bridge"); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("the standard CNI plugins are not installed")
}

func install(ctx context.Context, packages []string) error {
	return aptGet(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...)
}

func aptGet(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet"}, args...)...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

func isDebian() bool {
	text, err := os.ReadFile("/etc/os-release")
	return err == nil && debianLike(string(text))
}

// debianLike looks for Debian in the ID and ID_LIKE of os-release(5).
func debianLike(release string) bool {
	for line := range strings.Lines(release) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "ID" && key != "ID_LIKE" {
			continue
		}
		if slices.Contains(strings.Fields(strings.Trim(value, `"'`)), "debian") {
			return true
		}
	}
	return false
}
