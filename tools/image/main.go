// Command image writes an OCI image from static binaries, as a tar archive that containerd,
// podman and docker import. It needs no container engine, and no network because the image has
// no base image.
//
//	image -o purelb.tar -t purelb.io/purelb:dev -arch amd64 -user 65532:65532 bin/purelb=/purelb
//	image -o tools.tar -t example.com/tools:1 -path /bin -cmd pause bin/tool=/tool dist/tools=/
//
// The first file is the entry point. A source that is a folder stands for all that is in it,
// symbolic links included. The same input gives the same image. With -by-digest the image is
// named by its digest instead of a tag, and -t is the name without either: a kubelet never asks
// a registry about such an image that the node has.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	out := flag.String("o", "image.tar", "the archive to write")
	tag := flag.String("t", "", "name and tag of the image")
	arch := flag.String("arch", "amd64", "architecture, as GOARCH")
	user := flag.String("user", "", "user and group that the image runs as by default")
	byDigest := flag.Bool("by-digest", false, "name the image by its digest, and print that name; -t names no tag")
	command := flag.String("cmd", "", "argument of the entry point unless a container has others")
	path := flag.String("path", "/", "PATH")
	flag.Parse()
	config := v1.Config{User: *user, Env: []string{"PATH=" + *path}}
	if *command != "" {
		config.Cmd = []string{*command}
	}
	if err := write(*out, *tag, *arch, config, *byDigest, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write writes the image. It sets the entry point of config.
func write(out, tag, arch string, config v1.Config, byDigest bool, files []string) error {
	if len(files) == 0 {
		return errors.New("name at least one file, as source=/path/in/image")
	}
	_, entry, ok := strings.Cut(files[0], "=")
	if !ok {
		return fmt.Errorf("%q: must be source=/path/in/image", files[0])
	}
	config.Entrypoint = []string{entry}
	content, err := layer(files)
	if err != nil {
		return err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return fmt.Errorf("make the layer: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: "linux", Architecture: arch,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(img)},
		Config: config,
	})
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	names, err := nameAnnotations(img, tag, byDigest)
	if err != nil {
		return err
	}
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
		Platform:    &v1.Platform{OS: "linux", Architecture: arch},
		Annotations: names,
	}})
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, index); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return archive(out, dir)
}

// nameAnnotations returns the annotations by which importers name the image: by a tag, or by
// the image's digest, which it prints then.
func nameAnnotations(img v1.Image, tag string, byDigest bool) (map[string]string, error) {
	const containerdName = "io.containerd.image.name"
	if !byDigest {
		ref, err := name.NewTag(tag, name.StrictValidation)
		if err != nil {
			return nil, fmt.Errorf("-t %q: %w", tag, err)
		}
		return map[string]string{containerdName: ref.Name(), "org.opencontainers.image.ref.name": ref.TagStr()}, nil
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, fmt.Errorf("compute the digest: %w", err)
	}
	ref, err := name.NewDigest(tag+"@"+digest.String(), name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("-t %q with -by-digest: %w", tag, err)
	}
	fmt.Println(ref.Name())
	return map[string]string{containerdName: ref.Name()}, nil
}

// archive writes a directory as a tar archive. It renames the file to its name when the archive
// is complete.
func archive(out, dir string) error {
	f, err := os.CreateTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	w := tar.NewWriter(f)
	err = errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", out, err)
	}
	if err := os.Chmod(f.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(f.Name(), out)
}

func diffIDs(img v1.Image) []v1.Hash {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil
	}
	return cfg.RootFS.DiffIDs
}

// layer returns a tar archive of the files and folders, each given as source=/path/in/image.
func layer(files []string) ([]byte, error) {
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
		if err := directories(w, path.Dir(target), written); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{
			Name: target, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg,
		}); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
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
