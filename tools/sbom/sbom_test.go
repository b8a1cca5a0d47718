package sbom

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"
)

func subject() Subject {
	linux := &debug.BuildInfo{
		GoVersion: "go1.26.8 X:nothing", Path: "example.com/product/cmd", Main: debug.Module{Path: "example.com/product"},
		Deps: []*debug.Module{
			{Path: "github.com/Some/Module", Version: "v1.0.0+incompatible", Sum: "h1:abc="},
			{Path: "example.com/a_b", Version: "v1.0.0"},
			{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v2.0.0"}},
		},
	}
	windows := *linux
	windows.Deps = append(slices.Clone(linux.Deps), &debug.Module{Path: "example.com/a-b", Version: "v1.0.0"})
	return Subject{
		Name: "product.tar.gz", Version: "v1.2.3", Namespace: "https://example.com/spdx/product-v1.2.3",
		Source: "https://example.com/product", License: "Apache-2.0", Created: time.Unix(1_700_000_000, 0),
		Artifacts: []Artifact{
			{
				Name: "linux.tar.gz", Purpose: "ARCHIVE", SHA256: strings.Repeat("0", 64), PURL: "pkg:oci/product",
				Programs: []Program{
					{Name: "product", Platform: "linux/amd64", SHA256: strings.Repeat("1", 64), Info: linux},
					{Name: "product", Platform: "linux/arm64", SHA256: strings.Repeat("2", 64), Info: linux},
				},
				Files: []File{{Name: "etc/roots", Module: debug.Module{Path: "example.com/roots", Version: "v0.1.0"}}},
			},
			{
				Name: "windows.tar.gz", Purpose: "ARCHIVE", SHA256: strings.Repeat("3", 64),
				Programs: []Program{
					{Name: "product", Platform: "windows/amd64", SHA256: strings.Repeat("4", 64), Info: &windows},
				},
			},
		},
	}
}

// written returns a document as the SPDX library reads it.
func written(t *testing.T, s Subject) *spdx.Document {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, s); err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	return doc
}

// TestDocument checks what SPDX 2.3 demands of each document and the library does not check, and who depends on what.
func TestDocument(t *testing.T) {
	doc := written(t, subject())
	if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.SPDXIdentifier != "DOCUMENT" ||
		doc.CreationInfo.Created != "2023-11-14T22:13:20Z" || doc.DocumentNamespace != subject().Namespace {
		t.Errorf("the document begins with %+v, %+v", doc, doc.CreationInfo)
	}
	allowed, names := regexp.MustCompile(`^[a-zA-Z0-9.-]+$`), map[string]string{}
	for _, p := range doc.Packages {
		id := string(p.PackageSPDXIdentifier)
		if names[id] != "" || !allowed.MatchString(id) || p.PackageName == "" || p.PackageDownloadLocation == "" ||
			p.PackageLicenseConcluded == "" || p.PackageLicenseDeclared == "" ||
			p.FilesAnalyzed || !p.IsFilesAnalyzedTagPresent {
			t.Errorf("package %+v", p)
		}
		names[id] = p.PackageName
		for _, r := range p.PackageExternalReferences {
			names[id] += " " + r.Locator
		}
	}
	got := map[string][]string{}
	for _, r := range doc.Relationships {
		from, _, _ := strings.Cut(names[string(r.RefA.ElementRefID)], " ")
		got[from+" "+r.Relationship] = append(got[from+" "+r.Relationship], names[string(r.RefB.ElementRefID)])
	}
	modules := []string{
		"example.com/a_b pkg:golang/example.com/a_b@v1.0.0", "example.com/new pkg:golang/example.com/new@v2.0.0",
		"github.com/Some/Module pkg:golang/github.com/some/module@v1.0.0%2Bincompatible", "stdlib pkg:golang/stdlib@1.26.8",
	}
	ofWindows := append([]string{"example.com/a-b pkg:golang/example.com/a-b@v1.0.0"}, modules...)
	const program = "product pkg:golang/example.com/product@v1.2.3"
	for key, want := range map[string][]string{
		" DESCRIBES":              {"linux.tar.gz pkg:oci/product", "windows.tar.gz"},
		"linux.tar.gz CONTAINS":   {program, program, "etc/roots pkg:golang/example.com/roots@v0.1.0"},
		"windows.tar.gz CONTAINS": {program},
		"product DEPENDS_ON":      slices.Concat(modules, modules, ofWindows),
	} {
		if !slices.Equal(got[key], want) {
			t.Errorf("%s: got %q, not %q", key, got[key], want)
		}
	}
	if len(doc.Packages) != 2+3+5+1 {
		t.Errorf("there are %d packages", len(doc.Packages))
	}
}

func TestWriteIsReproducible(t *testing.T) {
	var first, second bytes.Buffer
	s := subject()
	s.Created = s.Created.In(time.FixedZone("", 3600))
	if err := Write(&first, subject()); err != nil {
		t.Fatal(err)
	}
	if err := Write(&second, s); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Error("two documents of the same programs differ")
	}
}

// TestRead reads the test itself.
func TestRead(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Read("test", "linux/amd64", content)
	if err != nil {
		t.Fatal(err)
	}
	if p.Info.GoVersion != runtime.Version() || p.SHA256 != fmt.Sprintf("%x", sha256.Sum256(content)) {
		t.Errorf("got %+v", p)
	}
	if _, err := Read("text", "linux/amd64", []byte("text")); err == nil {
		t.Error("a text is a program")
	}
}
