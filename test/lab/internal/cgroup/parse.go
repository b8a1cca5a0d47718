package cgroup

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// parse works out the hierarchies from /proc/self/cgroup (see cgroups(7)) and
// /proc/self/mountinfo (see proc_pid_mountinfo(5)).
//
// In version 1 the base is the group of the process itself. On a machine with
// version 2 alone it is the top of the mounted tree: a group that has
// processes, as that of a login session, cannot pass controllers down.
func parse(groups, mountinfo string) ([]Hierarchy, error) {
	mounts := parseMounts(mountinfo)
	var found []Hierarchy
	for line := range strings.Lines(groups) {
		// "4:memory:/user.slice", or "0::/user.slice" in version 2
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		options, path, ok := strings.Cut(rest, ":")
		if !ok {
			return nil, fmt.Errorf("control group %q: not understood", line)
		}
		for _, m := range mounts {
			if !m.matches(options) {
				continue
			}
			below, inside := cutPath(path, m.root)
			if !inside {
				continue // mounted from elsewhere in the tree
			}
			found = append(found, Hierarchy{Options: options, Mount: m.at, Base: filepath.Join(m.at, below)})
			break
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted on this machine")
	}
	if IsUnified(found) {
		found[0].Base = found[0].Mount
	}
	return found, nil
}

// mount is a mounted hierarchy: root is the group that is seen at the top.
type mount struct {
	root, at string
	v2       bool
	options  map[string]bool
}

// matches says whether this is the hierarchy with the given options.
func (m mount) matches(options string) bool {
	if m.v2 || options == "" {
		return m.v2 && options == ""
	}
	for option := range strings.SplitSeq(options, ",") {
		if !m.options[option] {
			return false
		}
	}
	return true
}

func parseMounts(mountinfo string) []mount {
	var all []mount
	for line := range strings.Lines(mountinfo) {
		// 36 35 98:0 /root /at rw,noatime master:1 - type source options
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		m := mount{root: left[3], at: left[4], v2: right[0] == "cgroup2", options: map[string]bool{}}
		if !m.v2 && right[0] != "cgroup" {
			continue
		}
		for option := range strings.SplitSeq(right[2], ",") {
			m.options[option] = true
		}
		all = append(all, m)
	}
	return all
}

// cutPath removes the folder root from the start of path.
func cutPath(path, root string) (string, bool) {
	if root == "/" {
		return path, true
	}
	rest, ok := strings.CutPrefix(path, root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return rest, true
}
