package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/purelb/purelb-operator/tools/bundle/kustomize"
)

const (
	packageName = "purelb"
	bundleDir   = "bundle"
	dockerfile  = "bundle.Dockerfile"
)

// generate returns the content of the bundle's files, by their names relative to the
// repository's root.
func generate(o options) (map[string][]byte, error) {
	sources := filepath.Join(o.root, "config", "manifests")
	objects, err := kustomize.Build(sources)
	if err != nil {
		return nil, err
	}
	examples, err := kustomize.Build(filepath.Join(sources, "examples"))
	if err != nil {
		return nil, err
	}
	icon, err := os.ReadFile(filepath.Join(sources, "icon.svg"))
	if err != nil {
		return nil, fmt.Errorf("read the icon: %w", err)
	}
	scorecard, err := os.ReadFile(filepath.Join(sources, "scorecard.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the scorecard: %w", err)
	}
	p, err := sortObjects(append(objects, examples...))
	if err != nil {
		return nil, err
	}
	csv, err := p.buildServiceVersion(o, icon)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		path.Join(bundleDir, "metadata", "annotations.yaml"):      metadataAnnotations(o.channel),
		path.Join(bundleDir, "tests", "scorecard", "config.yaml"): scorecard,
		path.Join(bundleDir, "manifests", csvFile):                csv,
		dockerfile: dockerfileContent(o.channel),
	}
	for _, u := range p.bundleManifests {
		setOwner(u, csvName(o.version), p.namespace.Name)
		name := path.Join(bundleDir, "manifests", fileName(u))
		if _, taken := files[name]; taken {
			return nil, fmt.Errorf("two objects would be written to %s", name)
		}
		if files[name], err = yaml.Marshal(u.Object); err != nil {
			return nil, fmt.Errorf("write %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return files, nil
}

// fileName returns the name of an object's file: from its name and kind, or for a
// CustomResourceDefinition from the kind that it defines.
func fileName(u *unstructured.Unstructured) string {
	if u.GetKind() == "CustomResourceDefinition" {
		plural, group, _ := strings.Cut(u.GetName(), ".")
		return group + "_" + plural + ".yaml"
	}
	return u.GetName() + "_" + strings.ToLower(u.GetKind()) + ".yaml"
}

// label is a label of the bundle's image, and at the same time an annotation in the bundle's
// metadata.
type label struct{ name, value string }

// labels returns the labels that say what the bundle contains, and where.
func labels(channel string) []label {
	const prefix = "operators.operatorframework.io."
	return []label{
		{prefix + "bundle.mediatype.v1", "registry+v1"},
		{prefix + "bundle.manifests.v1", "manifests/"},
		{prefix + "bundle.metadata.v1", "metadata/"},
		{prefix + "bundle.package.v1", packageName},
		{prefix + "bundle.channels.v1", channel},
		{prefix + "bundle.channel.default.v1", channel},
		{prefix + "test.mediatype.v1", "scorecard+v1"},
		{prefix + "test.config.v1", "tests/scorecard/"},
	}
}

// metadataAnnotations returns the content of the bundle's annotations.yaml.
func metadataAnnotations(channel string) []byte {
	var b strings.Builder
	b.WriteString("annotations:\n")
	for _, l := range labels(channel) {
		fmt.Fprintf(&b, "  %s: %s\n", l.name, l.value)
	}
	return []byte(b.String())
}

// dockerfileContent returns the Dockerfile of the bundle's image.
func dockerfileContent(channel string) []byte {
	var b strings.Builder
	b.WriteString("# Written by make bundle.\nFROM scratch\n")
	for _, l := range labels(channel) {
		fmt.Fprintf(&b, "LABEL %s=%s\n", l.name, l.value)
	}
	for _, dir := range []string{"manifests", "metadata", "tests/scorecard"} {
		fmt.Fprintf(&b, "COPY %s/%s /%s/\n", bundleDir, dir, dir)
	}
	return []byte(b.String())
}
