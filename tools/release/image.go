package main

import (
	"fmt"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/purelb/purelb-operator/tools/archive"
	"github.com/purelb/purelb-operator/tools/authorities"
	"github.com/purelb/purelb-operator/tools/oci"
)

const (
	// layouts is the folder of OCI layouts in that of the release.
	layouts = "oci"

	// source is where the sources are.
	source = "https://github.com/purelb/purelb-operator"

	// license is the project's, as in SPDX's list.
	license = "Apache-2.0"
)

// imagePrograms are the programs of the image. The first is the entry point.
var imagePrograms = []struct{ name, pkg string }{{"purelb", "./cmd"}, {"purelb-speaker", "./cmd/speaker"}}

// imageConfig is how the image runs. Apart from its base image and what a release alone knows, the Dockerfile says
// the same.
func imageConfig() v1.Config {
	return v1.Config{
		User:       "65532:65532",
		Entrypoint: []string{"/" + imagePrograms[0].name},
		Env:        []string{"PATH=/"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "PureLB",
			"org.opencontainers.image.source":   source,
			"org.opencontainers.image.licenses": license,
		},
	}
}

// releaseLabels are what a release says of an image.
func (o options) releaseLabels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.version":  o.tag(),
		"org.opencontainers.image.revision": o.revision,
		"org.opencontainers.image.created":  o.created.Format(time.RFC3339),
	}
}

// writeImage writes the image for all architectures as an OCI layout and as an archive of it, and returns its digest.
func writeImage(o options, programs []program) (string, error) {
	labels := o.releaseLabels()
	config := imageConfig()
	for name, value := range config.Labels {
		labels[name] = value
	}
	config.Labels = labels
	files := map[string][]archive.File{}
	for _, p := range programs {
		files[p.arch] = append(files[p.arch], archive.File{Name: p.name, Content: p.content, Mode: 0o755})
	}
	for _, arch := range o.arches {
		files[arch] = append(files[arch], archive.File{Name: authorities.File, Content: authorities.PEM(), Mode: 0o644})
	}
	return writeIndex(o, o.tag(), config, files, labels, "purelb-image.tar")
}

// writeIndex writes an image for all architectures as the OCI layout of a tag and, if it is named, as an archive of
// that. It returns the image's digest.
func writeIndex(
	o options, tag string, config v1.Config, files map[string][]archive.File, annotations map[string]string, tar string,
) (string, error) {
	var images []v1.Image
	for _, arch := range o.arches {
		layer, err := oci.Layer(files[arch])
		if err != nil {
			return "", err
		}
		img, err := oci.Image(arch, config, o.created, layer)
		if err != nil {
			return "", err
		}
		images = append(images, img)
	}
	index, err := oci.Index(annotations, images...)
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("compute the digest: %w", err)
	}
	folder := filepath.Join(o.out, layouts, tag)
	err = oci.WriteLayout(folder, index, nil, map[string]string{
		"org.opencontainers.image.ref.name": tag,
		oci.ImageNameAnnotation:             o.image + "@" + digest.String(),
	})
	if err != nil || tar == "" {
		return digest.String(), err
	}
	return digest.String(), oci.WriteArchive(filepath.Join(o.out, tar), folder, o.created)
}
