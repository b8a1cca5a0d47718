// Package cgroup gives each node of the lab a control group of its own, below
// the one of the process that asks, on machines with version 1, version 2 or
// both.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Prefix starts the name of every control group that the lab makes.
const Prefix = "purelb-lab-"

// Hierarchy is one mounted tree of control groups. Version 1 has one for each
// controller or few; version 2 has one in all.
type Hierarchy struct {
	// Options are what mounts it: "cpu,cpuacct" or "name=systemd" in version
	// 1, empty in version 2.
	Options string `json:"options"`
	// Mount is where it is mounted.
	Mount string `json:"mount"`
	// Base is the folder below which the lab makes its groups.
	Base string `json:"base"`
}

// IsV2 says whether the hierarchy is of version 2.
func (h Hierarchy) IsV2() bool { return h.Options == "" }

// IsUnified says whether version 2 is the only one on the machine.
func IsUnified(hierarchies []Hierarchy) bool {
	return len(hierarchies) == 1 && hierarchies[0].IsV2()
}

// Current finds the hierarchies of this machine.
func Current() ([]Hierarchy, error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read control groups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parse(string(groups), string(mounts))
}

// Join makes the group called Prefix+name in every hierarchy and moves this
// process into it. Children that it starts from then on are born there.
func Join(hierarchies []Hierarchy, name string) error {
	if IsUnified(hierarchies) {
		if err := Delegate(hierarchies[0].Base); err != nil {
			return err
		}
	}
	for _, h := range hierarchies {
		dir := filepath.Join(h.Base, Prefix+name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}
		if err := copyCpuset(h, dir); err != nil {
			return err
		}
		pid := strconv.Itoa(os.Getpid())
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
			return fmt.Errorf("join the control group %s: %w", dir, err)
		}
	}
	return nil
}

// copyCpuset gives a new group of version 1 the cpuset of the group above. The kernel does
// not, and refuses processes in a group whose cpuset is empty.
func copyCpuset(h Hierarchy, dir string) error {
	for _, controller := range strings.Split(h.Options, ",") {
		if controller != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h.Base, file))
			if err != nil {
				return fmt.Errorf("read the cpuset: %w", err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
				return fmt.Errorf("set the cpuset: %w", err)
			}
		}
	}
	return nil
}

// Delegate lets the groups below a version 2 group use all of its controllers.
// Except at the root this needs a group without processes of its own.
func Delegate(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("list controllers: %w", err)
	}
	for _, controller := range strings.Fields(string(text)) {
		control := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
			return fmt.Errorf("pass the controller %s down from %s: %w", controller, dir, err)
		}
	}
	return nil
}

// Remove removes every group that the lab has made, wherever in the tree it is
// (the lab may have been started from another session). A group that still has
// processes is an error that is worth another try: see [Busy].
func Remove() error {
	hierarchies, err := Current()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hierarchies {
		errs = append(errs, removeBelow(h.Mount))
	}
	return errors.Join(errs...)
}

// IsBusy says whether err is about a group that still has processes.
func IsBusy(err error) bool { return errors.Is(err, syscall.EBUSY) }

func removeBelow(mount string) error {
	found, err := findGroups(mount)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range found {
		errs = append(errs, removeTree(dir))
	}
	return errors.Join(errs...)
}

// findGroups returns the groups that the lab has made in a hierarchy.
func findGroups(mount string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(mount, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a group of others, which has been removed meanwhile
			}
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), Prefix) {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for control groups: %w", err)
	}
	return found, nil
}

// removeTree removes a group and those below it, lowest first. The files in
// them are the kernel's and go with them.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list a control group: %w", err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a control group: %w", err)
	}
	return nil
}
