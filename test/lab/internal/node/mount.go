package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purelb/purelb-operator/test/lab/internal/cgroup"
)

// mountAll makes the node's view of the file system: the machine's, but with
// /var, /run, /proc, /sys and control groups of its own, so that nothing that
// runs in the node leaves a trace on the machine.
func mountAll(c Config) error {
	// What is mounted here stays here, and the other way round.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// Below /var the kube binary would be hidden by the node's own.
	if err := mount(c.Kube, filepath.Join(c.files(), kubeBinary), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := mount(filepath.Join(c.Dir, "var"), "/var", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	// The old /sys goes with the control groups mounted in it: whoever reads
	// the table of mounts shall find the node's own only.
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /sys: %w", err)
	}
	if err := mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := mountCgroups(c.Hierarchies); err != nil {
		return err
	}
	if err := coverSysctls("/run/purelb-sysctl"); err != nil {
		return err
	}
	// Pods may ask for mounts that propagate.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mountCgroups mounts the control groups of the node, which in its control
// group namespace begin at its own.
func mountCgroups(hierarchies []cgroup.Hierarchy) error {
	const top = "/sys/fs/cgroup"
	if cgroup.IsUnified(hierarchies) {
		if err := mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
			return err
		}
		return leaveTop(top)
	}
	if err := mount("tmpfs", top, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, h := range hierarchies {
		name := strings.TrimPrefix(h.Options, "name=")
		kind, options := "cgroup", h.Options
		switch {
		case h.IsV2():
			name, kind = "unified", "cgroup2"
		case name != h.Options:
			options = "none," + h.Options
		}
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("mount control groups: %w", err)
		}
		if err := mount(kind, dir, kind, 0, options); err != nil {
			return err
		}
		if !strings.Contains(name, ",") {
			continue
		}
		for controller := range strings.SplitSeq(name, ",") {
			if err := os.Symlink(name, filepath.Join(top, controller)); err != nil {
				return fmt.Errorf("mount control groups: %w", err)
			}
		}
	}
	return nil
}

// leaveTop moves this process, alone in the node so far, from the top of its
// control groups to one below: with version 2, a group that has processes has
// no groups with controllers below it.
func leaveTop(top string) error {
	own := filepath.Join(top, "init")
	if err := os.Mkdir(own, 0o755); err != nil {
		return fmt.Errorf("make a control group: %w", err)
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("1"), 0); err != nil {
		return fmt.Errorf("join the control group %s: %w", own, err)
	}
	// The process that has started this one is at the top too, but not for long.
	return wait("the control group to be left", 5*time.Second, func() error { return cgroup.Delegate(top) })
}

// coverSysctls mounts files of the node's own over the sysctls of the whole
// machine that the kubelet insists on.
func coverSysctls(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("cover sysctls: %w", err)
	}
	for key, value := range map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	} {
		path := filepath.Join("/proc/sys", key)
		if _, err := os.Stat(path); os.IsNotExist(err) {
			continue // a kernel without this one
		}
		file := filepath.Join(dir, strings.ReplaceAll(key, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("cover sysctls: %w", err)
		}
		if err := mount(file, path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}
