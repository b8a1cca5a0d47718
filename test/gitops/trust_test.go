package gitops

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var (
	trustTest    = regexp.MustCompile(`(?m)^func (Test(?:Attack|Fault)\w+)\(`)
	trustMention = regexp.MustCompile("`(Test(?:Attack|Fault)\\w+)`")
)

// TestTrust holds the page on trust against the code: it names each test that plays an
// attacker or a fault, and no test that does not exist.
func TestTrust(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "trust.md"))
	g.Expect(err).NotTo(HaveOccurred())
	inCode := map[string]bool{}
	g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "dist" || entry.Name() == ".git") {
			return filepath.SkipDir // copies of other versions
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range trustTest.FindAllStringSubmatch(string(text), -1) {
			inCode[match[1]] = true
		}
		return err
	})).To(Succeed())
	onPage := map[string]bool{}
	for _, match := range trustMention.FindAllStringSubmatch(string(page), -1) {
		onPage[match[1]] = true
	}
	g.Expect(len(onPage)).To(BeNumerically(">", 50))
	g.Expect(onPage).To(Equal(inCode))
}
