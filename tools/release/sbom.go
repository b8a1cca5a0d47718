package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/purelb/purelb-operator/tools/authorities"
	"github.com/purelb/purelb-operator/tools/sbom"
)

// writeImageSBOM writes what is in the image.
func writeImageSBOM(o options, programs []program, digest string) error {
	a := sbom.Artifact{
		Name: o.image, Purpose: "CONTAINER", SHA256: strings.TrimPrefix(digest, "sha256:"), PURL: imagePURL(o.image, digest),
	}
	for _, p := range programs {
		found, err := sbom.Read(p.name, "linux/"+p.arch, p.content)
		if err != nil {
			return err
		}
		a.Programs = append(a.Programs, found)
	}
	roots, err := moduleOf(authorities.Module)
	if err != nil {
		return err
	}
	a.Files = []sbom.File{{Name: authorities.File, SHA256: sum(authorities.PEM()), Module: roots}}
	return writeSBOM(o, "purelb-image", []sbom.Artifact{a})
}

// moduleOf returns the version of a module that this command is built with.
func moduleOf(path string) (debug.Module, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return *m, nil
			}
		}
	}
	return debug.Module{}, fmt.Errorf("this command does not know which version of %s it has", path)
}

// imagePURL returns the package URL of an image.
func imagePURL(image, digest string) string {
	name := image[strings.LastIndex(image, "/")+1:]
	return fmt.Sprintf("pkg:oci/%s@%s?repository_url=%s", name, strings.ReplaceAll(digest, ":", "%3A"), image)
}

// writeSBOM writes a document about artifacts, whose checksums distinguish its namespace from those of others.
func writeSBOM(o options, name string, artifacts []sbom.Artifact) error {
	var all strings.Builder
	for _, a := range artifacts {
		all.WriteString(a.SHA256)
	}
	var out bytes.Buffer
	if err := sbom.Write(&out, sbom.Subject{
		Name: name + "-" + o.tag(), Version: o.tag(), Source: source, License: license, Created: o.created,
		Artifacts: artifacts,
		Namespace: fmt.Sprintf("%s/spdx/%s-%s-%s", source, name, o.tag(), sum([]byte(all.String()))),
	}); err != nil {
		return err
	}
	return o.write(name+".spdx.json", out.Bytes())
}

// sum returns a SHA-256 sum in hexadecimal digits.
func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}
