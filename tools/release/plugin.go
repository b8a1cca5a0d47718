package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/purelb/purelb-operator/tools/archive"
	"github.com/purelb/purelb-operator/tools/gobuild"
	"github.com/purelb/purelb-operator/tools/sbom"
)

// writePlugin writes the plugin's archives, as make plugin does, with Krew's manifest and what is in them.
func writePlugin(o options, work string) error {
	folder := filepath.Join(work, "plugin")
	fmt.Println("building the plugin for", o.platforms)
	if _, err := output(
		filepath.Join(o.root, "tools"), "go", "run", "./plugin", "-root", o.root, "-out", folder, "-version", o.tag(),
		"-platforms", o.platforms, "-time", strconv.FormatInt(o.created.Unix(), 10),
	); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(folder, "purelb.yaml"))
	if err != nil {
		return err
	}
	if err := o.write("krew-purelb.yaml", manifest); err != nil {
		return err
	}
	platforms, err := gobuild.ParsePlatforms(o.platforms)
	if err != nil {
		return err
	}
	var artifacts []sbom.Artifact
	for _, p := range platforms {
		name := fmt.Sprintf("kubectl-purelb_%s_%s.tar.gz", p.OS, p.Arch)
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		if err := o.write(name, content); err != nil {
			return err
		}
		a, err := pluginArtifact(name, p, content)
		if err != nil {
			return err
		}
		artifacts = append(artifacts, a)
	}
	return writeSBOM(o, "kubectl-purelb", artifacts)
}

// pluginArtifact says which programs of Go are in an archive of the plugin.
func pluginArtifact(name string, p gobuild.Platform, content []byte) (sbom.Artifact, error) {
	files, err := archive.Untar(content)
	if err != nil {
		return sbom.Artifact{}, fmt.Errorf("%s: %w", name, err)
	}
	a := sbom.Artifact{Name: name, Purpose: "ARCHIVE", SHA256: sum(content)}
	for _, f := range files {
		if strings.TrimSuffix(f.Name, ".exe") != "kubectl-purelb" {
			continue
		}
		found, err := sbom.Read(f.Name, p.String(), f.Content)
		if err != nil {
			return sbom.Artifact{}, err
		}
		a.Programs = append(a.Programs, found)
	}
	return a, nil
}
