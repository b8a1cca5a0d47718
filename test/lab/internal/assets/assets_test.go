package assets

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestHashFollowsTheSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(salt string) string {
		t.Helper()
		s, err := hash(salt, dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	write("main.go", "package main")
	write("go.mod", "module a")
	first := sum("go1")
	if sum("go1") != first {
		t.Error("the same sources have two hashes")
	}
	write("main_test.go", "package main")
	write("README.md", "hello")
	if sum("go1") != first {
		t.Error("files that do not determine the result change the hash")
	}
	if sum("go2") == first {
		t.Error("another version of Go has the same hash")
	}
	write("go.mod", "module b")
	if sum("go1") == first {
		t.Error("another go.mod has the same hash")
	}
}

func TestEntryIsMadeOnceAndWhole(t *testing.T) {
	c := Cache{Dir: filepath.Join(t.TempDir(), "cache")}
	wrong := errors.New("interrupted")
	if _, err := c.entry("a", func(dir string) error {
		_ = os.WriteFile(filepath.Join(dir, "half"), nil, 0o644)
		return wrong
	}); !errors.Is(err, wrong) {
		t.Fatalf("entry = %v, want %v", err, wrong)
	}
	if left, _ := os.ReadDir(c.Dir); len(left) != 0 {
		t.Errorf("a failed build left %v", left)
	}
	made := 0
	for range 2 {
		dir, err := c.entry("a", func(dir string) error {
			made++
			return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "whole")); err != nil {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("made %d times, want once", made)
	}
}

func TestKubernetesVersion(t *testing.T) {
	const goMod = "module a\n\nrequire (\n\tk8s.io/kubectl v0.37.1\n\tk8s.io/kubernetes v1.37.1\n)\n"
	if got, err := kubernetesVersion(goMod); got != "v1.37.1" || err != nil {
		t.Errorf("kubernetesVersion = %q, %v", got, err)
	}
	if got, err := kubernetesVersion("require k8s.io/kubernetes v1.38.0 // one line\n"); got != "v1.38.0" || err != nil {
		t.Errorf("kubernetesVersion = %q, %v", got, err)
	}
	if _, err := kubernetesVersion("module a\n"); err == nil {
		t.Error("a go.mod without Kubernetes was accepted")
	}
}
