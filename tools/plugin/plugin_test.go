package main

import (
	"slices"
	"strings"
	"testing"
)

// Krew installs what is in the archive, and the program that completes is in each that can run it.
func TestFilesOfPlatforms(t *testing.T) {
	for p, want := range map[platform][]string{
		{"linux", "amd64"}:   {"kubectl-purelb", "LICENSE", "kubectl_complete-purelb"},
		{"darwin", "arm64"}:  {"kubectl-purelb", "LICENSE", "kubectl_complete-purelb"},
		{"windows", "amd64"}: {"kubectl-purelb.exe", "LICENSE"},
	} {
		a := artifact{platform: p, files: p.files([]byte("program"), []byte("text"), []byte("#!/bin/sh"))}
		if got := a.Files(); !slices.Equal(got, want) {
			t.Errorf("%s has %q, not %q", p, got, want)
		}
		manifest, err := krewManifest("v1.2.3", "https://example.com", []artifact{a})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range want {
			if !strings.Contains(manifest, "- from: "+name+"\n      to: .\n") {
				t.Errorf("no %s in\n%s", name, manifest)
			}
		}
		for _, f := range a.files {
			if isProgram := f.Name != "LICENSE"; isProgram != (f.Mode == 0o755) {
				t.Errorf("%s has mode %o", f.Name, f.Mode)
			}
		}
	}
}

func TestKrewManifest(t *testing.T) {
	windows := platform{OS: "windows", Arch: "arm64"}
	got, err := krewManifest(
		"v1.2.3", "https://example.com/releases",
		[]artifact{{platform: windows, SHA256: strings.Repeat("0", 64)}},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"version: v1.2.3\n", "os: windows\n", "arch: arm64\n", "bin: kubectl-purelb.exe\n",
		"uri: https://example.com/releases/v1.2.3/kubectl-purelb_windows_arm64.tar.gz\n", "sha256: 0000",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if _, err := krewManifest("v1.2.3", "https://example.com", nil); err == nil {
		t.Error("a manifest without platforms is no error")
	}
}
