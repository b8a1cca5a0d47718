// Command release writes what a release consists of:
//
//	release -root .. -out ../dist/release -version 1.2.3 -image registry.example.com/purelb \
//	  -time 1700000000 -revision 0123abc -kustomize ../bin/kustomize
//
// It needs no network once Go's modules are there, pushes nothing and signs nothing. The same commit, the same Go and
// the same flags give the same bytes:
//
//	oci/v1.2.3, oci/v1.2.3-bundle     OCI layouts of the image and of the OLM bundle's image, to be pushed
//	images.txt                        their tags, and their names with digests
//	purelb-image.tar                  the image for all architectures, to be imported
//	install.yaml                      what kustomize makes of config/default
//	purelb-1.2.3.tgz                  the Helm chart
//	purelb-bundle.tar.gz              the OLM bundle
//	kubectl-purelb_OS_ARCH.tar.gz     the plugin of kubectl, and krew-purelb.yaml, by which Krew installs it
//	purelb-image.spdx.json            what is in the image; kubectl-purelb.spdx.json: in the plugin
//	SHA256SUMS                        of all files beside it
//
// The manifests, the chart and the bundle name the image by its digest.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/tools/gobuild"
)

func main() {
	var o options
	version := flag.String("version", "", "version, such as 1.2.3")
	architectures := flag.String("arches", "amd64,arm64", "architectures of the image")
	created := flag.Int64("time", 0, "time of the commit, in seconds since 1970")
	flag.StringVar(&o.root, "root", "..", "root of the repository")
	flag.StringVar(&o.out, "out", "dist/release", "folder to write to; what is in it is removed")
	flag.StringVar(&o.image, "image", "", "name of the image, without a tag")
	flag.StringVar(&o.platforms, "platforms", "", "platforms of the plugin, such as linux/amd64,windows/arm64")
	flag.StringVar(&o.revision, "revision", "", "the commit")
	flag.StringVar(&o.channel, "channel", "candidate", "channel of the OLM bundle")
	flag.StringVar(&o.kustomize, "kustomize", "bin/kustomize", "the program kustomize")
	flag.Parse()
	o.version = strings.TrimPrefix(*version, "v")
	o.created = time.Unix(*created, 0).UTC()
	for arch := range strings.SplitSeq(*architectures, ",") {
		o.arches = append(o.arches, strings.TrimSpace(arch))
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	root, out string // folders
	version   string // without the v of the tag
	image     string // the image's name, without a tag
	arches    []string
	platforms string // of the plugin
	revision  string // the commit
	channel   string // of the OLM bundle
	kustomize string // the program
	created   time.Time
}

// tag is the tag of the commit and of the image.
func (o options) tag() string { return "v" + o.version }

var (
	semanticVersion = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	imageName       = regexp.MustCompile(`^[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+$`)
)

func (o options) validate() error {
	var errs []error
	if !semanticVersion.MatchString(o.version) {
		errs = append(errs, fmt.Errorf("-version %q: must be like 1.2.3 or 1.2.3-rc.1", o.version))
	}
	if !imageName.MatchString(o.image) {
		errs = append(errs, fmt.Errorf("-image %q: must be like registry.example.com/purelb", o.image))
	}
	if o.revision == "" || o.created.Unix() <= 0 {
		errs = append(errs, errors.New("-revision and -time: must be those of the commit"))
	}
	return errors.Join(errs...)
}

func run(o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(o.out, layouts), 0o755); err != nil {
		return err
	}
	programs, err := buildPrograms(o, work)
	if err != nil {
		return err
	}
	digest, err := writeImage(o, programs)
	if err != nil {
		return err
	}
	bundleDigest, err := writeManifests(o, work, digest)
	if err != nil {
		return err
	}
	if err := writePlugin(o, work); err != nil {
		return err
	}
	if err := writeImageSBOM(o, programs, digest); err != nil {
		return err
	}
	images := fmt.Sprintf("%s %s@%s\n%s-bundle %s@%s\n", o.tag(), o.image, digest, o.tag(), o.image, bundleDigest)
	if err := o.write("images.txt", []byte(images)); err != nil {
		return err
	}
	return writeChecksums(o.out)
}

// write writes a file of the release.
func (o options) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(o.out, name), content, 0o644)
}

// program is a program of the image for one architecture.
type program struct {
	name, arch string
	content    []byte
}

// buildPrograms builds the programs of the image for all architectures.
func buildPrograms(o options, work string) (programs []program, err error) {
	for _, arch := range o.arches {
		for _, p := range imagePrograms {
			fmt.Printf("building %s for linux/%s\n", p.name, arch)
			file := filepath.Join(work, p.name+"-"+arch)
			if err := gobuild.Build(o.root, p.pkg, o.tag(), gobuild.Platform{OS: "linux", Arch: arch}, file); err != nil {
				return nil, err
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			programs = append(programs, program{p.name, arch, content})
		}
	}
	return programs, nil
}
