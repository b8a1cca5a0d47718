package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/purelb/purelb-operator/tools/archive"
)

// Layer returns a tar archive of files, with the folders that they are in.
func Layer(files []archive.File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	written := map[string]bool{}
	for _, f := range files {
		if err := file(w, f, written); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// LayerFrom returns a tar archive of files and folders of this machine, each given as source=/path/in/image, and of
// more files.
func LayerFrom(files []string, more ...archive.File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	written := map[string]bool{}
	for _, f := range files {
		source, target, ok := strings.Cut(f, "=")
		if !ok {
			return nil, fmt.Errorf("%q: must be source=/path/in/image", f)
		}
		target = strings.TrimPrefix(path.Clean(target), "/")
		if info, err := os.Stat(source); err == nil && info.IsDir() {
			if err := folder(w, source, target, written); err != nil {
				return nil, err
			}
			continue
		}
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		if err := file(w, archive.File{Name: target, Content: data, Mode: 0o755}, written); err != nil {
			return nil, err
		}
	}
	for _, f := range more {
		if err := file(w, f, written); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// file adds a file, and the folders that it is in unless written has them.
func file(w *tar.Writer, f archive.File, written map[string]bool) error {
	if err := directories(w, path.Dir(f.Name), written); err != nil {
		return err
	}
	header := &tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(f.Content)
	return err
}

// folder adds what is in a folder, with its permissions, but without owners and times.
func folder(w *tar.Writer, source, target string, written map[string]bool) error {
	return filepath.WalkDir(source, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		name := path.Join(target, filepath.ToSlash(below))
		if name == "." || written[name] {
			return nil
		}
		if err := directories(w, path.Dir(name), written); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(file); err != nil {
				return err
			}
		}
		described, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		header := &tar.Header{
			Name: name, Mode: described.Mode, Size: described.Size, Typeflag: described.Typeflag, Linkname: link,
		}
		if info.IsDir() {
			header.Name += "/"
			written[name] = true
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// directories adds the entries of a directory and of those above it, unless written has them.
func directories(w *tar.Writer, dir string, written map[string]bool) error {
	if dir == "." || written[dir] {
		return nil
	}
	if err := directories(w, path.Dir(dir), written); err != nil {
		return err
	}
	written[dir] = true
	return w.WriteHeader(&tar.Header{Name: dir + "/", Mode: 0o755, Typeflag: tar.TypeDir})
}
