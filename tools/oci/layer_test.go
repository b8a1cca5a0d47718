package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purelb/purelb-operator/tools/archive"
)

// TestLayerFrom packs a file and a folder with all that a folder may have.
func TestLayerFrom(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "program"), []byte("p"), 0o600),
		os.MkdirAll(filepath.Join(root, "bin"), 0o755),
		os.Mkdir(filepath.Join(root, "tmp"), 0o755),
		os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(root, "bin", "busybox"), []byte("box"), 0o755),
		os.Symlink("busybox", filepath.Join(root, "bin", "ls")),
		os.Symlink("nowhere", filepath.Join(root, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	files := []string{filepath.Join(dir, "program") + "=/bin/program", root + "=/"}
	more := archive.File{Name: "etc/ssl/ca.crt", Content: []byte("c"), Mode: 0o644}
	content, err := LayerFrom(files, more)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.IsZero() && header.ModTime.Unix() != 0 || header.Uid != 0 {
			t.Errorf("%s has time %s and owner %d", header.Name, header.ModTime, header.Uid)
		}
		got = append(got, fmt.Sprintf("%s %o %s%s", header.Name, header.Mode, header.Linkname, data))
	}
	want := "bin/ 755 |bin/program 755 p|bin/busybox 755 box|bin/ls 777 busybox|dangling 777 nowhere|tmp/ 1777 |" +
		"etc/ 755 |etc/ssl/ 755 |etc/ssl/ca.crt 644 c"
	if all := strings.Join(got, "|"); all != want {
		t.Errorf("got  %s\nwant %s", all, want)
	}
	again, err := LayerFrom(files, more)
	if err != nil || !bytes.Equal(content, again) {
		t.Errorf("a second time it differs (%v)", err)
	}
}
