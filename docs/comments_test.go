package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// word matches what may be an identifier.
	word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	// marker matches a line for a generator.
	marker = regexp.MustCompile(`(?m)^\s*\+.*$`)
	// isCompound matches a word with a capital inside, as identifiers have it.
	isCompound = regexp.MustCompile(`[a-z][A-Z]`)
)

// compoundNames are words with a capital inside that comments may use and no Go code has.
var compoundNames = map[string]bool{
	"EtherType": true, "NotFound": true, "matchCondition": true, "messageExpression": true,
}

// TestCommentsNameWhatExists finds comments of the product that name functions, types, variables or fields that the
// code does not have: each word with a capital inside is an identifier, or a word of a string, of some Go file.
func TestCommentsNameWhatExists(t *testing.T) {
	known, used := maps.Clone(compoundNames), map[string][]string{}
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "dist"):
			return filepath.SkipDir // dist is what commands have made
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				known[n.Name] = true
			case *ast.BasicLit:
				for _, w := range word.FindAllString(n.Value, -1) {
					known[w] = true
				}
			}
			return true
		})
		if isOfProduct(path) {
			for _, comment := range file.Comments {
				at := files.Position(comment.Pos()).String()
				for _, w := range word.FindAllString(marker.ReplaceAllString(comment.Text(), ""), -1) {
					if isCompound.MatchString(w) {
						used[w] = append(used[w], at)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(used) == 0 {
		t.Fatal("no comment has such a word")
	}
	for _, w := range slices.Sorted(maps.Keys(used)) {
		if !known[w] && !known[strings.TrimSuffix(w, "s")] && !known[strings.TrimSuffix(w, "es")] {
			t.Errorf("comments name %s, which no code has: %s", w, strings.Join(used[w], ", "))
		}
	}
}

// isOfProduct reports whether a Go file is part of the product.
func isOfProduct(path string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, root+"/"), "/")
	return top != "test" && top != "tools" && top != "docs" && !strings.HasSuffix(path, "_test.go")
}
