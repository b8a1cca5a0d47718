package assets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMinorOf(t *testing.T) {
	for version, want := range map[string]int{"v1.32.5": 32, "v1.9.0": 9, "v1.38.0-alpha.1": 38, "v1.37.0-rc.0": 37} {
		if got, err := minorOf(version); got != want || err != nil {
			t.Errorf("minorOf(%q) = %d, %v", version, got, err)
		}
	}
	for _, version := range []string{"", "1.32.5", "v1.32", "v2.0.0", "v1.32.5+k3s1", "v1.32.x", "latest", "v1.32.5\nx"} {
		if _, err := minorOf(version); err == nil {
			t.Errorf("minorOf(%q) accepts it", version)
		}
	}
}

func TestOtherGoMod(t *testing.T) {
	const upstream = `module k8s.io/kubernetes

go 1.23.0

godebug default=go1.23

require (
	github.com/spf13/cobra v1.8.1
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.130.1
)

replace (
	github.com/onsi/ginkgo => github.com/openshift/ginkgo v1.2.3
	k8s.io/api => ./staging/src/k8s.io/api
)
`
	text, err := otherGoMod("example.org/kube", "v1.32.5", []byte(upstream))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"module example.org/kube\n", "go 1.23.0\n", "godebug default=go1.23\n", "github.com/spf13/cobra v1.8.1\n",
		"k8s.io/kubernetes v1.32.5\n", "k8s.io/api => k8s.io/api v0.32.5\n",
		"github.com/onsi/ginkgo => github.com/openshift/ginkgo v1.2.3\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "staging") {
		t.Errorf("a folder of Kubernetes' sources is left in\n%s", text)
	}
	if _, err := otherGoMod("example.org/kube", "v1.32.5", []byte("modul x")); err == nil {
		t.Error("a go.mod that is none was accepted")
	}
}

func TestPatchFor(t *testing.T) {
	names := []string{"README.md", "v1.32.patch", "v1.35.patch", "v1.30.patch"}
	for minor, want := range map[int]string{
		29: "v1.30.patch", 30: "v1.30.patch", 31: "v1.32.patch", 32: "v1.32.patch", 33: "v1.35.patch", 35: "v1.35.patch",
		36: "",
	} {
		if got := patchFor(names, minor); got != want {
			t.Errorf("patchFor(1.%d) = %q, want %q", minor, got, want)
		}
	}
}

// Each patch fits the sources of kube as they are now: who changes the sources may have to
// change the patches.
func TestPatchesApply(t *testing.T) {
	source := filepath.Join("..", "..", "kube")
	patches, err := filepath.Glob(filepath.Join(source, "patches", "*.patch"))
	if err != nil || len(patches) == 0 {
		t.Fatalf("no patches: %v", err)
	}
	for _, patch := range patches {
		if patch, err = filepath.Abs(patch); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, name := range []string{"main.go", "controlplane.go"} {
			text, err := os.ReadFile(filepath.Join(source, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := applyPatch(t.Context(), dir, patch); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "main.go"))
		if err != nil || strings.Contains(string(text), "NewKubeletCommand(context.Background())") {
			t.Errorf("%s has changed nothing: %v", patch, err)
		}
		if err := applyPatch(t.Context(), dir, patch); err == nil {
			t.Errorf("%s was applied twice", patch)
		}
	}
}
