// Package files writes what generators generate.
package files

import (
	"fmt"
	"os"
	"path/filepath"
)

// Replace removes a folder below root, and writes files, which are named relative to root, with
// slashes.
func Replace(root, folder string, files map[string][]byte) error {
	if err := os.RemoveAll(filepath.Join(root, filepath.FromSlash(folder))); err != nil {
		return fmt.Errorf("remove what was generated before: %w", err)
	}
	for name, content := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
