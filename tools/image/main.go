// Command image writes an OCI image from static binaries, as a tar archive that containerd,
// podman and docker import. It needs no container engine, and no network because the image has
// no base image.
//
//	image -o purelb.tar -t purelb.io/purelb:dev -arch amd64 -user 65532:65532 -authorities bin/purelb=/purelb
//	image -o tools.tar -t example.com/tools:1 -path /bin -cmd pause bin/tool=/tool dist/tools=/
//
// The first file is the entry point. A source that is a folder stands for all that is in it,
// symbolic links included. The same input gives the same image. With -by-digest the image is
// named by its digest instead of a tag, and -t is the name without either: a kubelet never asks
// a registry about such an image that the node has. With -authorities the image has the certificates of public
// authorities, by which its programs trust servers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/purelb/purelb-operator/tools/archive"
	"github.com/purelb/purelb-operator/tools/authorities"
	"github.com/purelb/purelb-operator/tools/oci"
)

func main() {
	out := flag.String("o", "image.tar", "the archive to write")
	tag := flag.String("t", "", "name and tag of the image")
	arch := flag.String("arch", "amd64", "architecture, as GOARCH")
	user := flag.String("user", "", "user and group that the image runs as by default")
	byDigest := flag.Bool("by-digest", false, "name the image by its digest, and print that name; -t names no tag")
	command := flag.String("cmd", "", "argument of the entry point unless a container has others")
	path := flag.String("path", "/", "PATH")
	withAuthorities := flag.Bool("authorities", false, "add the certificates of public authorities")
	flag.Parse()
	config := v1.Config{User: *user, Env: []string{"PATH=" + *path}}
	if *command != "" {
		config.Cmd = []string{*command}
	}
	var more []archive.File
	if *withAuthorities {
		more = []archive.File{{Name: authorities.File, Content: authorities.PEM(), Mode: 0o644}}
	}
	if err := write(*out, *tag, *arch, config, *byDigest, flag.Args(), more); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// write writes the image of files of this machine and more. It sets the entry point of config.
func write(out, tag, arch string, config v1.Config, byDigest bool, files []string, more []archive.File) error {
	if len(files) == 0 {
		return errors.New("name at least one file, as source=/path/in/image")
	}
	_, entry, ok := strings.Cut(files[0], "=")
	if !ok {
		return fmt.Errorf("%q: must be source=/path/in/image", files[0])
	}
	config.Entrypoint = []string{entry}
	layer, err := oci.LayerFrom(files, more...)
	if err != nil {
		return err
	}
	img, err := oci.Image(arch, config, time.Time{}, layer)
	if err != nil {
		return err
	}
	names, err := nameAnnotations(img, tag, byDigest)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := oci.WriteLayout(dir, img, &v1.Platform{OS: "linux", Architecture: arch}, names); err != nil {
		return err
	}
	return oci.WriteArchive(out, dir, time.Unix(0, 0))
}

// nameAnnotations returns the annotations by which importers name the image: by a tag, or by
// the image's digest, which it prints then.
func nameAnnotations(img v1.Image, tag string, byDigest bool) (map[string]string, error) {
	if !byDigest {
		ref, err := name.NewTag(tag, name.StrictValidation)
		if err != nil {
			return nil, fmt.Errorf("-t %q: %w", tag, err)
		}
		return map[string]string{oci.ImageNameAnnotation: ref.Name(), "org.opencontainers.image.ref.name": ref.TagStr()}, nil
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
	return map[string]string{oci.ImageNameAnnotation: ref.Name()}, nil
}
