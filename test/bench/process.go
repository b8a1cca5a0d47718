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

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, 100 on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// programs finds all processes of PureLB.
func (b *bench) programs(ctx context.Context) ([]program, error) {
	lease := &coordinationv1.Lease{}
	if err := b.client.Get(ctx, client.ObjectKey{Namespace: system, Name: "manager.purelb.io"}, lease); err != nil {
		return nil, fmt.Errorf("look who leads: %w", err)
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

// parseCommand says which of our programs a command line is of, if any.
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

// used reads what a process has used so far.
func (p program) used() (usage, error) {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	groups, err := os.ReadFile(dir + "cgroup")
	if err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	u := usage{rssMiB: parseRSS(string(status))}
	if u.cpu, err = parseCPU(string(stat)); err != nil {
		return usage{}, fmt.Errorf("look at the %s: %w", p.role, err)
	}
	if text, err := os.ReadFile(memoryFile(string(groups))); err == nil {
		if size, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			u.cgroupMiB = size / (1 << 20)
		}
	}
	return u, nil
}

// parseRSS finds VmRSS in /proc/PID/status (proc_pid_status(5)).
func parseRSS(status string) float64 {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "VmRSS:" {
			if kib, err := strconv.ParseFloat(fields[1], 64); err == nil {
				return kib / 1024
			}
		}
	}
	return 0
}

// parseCPU adds utime and stime of /proc/PID/stat (proc_pid_stat(5)). The name of
// the program, in parentheses, may hold spaces.
func parseCPU(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("parse the times of a process: %q", stat)
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, fmt.Errorf("parse the times of a process: %w", err)
	}
	kernel, err := strconv.Atoi(fields[12])
	if err != nil {
		return 0, fmt.Errorf("parse the times of a process: %w", err)
	}
	return time.Duration(user+kernel) * clockTick, nil
}

// memoryFile is the file of the memory that a process's control group has, from
// /proc/PID/cgroup (cgroups(7)): of version 1 if that has memory, else of
// version 2.
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
