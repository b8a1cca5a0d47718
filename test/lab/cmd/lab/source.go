package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// findSource finds the Go module of the lab: the current folder, one above it,
// or test/lab in one of these.
func findSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		for _, candidate := range []string{dir, filepath.Join(dir, "test", "lab")} {
			text, err := os.ReadFile(filepath.Join(candidate, "go.mod"))
			if err == nil && bytes.HasPrefix(text, []byte("module github.com/purelb/purelb-operator/test/lab\n")) {
				return candidate, nil
			}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the lab's source: not in or above the current folder; use --source")
		}
		dir = parent
	}
}
