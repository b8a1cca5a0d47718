package gitops

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

var (
	// trustTest is the name of a test that plays an attacker or a fault.
	trustTest = regexp.MustCompile(`^Test(?:Attack|Fault)\w+$`)
	// trustMention is the name of a test, as the page has it.
	trustMention = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	// trustQuote is how the comment of a test names the row that the test shows.
	trustQuote = regexp.MustCompile(`"([^"]*)" of docs/trust\.md`)
	// trustRow is a row of a table: its first cell, and the one that names the tests.
	trustRow   = regexp.MustCompile(`(?m)^\| (.+?) \| .+ \| (.+?) \|$`)
	trustTable = regexp.MustCompile(`(?m)^\|`)
	// trustHead is the lines of a table before its rows.
	trustHead    = regexp.MustCompile(`(?m)^\| .+ \| shown by \|\n\|---\|---\|---\|$`)
	markdownLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestTrust holds the page on trust against the code: it names each test that plays an
// attacker or a fault, and no test that does not exist.
func TestTrust(t *testing.T) {
	g := NewWithT(t)
	comments, onPage := testComments(g), map[string]bool{}
	for _, match := range trustMention.FindAllStringSubmatch(trustPage(g), -1) {
		onPage[match[1]] = true
	}
	g.Expect(len(onPage)).To(BeNumerically(">", 50))
	for name := range onPage {
		if _, exists := comments[name]; !exists {
			t.Errorf("docs/trust.md names %s, and there is no such test", name)
		}
	}
	for name := range comments {
		if trustTest.MatchString(name) && !onPage[name] {
			t.Errorf("docs/trust.md does not name %s", name)
		}
	}
}

// TestTrustRows compares the rows of the page with the comments of the tests that they name: one of
// them says that it shows the row, and what a comment quotes is a row that names the test.
func TestTrustRows(t *testing.T) {
	g := NewWithT(t)
	comments, testsOf := testComments(g), trustRows(g)
	for name, quotes := range comments {
		for _, quote := range quotes {
			if !slices.Contains(testsOf[quote], name) {
				t.Errorf("the comment of %s quotes %q of docs/trust.md: no row there begins so and names the test", name, quote)
			}
		}
	}
	for row, tests := range testsOf {
		if !slices.ContainsFunc(tests, func(name string) bool { return slices.Contains(comments[name], row) }) {
			t.Errorf("no comment of %s says what it shows: %q of docs/trust.md", strings.Join(tests, ", "), row)
		}
	}
}

// trustRows returns the tests that each row of the page names, by the text of the row's first cell.
func trustRows(g Gomega) map[string][]string {
	page := trustHead.ReplaceAllString(trustPage(g), "")
	rows := map[string][]string{}
	matches := trustRow.FindAllStringSubmatch(page, -1)
	g.Expect(matches).To(HaveLen(len(trustTable.FindAllString(page, -1))), "each row has three cells")
	for _, match := range matches {
		first := oneLine(markdownLink.ReplaceAllString(match[1], "$1"))
		_, isKnown := rows[first]
		g.Expect(isKnown).To(BeFalse(), "two rows begin with %q", first)
		g.Expect(first).NotTo(ContainSubstring(`"`), "a comment cannot quote the row")
		var tests []string
		for _, mention := range trustMention.FindAllStringSubmatch(match[2], -1) {
			tests = append(tests, mention[1])
		}
		rows[first] = tests
	}
	g.Expect(len(rows)).To(BeNumerically(">", 50))
	return rows
}

func trustPage(g Gomega) string {
	page, err := os.ReadFile(filepath.Join(root, "docs", "trust.md"))
	g.Expect(err).NotTo(HaveOccurred())
	return string(page)
}

// testComments returns the rows that the comment of each test quotes, by the name of the test. Tests
// of one name, in several packages, count as one.
func testComments(g Gomega) map[string][]string {
	quotes := map[string][]string{}
	g.Expect(filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "dist" || entry.Name() == ".git") {
			return filepath.SkipDir // copies of other versions
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read the tests: %w", err)
		}
		for _, declaration := range file.Decls {
			function, isFunction := declaration.(*ast.FuncDecl)
			if !isFunction || function.Recv != nil || !strings.HasPrefix(function.Name.Name, "Test") {
				continue
			}
			name := function.Name.Name
			all := quotes[name]
			for _, match := range trustQuote.FindAllStringSubmatch(oneLine(function.Doc.Text()), -1) {
				all = append(all, match[1])
			}
			quotes[name] = all
		}
		return nil
	})).To(Succeed())
	return quotes
}

// oneLine joins lines by single spaces.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
