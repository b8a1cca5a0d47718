// Package docs_test holds the pages of this folder against the code: what they list
// exists, and what exists is listed.
package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = ".."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func eachCodeFile(t *testing.T, do func(path, text string)) {
	t.Helper()
	isCode := func(path string) bool {
		first, _, _ := strings.Cut(strings.TrimPrefix(filepath.ToSlash(path), root+"/"), "/")
		return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && slices.Contains(codeFolders, first)
	}
	eachFile(t, isCode, do)
}

// eachFile reads those of the repository's files that are wanted.
func eachFile(t *testing.T, wanted func(path string) bool, do func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case "bin", "dist", ".git", "testdata": // not of this version, or samples
				return filepath.SkipDir
			}
			return nil
		}
		if !wanted(path) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			do(path, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
