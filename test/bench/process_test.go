package main

import (
	"strings"
	"testing"
)

func TestParseCommand(t *testing.T) {
	for _, row := range []struct {
		command string
		want    program
		ours    bool
	}{
		{"/purelb agent --node-name=node1 --namespace=purelb-system", program{role: "agent", node: "node1"}, true},
		{"/purelb manager --pod-name=a", program{role: "leader", pod: "a"}, true},
		{"/purelb manager --pod-name=b", program{role: "standby", pod: "b"}, true},
		{"/purelb other", program{}, false},
		{"bin/purelb manager --pod-name=a", program{}, false},
		{"", program{}, false},
	} {
		got, ours := parseCommand([]byte(strings.ReplaceAll(row.command, " ", "\x00")+"\x00"), "a")
		if got != row.want || ours != row.ours {
			t.Errorf("%s: %v, %t", row.command, got, ours)
		}
	}
}

func TestMemoryFile(t *testing.T) {
	for groups, want := range map[string]string{
		"5:cpu,cpuacct:/a\n4:memory:/pod/x\n0::/u\n": "/sys/fs/cgroup/memory/pod/x/memory.usage_in_bytes",
		"0::/kubepods/x\n":                           "/sys/fs/cgroup/kubepods/x/memory.current",
		"":                                           "",
	} {
		if got := memoryFile(groups); got != want {
			t.Errorf("%q: %s, want %s", groups, got, want)
		}
	}
}
