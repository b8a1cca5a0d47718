package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestImageIsTheDockerfiles compares the image of a release with what the Dockerfile builds: programs, user, entry
// point and labels.
func TestImageIsTheDockerfiles(t *testing.T) {
	content, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, final, ok := strings.Cut(string(content), "\nFROM gcr.io/")
	if !ok {
		t.Fatal("the Dockerfile has no final stage")
	}
	got := map[string]string{}
	for line := range strings.Lines(final) {
		if instruction, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			got[instruction] = rest
		}
	}
	config := imageConfig()
	copied := "--from=build"
	for _, p := range imagePrograms {
		copied += " /" + p.name
		if build := "-o /" + p.name + " " + p.pkg; !strings.Contains(string(content), build+" ") &&
			!strings.Contains(string(content), build+"\n") {
			t.Errorf("the Dockerfile does not build with %q", build)
		}
	}
	for instruction, want := range map[string]string{
		"USER": config.User, "ENTRYPOINT": `["` + strings.Join(config.Entrypoint, `", "`) + `"]`, "COPY": copied + " /",
	} {
		if got[instruction] != want {
			t.Errorf("the Dockerfile has %s %s, and a release %s", instruction, got[instruction], want)
		}
	}
	if diff := cmp.Diff(dockerfileLabels(final), config.Labels); diff != "" {
		t.Errorf("labels of the Dockerfile and of a release: %s", diff)
	}
	for name := range (options{}).releaseLabels() {
		if _, known := config.Labels[name]; known {
			t.Errorf("a release replaces the label %s", name)
		}
	}
}

func TestDockerfileLabels(t *testing.T) {
	got := dockerfileLabels("# LABEL a=0\nFROM scratch\nLABEL a=1\nLABEL b.c=\"d e\"\nCOPY LABEL /\n")
	if want := map[string]string{"a": "1", "b.c": "d e"}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestValidate(t *testing.T) {
	good := options{version: "1.2.3", image: "example.com:5000/a/b-c", revision: "0123", created: time.Unix(1, 0)}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []struct {
		flag   string
		change func(*options)
	}{
		{"-version", func(o *options) { o.version = "0123abc" }},
		{"-version", func(o *options) { o.version = "1.2.3+build" }}, // no tag of an image has a plus
		{"-image", func(o *options) { o.image = "example.com/a:tag" }},
		{"-revision", func(o *options) { o.revision = "" }},
		{"-time", func(o *options) { o.created = time.Unix(0, 0) }},
	} {
		o := good
		wrong.change(&o)
		if err := o.validate(); err == nil || !strings.Contains(err.Error(), wrong.flag) {
			t.Errorf("with a wrong %s the error is %v", wrong.flag, err)
		}
	}
}

// TestChecksums has sha256sum check what was written.
func TestChecksums(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{"b": "text", "a": "", checksumsFile: "older"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, layouts), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeChecksums(folder); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sha256sum", "--check", "--strict", checksumsFile)
	command.Dir = folder
	if got, err := command.CombinedOutput(); err != nil || string(got) != "a: OK\nb: OK\n" {
		t.Errorf("%v: %s", err, got)
	}
}

func TestImagePURL(t *testing.T) {
	const want = "pkg:oci/purelb@sha256%3Aabc?repository_url=example.com/lb/purelb"
	if got := imagePURL("example.com/lb/purelb", "sha256:abc"); got != want {
		t.Errorf("got %s", got)
	}
}
