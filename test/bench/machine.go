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

// machine describes what it runs on. What cannot be found out is left empty.
func (b *bench) machine(ctx context.Context) report.Machine {
	m := report.Machine{
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: strings.TrimSpace(file("/proc/sys/kernel/osrelease")), Date: time.Now().UTC().Format(time.DateOnly),
	}
	if kib, err := strconv.Atoi(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")); err == nil {
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

func file(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

// field is the first value of a name in a file of "name: value" lines.
func field(path, name string) string {
	for line := range strings.Lines(file(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
