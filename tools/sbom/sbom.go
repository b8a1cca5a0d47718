// Package sbom writes in SPDX 2.3 which modules are in programs of Go. It reads that from the programs themselves,
// where Go's linker has noted it.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// Artifact is what a release publishes, an image or an archive, with the programs in it.
type Artifact struct {
	Name     string // such as the image's name or the archive's file name
	PURL     string // the package URL, if the artifact has one
	Purpose  string // SPDX's primary package purpose: CONTAINER or ARCHIVE
	SHA256   string // in hexadecimal digits
	Programs []Program
	Files    []File
}

// File is another file in an artifact, which comes from a module.
type File struct {
	Name   string // as in the artifact
	SHA256 string
	Module debug.Module
}

// Program is a program for one platform.
type Program struct {
	Name     string // as in the artifact
	Platform string
	SHA256   string
	Info     *debug.BuildInfo
}

// Read reads what a program says of itself.
func Read(name, platform string, content []byte) (Program, error) {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return Program{}, fmt.Errorf("read of which modules %s for %s consists: %w", name, platform, err)
	}
	sum := sha256.Sum256(content)
	return Program{Name: name, Platform: platform, SHA256: hex.EncodeToString(sum[:]), Info: info}, nil
}

// Subject is what a document is about.
type Subject struct {
	Name      string
	Version   string    // of the release, such as v1.2.3; the programs do not know it
	Namespace string    // a URI that no other document has
	Source    string    // where the sources are
	License   string    // of the project itself, as in SPDX's list
	Created   time.Time // the commit's
	Artifacts []Artifact
}

// Write writes the document of a subject: it describes the artifacts, which contain programs, which depend on
// modules, and files. The licences of modules are not examined.
func Write(to io.Writer, s Subject) error {
	return spdxjson.Write(document(s), to, spdxjson.Indent(" "))
}

func document(s Subject) *v2_3.Document {
	b := builder{
		subject: s,
		known:   map[common.ElementID]bool{},
		doc: &v2_3.Document{
			SPDXVersion: v2_3.Version, DataLicense: v2_3.DataLicense, SPDXIdentifier: "DOCUMENT",
			DocumentName: s.Name, DocumentNamespace: s.Namespace,
			CreationInfo: &v2_3.CreationInfo{
				Creators: []common.Creator{
					{CreatorType: "Organization", Creator: "PureLB"}, {CreatorType: "Tool", Creator: "purelb-release"},
				},
				Created: s.Created.UTC().Format(time.RFC3339),
			},
		},
	}
	for _, a := range s.Artifacts {
		artifact := b.add(&v2_3.Package{
			PackageName: a.Name, PackageVersion: s.Version, PrimaryPackagePurpose: a.Purpose,
			PackageChecksums: sha256Checksum(a.SHA256), PackageLicenseDeclared: s.License,
		}, "Artifact", a.Name, a.PURL)
		b.relate("DOCUMENT", common.TypeRelationshipDescribe, artifact)
		for _, p := range a.Programs {
			b.relate(artifact, common.TypeRelationshipContains, b.program(p))
		}
		for _, f := range a.Files {
			b.relate(artifact, common.TypeRelationshipContains, b.add(&v2_3.Package{
				PackageName: f.Name, PackageVersion: f.Module.Version, PrimaryPackagePurpose: "FILE",
				PackageChecksums: sha256Checksum(f.SHA256), PackageSourceInfo: "from " + f.Module.Path,
			}, "File", f.Name, purl(f.Module.Path, f.Module.Version)))
		}
	}
	return b.doc
}

// builder collects the packages and relationships of a document.
type builder struct {
	subject Subject
	known   map[common.ElementID]bool
	doc     *v2_3.Document
}

// program adds a program, its modules and Go's standard library, and returns the program's identifier.
func (b *builder) program(p Program) common.ElementID {
	id := b.add(&v2_3.Package{
		PackageName: p.Name, PackageVersion: b.subject.Version, PrimaryPackagePurpose: "APPLICATION",
		PackageSummary:   p.Info.Path + " for " + p.Platform,
		PackageChecksums: sha256Checksum(p.SHA256), PackageLicenseDeclared: b.subject.License,
	}, "Program", p.Name+"-"+p.Platform, purl(p.Info.Main.Path, b.subject.Version))
	modules := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(goVersion(p.Info), "go")}}
	for _, m := range p.Info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, m)
	}
	slices.SortFunc(modules, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	for _, m := range modules {
		described := &v2_3.Package{PackageName: m.Path, PackageVersion: m.Version, PrimaryPackagePurpose: "LIBRARY"}
		if m.Sum != "" {
			described.PackageSourceInfo = "checksum in go.sum: " + m.Sum
		}
		module := b.add(described, "Module", m.Path+"-"+m.Version, purl(m.Path, m.Version))
		b.relate(id, common.TypeRelationshipDependsOn, module)
	}
	return id
}

// add adds a package, unless it is there, with what SPDX wants said of each, and returns its identifier.
func (b *builder) add(p *v2_3.Package, kind, name, purl string) common.ElementID {
	p.PackageSPDXIdentifier = identifier(kind, name)
	if b.known[p.PackageSPDXIdentifier] {
		return p.PackageSPDXIdentifier
	}
	b.known[p.PackageSPDXIdentifier] = true
	const unknown = "NOASSERTION"
	p.PackageDownloadLocation = unknown
	if kind == "Artifact" || kind == "Program" {
		p.PackageDownloadLocation = b.subject.Source
		p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "PureLB"}
	}
	p.PackageLicenseConcluded, p.PackageCopyrightText = unknown, unknown
	if p.PackageLicenseDeclared == "" {
		p.PackageLicenseDeclared = unknown
	}
	if purl != "" {
		p.PackageExternalReferences = []*v2_3.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: "purl", Locator: purl,
		}}
	}
	b.doc.Packages = append(b.doc.Packages, p)
	return p.PackageSPDXIdentifier
}

func (b *builder) relate(from common.ElementID, relationship string, to common.ElementID) {
	b.doc.Relationships = append(b.doc.Relationships, &v2_3.Relationship{
		RefA: common.DocElementID{ElementRefID: from}, RefB: common.DocElementID{ElementRefID: to},
		Relationship: relationship,
	})
}

// notInIdentifiers are the characters that SPDX does not allow in identifiers.
var notInIdentifiers = regexp.MustCompile(`[^a-zA-Z0-9.-]`)

// identifier returns the identifier of an element. Names that differ only in characters that SPDX does not allow
// have different ones.
func identifier(kind, name string) common.ElementID {
	sum := sha256.Sum256([]byte(name))
	return common.ElementID(kind + "-" + notInIdentifiers.ReplaceAllString(name, "-") + "-" + hex.EncodeToString(sum[:4]))
}

// purl returns the package URL of a Go module, whose type has names in lower case.
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// goVersion returns the version of Go, without the experiments that it was built with.
func goVersion(info *debug.BuildInfo) string {
	version, _, _ := strings.Cut(info.GoVersion, " ")
	return version
}

func sha256Checksum(value string) []common.Checksum {
	if value == "" {
		return nil
	}
	return []common.Checksum{{Algorithm: common.SHA256, Value: value}}
}
