package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/test/measure"
)

// program is a process of PureLB in the lab, as the machine sees it.
type program struct {
	pid  int
	role string // leader, standby or agent
	node string // of an agent
	pod  string // of a manager
}

// usage is what a process has used.
type usage struct {
	rssMiB    float64
	cgroupMiB float64 // 0 if there is no such control group
	cpu       time.Duration
}

// findPrograms finds all processes of PureLB in the lab.
func (b *bench) findPrograms(ctx context.Context) ([]program, error) {
	lease := &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "manager.purelb.io"},
		lease); err != nil {
		return nil, fmt.Errorf("look which manager leads: %w", err)
	}
	leader, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []program
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		p, ok := parseCommand(text, leader)
		if !ok {
			continue
		}
		if p.pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path))); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		found = append(found, p)
	}
	return found, nil
}

// parseCommand returns the program of PureLB that has this command line, if any. leader is
// the pod of the leading manager.
func parseCommand(text []byte, leader string) (program, bool) {
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimRight(text, "\x00"), []byte{0}) {
		args = append(args, string(arg))
	}
	if len(args) < 2 || args[0] != "/purelb" {
		return program{}, false
	}
	p := program{role: args[1]}
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--node-name="); ok {
			p.node = value
		}
		if value, ok := strings.CutPrefix(arg, "--pod-name="); ok {
			p.pod = value
		}
	}
	switch {
	case p.role == "agent":
	case p.role == "manager" && p.pod == leader:
		p.role = "leader"
	case p.role == "manager":
		p.role = "standby"
	default:
		return program{}, false
	}
	return p, true
}

// readUsage reads what a process has used so far.
func (p program) readUsage() (usage, error) {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	if err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	var u usage
	if u.rssMiB, err = measure.ResidentMiB(p.pid); err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	if u.cpu, err = measure.CPUTime(p.pid); err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	if text, err := os.ReadFile(memoryFile(string(groups))); err == nil {
		if size, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			u.cgroupMiB = size / (1 << 20)
		}
	}
	return u, nil
}

// memoryFile returns the file that has the memory of a process's control group. groups is
// what /proc/PID/cgroup has (cgroups(7)). If there is a group of version 1 with the memory
// controller, its file is returned, otherwise that of version 2.
func memoryFile(groups string) string {
	file := ""
	for line := range strings.Lines(strings.TrimSpace(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "memory":
			return "/sys/fs/cgroup/memory" + parts[2] + "/memory.usage_in_bytes"
		case parts[1] == "":
			file = "/sys/fs/cgroup" + parts[2] + "/memory.current"
		}
	}
	return file
}
