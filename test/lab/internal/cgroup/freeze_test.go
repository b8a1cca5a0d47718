package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestFreeze plays the kernel's files: what is written to them, and what they say then.
func TestFreeze(t *testing.T) {
	for _, row := range []struct {
		name           string
		options        []string // of the hierarchies; that which freezes is the last
		control, state string
		frozen, thawed string // written
		says           [2]string
	}{
		{
			"version 1", []string{"memory", "freezer"}, "freezer.state", "freezer.state", "FROZEN", "THAWED",
			[2]string{"FROZEN\n", "THAWED\n"},
		},
		{
			"version 1, beside an empty version 2", []string{"", "cpu,freezer"}, "freezer.state", "freezer.state", "FROZEN",
			"THAWED", [2]string{"FROZEN\n", "THAWED\n"},
		},
		{
			"version 2", []string{""}, "cgroup.freeze", "cgroup.events", "1", "0",
			[2]string{"populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var hierarchies []Hierarchy
			group := ""
			for _, options := range row.options {
				base := t.TempDir()
				group = filepath.Join(base, Prefix+"node1")
				hierarchies = append(hierarchies, Hierarchy{Options: options, Mount: base, Base: base})
			}
			if err := Freeze(t.Context(), hierarchies, "node1"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without the group: %v", err)
			}
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Fatal(err)
			}
			for i, do := range []func(context.Context, []Hierarchy, string) error{Freeze, Thaw} {
				if err := os.WriteFile(filepath.Join(group, row.state), []byte(row.says[1-i]), 0o600); err != nil {
					t.Fatal(err)
				}
				if row.state != row.control { // the kernel never says that it is done
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					if err := do(ctx, hierarchies, "node1"); !errors.Is(err, context.Canceled) {
						t.Errorf("before it is done: %v", err)
					}
				}
				if err := os.WriteFile(filepath.Join(group, row.state), []byte(row.says[i]), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := do(t.Context(), hierarchies, "node1"); err != nil {
					t.Error(err)
				}
				want := []string{row.frozen, row.thawed}[i]
				if written, err := os.ReadFile(filepath.Join(group, row.control)); err != nil || string(written) != want {
					t.Errorf("%q is written, want %q: %v", written, want, err)
				}
			}
		})
	}
	none := []Hierarchy{{Options: "memory"}, {Options: ""}}
	if err := Freeze(t.Context(), none, "node1"); err == nil {
		t.Error("a machine without a freezer froze a group")
	}
}
