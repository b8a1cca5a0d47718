package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const checksumsFile = "SHA256SUMS"

// writeChecksums writes the checksums of all files of a folder, as sha256sum checks them. Folders in it are left out:
// the names of an OCI layout's files are their checksums.
func writeChecksums(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if e.IsDir() || e.Name() == checksumsFile {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum(content), e.Name())
	}
	return os.WriteFile(filepath.Join(folder, checksumsFile), []byte(sums.String()), 0o644)
}
