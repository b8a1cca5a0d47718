// Package crds finds the CRDs of this project, for tests.
package crds

import (
	"fmt"
	"os"
	"path/filepath"
)

// Find returns the folder of the CRDs. Tests run in their package's folder, so it is below that
// folder or one above it. Compiled tests do not know where their source was.
func Find() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; folder = filepath.Dir(folder) {
		found := filepath.Join(folder, "config", "crd", "bases")
		if _, err := os.Stat(found); err == nil {
			return found, nil
		} else if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("find the CRDs above the working directory: %w", err)
		}
	}
}
