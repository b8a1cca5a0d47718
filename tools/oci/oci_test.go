package oci

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/purelb/purelb-operator/tools/archive"
)

var created = time.Unix(1_700_000_000, 0)

// writeIndex writes the layout of an index for two architectures, and returns the digest of the index.
func writeIndex(t *testing.T, folder string) string {
	t.Helper()
	var images []v1.Image
	for _, arch := range []string{"amd64", "arm64"} {
		layer, err := Layer([]archive.File{{Name: "bin/program", Content: []byte("for " + arch), Mode: 0o755}})
		if err != nil {
			t.Fatal(err)
		}
		img, err := Image(arch, v1.Config{User: "1:2", Labels: map[string]string{"a": "1", "b": "2"}}, created, layer)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	index, err := Index(map[string]string{"a": "1", "b": "2"}, images...)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(folder, index, nil, map[string]string{ImageNameAnnotation: "example.com/x:1"}); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

// TestIndex reads what was written as an importer does.
func TestIndex(t *testing.T) {
	folder := t.TempDir()
	digest := writeIndex(t, folder)
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the layout has %d entries", len(manifest.Manifests))
	}
	entry := manifest.Manifests[0]
	if entry.Digest.String() != digest || entry.MediaType != types.OCIImageIndex ||
		entry.Annotations[ImageNameAnnotation] != "example.com/x:1" {
		t.Errorf("the layout has %+v", entry)
	}
	index, err := top.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		m := manifest.Manifests[i]
		if m.MediaType != types.OCIManifestSchema1 || m.Platform.OS != "linux" || m.Platform.Architecture != arch {
			t.Errorf("the index has for %s %+v", arch, m)
		}
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if !config.Created.Equal(created) || config.Config.User != "1:2" || config.Architecture != arch {
			t.Errorf("the image for %s has %+v", arch, config)
		}
	}
}

// TestArchiveIsReproducible writes an index twice, the second time with another time and other permissions of the
// layout's files.
func TestArchiveIsReproducible(t *testing.T) {
	dir := t.TempDir()
	var contents []string
	for i, name := range []string{"first", "second"} {
		folder := filepath.Join(dir, name)
		writeIndex(t, folder)
		index := filepath.Join(folder, "index.json")
		if err := os.Chmod(index, 0o600+os.FileMode(i)*0o44); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(index, time.Time{}, created.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := WriteArchive(folder+".tar", folder, created); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(folder + ".tar")
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, string(content))
	}
	if contents[0] != contents[1] {
		t.Error("two archives of the same image differ")
	}
}
