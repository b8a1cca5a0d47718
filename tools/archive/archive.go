// Package archive writes archives in which nothing depends on when, where and by whom they are made.
package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// File is one file of an archive.
type File struct {
	Name    string // with slashes
	Content []byte
	Mode    int64
}

// Tar writes files in the given order, without owners, all of them changed at the same time.
func Tar(to io.Writer, files []File, modified time.Time) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		header := &tar.Header{
			Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), ModTime: modified.UTC().Truncate(time.Second),
			Typeflag: tar.TypeReg, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if _, err := w.Write(f.Content); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return w.Close()
}

// TarGzip returns a compressed Tar. The header of gzip names neither a file nor a time.
func TarGzip(files []File, modified time.Time) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(Tar(w, files, modified), w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Untar returns the files of what TarGzip wrote.
func Untar(compressed []byte) ([]File, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	var files []File
	for r := tar.NewReader(unzipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		files = append(files, File{header.Name, content, header.Mode})
	}
}

// Folder returns the regular files below a folder, in lexical order, with their names behind prefix. Whether its
// owner may execute a file is all that counts of its permissions: the others depend on the umask.
func Folder(folder, prefix string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", name)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		files = append(files, File{path.Join(prefix, filepath.ToSlash(below)), content, mode})
		return nil
	})
	return files, err
}
