package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/purelb/purelb-operator/tools/archive"
)

// installation is a kustomization of config/default with another image.
const installation = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- config/default
images:
- name: purelb.io/purelb
  newName: %s
  digest: %s
`

// writeManifests writes all that installs the image of a digest: install.yaml, the chart, the bundle and its image,
// whose digest it returns.
func writeManifests(o options, work, digest string) (string, error) {
	// The generators write beside config/, so they get a copy.
	if err := os.CopyFS(filepath.Join(work, "config"), os.DirFS(filepath.Join(o.root, "config"))); err != nil {
		return "", fmt.Errorf("copy config: %w", err)
	}
	overlay := fmt.Sprintf(installation, o.image, digest)
	if err := os.WriteFile(filepath.Join(work, "kustomization.yaml"), []byte(overlay), 0o644); err != nil {
		return "", err
	}
	manifests, err := output(o.root, o.kustomize, "build", work)
	if err != nil {
		return "", err
	}
	if err := o.write("install.yaml", manifests); err != nil {
		return "", err
	}
	generators := filepath.Join(o.root, "tools", "bundle")
	if _, err := output(
		generators, "go", "run", "./chart", "-root", work, "-version", o.version, "-image", o.image+":"+o.tag()+"@"+digest,
	); err != nil {
		return "", err
	}
	if err := o.writeArchive(fmt.Sprintf("purelb-%s.tgz", o.version), filepath.Join(work, "charts")); err != nil {
		return "", err
	}
	if _, err := output(
		generators, "go", "run", ".", "-root", work, "-version", o.version, "-channel", o.channel,
		"-image", o.image+"@"+digest,
	); err != nil {
		return "", err
	}
	return writeBundle(o, work)
}

// writeBundle writes the OLM bundle in work as an archive and as an image, whose digest it returns.
func writeBundle(o options, work string) (string, error) {
	dockerfile, err := os.ReadFile(filepath.Join(work, "bundle.Dockerfile"))
	if err != nil {
		return "", err
	}
	files, err := archive.Folder(filepath.Join(work, "bundle"), "bundle")
	if err != nil {
		return "", err
	}
	packed, err := archive.TarGzip(
		append([]archive.File{{Name: "bundle.Dockerfile", Content: dockerfile, Mode: 0o644}}, files...), o.created,
	)
	if err != nil {
		return "", err
	}
	if err := o.write("purelb-bundle.tar.gz", packed); err != nil {
		return "", err
	}
	for i := range files {
		files[i].Name = strings.TrimPrefix(files[i].Name, "bundle/")
	}
	config, byArch := v1.Config{Labels: dockerfileLabels(string(dockerfile))}, map[string][]archive.File{}
	for _, arch := range o.arches {
		byArch[arch] = files
	}
	return writeIndex(o, o.tag()+"-bundle", config, byArch, o.releaseLabels(), "")
}

// dockerfileLabels returns the labels that a Dockerfile sets, one in a line.
func dockerfileLabels(text string) map[string]string {
	labels := map[string]string{}
	for line := range strings.Lines(text) {
		if label, ok := strings.CutPrefix(strings.TrimSpace(line), "LABEL "); ok {
			name, value, _ := strings.Cut(label, "=")
			labels[name] = strings.Trim(value, `"`)
		}
	}
	return labels
}

// writeArchive writes a compressed archive of a folder.
func (o options) writeArchive(name, folder string) error {
	files, err := archive.Folder(folder, "")
	if err != nil {
		return err
	}
	packed, err := archive.TarGzip(files, o.created)
	if err != nil {
		return err
	}
	return o.write(name, packed)
}

// output runs a command in a folder and returns what it writes.
func output(folder, name string, args ...string) ([]byte, error) {
	var messages strings.Builder
	command := exec.Command(name, args...)
	command.Dir, command.Stderr = folder, &messages
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, messages.String())
	}
	return out, nil
}
