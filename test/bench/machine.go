package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/test/bench/report"
)

// machine describes the machine that the benchmarks run on. It leaves out what it cannot
// find out.
func (b *bench) machine(ctx context.Context) report.Machine {
	m := report.Machine{
		CPU: readField("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: strings.TrimSpace(readFile("/proc/sys/kernel/osrelease")), Date: time.Now().UTC().Format(time.DateOnly),
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(readField("/proc/meminfo", "MemTotal"), " kB")); err == nil {
		m.MemoryMiB = kib / 1024
	}
	if out, err := exec.CommandContext(ctx, "git", "-C", b.root, "rev-parse", "--short", "HEAD").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	if b.clientset != nil {
		if v, err := b.clientset.ServerVersion(); err == nil {
			m.Kubernetes = v.GitVersion
		}
	}
	return m
}

func readFile(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// readField is the first value of a name in a file of "name: value" lines.
func readField(path, name string) string {
	for line := range strings.Lines(readFile(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
