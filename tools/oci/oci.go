// Package oci makes OCI images of files, without a container engine and without a base image. The same input gives
// the same image.
package oci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/purelb/purelb-operator/tools/archive"
)

// ImageNameAnnotation is the annotation by which containerd names an image that it imports.
const ImageNameAnnotation = "io.containerd.image.name"

// Image returns an image for Linux of one layer, as Layer and LayerFrom return it.
func Image(arch string, config v1.Config, created time.Time, content []byte) (v1.Image, error) {
	l, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching,
	)
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.AppendLayers(img, l); err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	diffID, err := l.DiffID()
	if err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: created.UTC()},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
		Config: config,
	})
	if err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	return img, nil
}

// Index returns the index of an image that is made for several architectures, in the given order.
func Index(annotations map[string]string, images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture},
		}})
	}
	return mutate.Annotations(index, annotations).(v1.ImageIndex), nil
}

// WriteLayout writes an OCI layout that has one image or one index, whose descriptor gets annotations.
func WriteLayout(folder string, content mutate.Appendable, platform *v1.Platform, annotations map[string]string) error {
	top := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: content, Descriptor: v1.Descriptor{Platform: platform, Annotations: annotations},
	})
	if _, err := layout.Write(folder, top); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

// WriteArchive writes an OCI layout as a tar archive, under its name when it is complete.
func WriteArchive(out, folder string, modified time.Time) error {
	files, err := archive.Folder(folder, "")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(archive.Tar(f, files, modified), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	return os.Rename(f.Name(), out)
}
