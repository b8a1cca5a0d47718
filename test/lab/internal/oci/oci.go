// Package oci makes container images of single static binaries, without any
// tool or registry.
package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Write writes to tarFile an image called ref (such as "lab.local/echo:1")
// that holds one file, the given binary, and runs it.
func Write(tarFile, ref, architecture, binary string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return fmt.Errorf("parse the image name: %w", err)
	}
	content, err := singleFile(binary)
	if err != nil {
		return fmt.Errorf("pack %s: %w", binary, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	})
	if err != nil {
		return fmt.Errorf("make the layer of %s: %w", ref, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("make the image %s: %w", ref, err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("make the image %s: %w", ref, err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", architecture
	file.Config = v1.Config{Entrypoint: []string{"/" + filepath.Base(binary)}, WorkingDir: "/"}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return fmt.Errorf("configure the image %s: %w", ref, err)
	}
	if err := tarball.WriteToFile(tarFile, tag, image); err != nil {
		return fmt.Errorf("write the image %s: %w", ref, err)
	}
	return nil
}

// singleFile is a tar of one executable at the root, with no time in it, so
// that the same binary always makes the same image.
func singleFile(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	header := &tar.Header{Name: filepath.Base(path), Mode: 0o755, Size: int64(len(text))}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
