// Command plugin builds kubectl-purelb for each platform, and writes an archive of each, their
// checksums, and the manifest by which Krew installs the plugin.
//
//	plugin -root .. -out ../dist/plugin -version v0.2.0 -url https://example.com/v0.2.0 -platforms
//	linux/amd64,windows/arm64
//
// The same commit and the same Go give the same bytes.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	_ "embed"

	"github.com/purelb/purelb-operator/tools/archive"
	"github.com/purelb/purelb-operator/tools/gobuild"
)

//go:embed krew.yaml.tmpl
var krewTemplate string

// platform is one operating system and architecture.
type platform gobuild.Platform

// Program is the name of the program on the platform.
func (p platform) Program() string {
	if p.OS == "windows" {
		return "kubectl-purelb.exe"
	}
	return "kubectl-purelb"
}

// Archive is the name of the archive for the platform.
func (p platform) Archive() string { return fmt.Sprintf("kubectl-purelb_%s_%s.tar.gz", p.OS, p.Arch) }

// files are what the archive for the platform has. kubectl completes the plugin by another program, a script
// of the shell.
func (p platform) files(program, license, complete []byte) []archive.File {
	all := []archive.File{
		{Name: p.Program(), Content: program, Mode: 0o755}, {Name: "LICENSE", Content: license, Mode: 0o644},
	}
	if p.OS != "windows" {
		all = append(all, archive.File{Name: completeProgram, Content: complete, Mode: 0o755})
	}
	return all
}

// completeProgram is the program that kubectl runs to complete the plugin.
const completeProgram = "kubectl_complete-purelb"

// artifact is the archive of one platform, for the manifest.
type artifact struct {
	platform
	files  []archive.File
	SHA256 string
}

// Files are the names of the files in the archive.
func (a artifact) Files() (names []string) {
	for _, f := range a.files {
		names = append(names, f.Name)
	}
	return names
}

func main() {
	root := flag.String("root", "..", "root of the repository")
	out := flag.String("out", "dist/plugin", "folder to write to")
	version := flag.String("version", "dev", "version of the plugin, such as v0.2.0")
	url := flag.String(
		"url", "https://github.com/purelb/purelb-operator/releases/download",
		"where releases are; the version and the name of the archive follow",
	)
	platforms := flag.String(
		"platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64",
		"platforms to build for",
	)
	modified := flag.Int64("time", 0, "when the files of the archives were changed, in seconds since 1970")
	flag.Parse()
	if err := run(*root, *out, *version, *url, *platforms, time.Unix(*modified, 0)); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run(root, out, version, url, platforms string, modified time.Time) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return err
	}
	complete, err := os.ReadFile(filepath.Join(root, "cmd", "kubectl-purelb", completeProgram))
	if err != nil {
		return err
	}
	all, err := gobuild.ParsePlatforms(platforms)
	if err != nil {
		return err
	}
	var artifacts []artifact
	var sums strings.Builder
	for _, p := range all {
		a, err := build(root, out, version, platform(p), license, complete, modified)
		if err != nil {
			return err
		}
		fmt.Println("wrote", filepath.Join(out, a.Archive()))
		artifacts = append(artifacts, a)
		fmt.Fprintf(&sums, "%s  %s\n", a.SHA256, a.Archive())
	}
	if err := os.WriteFile(filepath.Join(out, "checksums.txt"), []byte(sums.String()), 0o644); err != nil {
		return err
	}
	manifest, err := krewManifest(version, url, artifacts)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "purelb.yaml"), []byte(manifest), 0o644)
}

// build builds the program for one platform and packs it.
func build(root, out, version string, p platform, license, complete []byte, modified time.Time) (artifact, error) {
	work, err := os.MkdirTemp("", "plugin")
	if err != nil {
		return artifact{}, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	program := filepath.Join(work, p.Program())
	if err := gobuild.Build(root, "./cmd/kubectl-purelb", version, gobuild.Platform(p), program); err != nil {
		return artifact{}, err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return artifact{}, err
	}
	a := artifact{platform: p, files: p.files(content, license, complete)}
	packed, err := archive.TarGzip(a.files, modified)
	if err != nil {
		return artifact{}, err
	}
	sum := sha256.Sum256(packed)
	a.SHA256 = hex.EncodeToString(sum[:])
	return a, os.WriteFile(filepath.Join(out, a.Archive()), packed, 0o644)
}

// krewManifest writes the manifest of the plugin.
func krewManifest(version, url string, artifacts []artifact) (string, error) {
	if len(artifacts) == 0 {
		return "", errors.New("no platform")
	}
	parsed, err := template.New("krew").Parse(krewTemplate)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = parsed.Execute(&out, map[string]any{"Version": version, "URL": url, "Artifacts": artifacts})
	return out.String(), err
}
