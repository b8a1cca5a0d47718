package speaker

import (
	"os"
	"path/filepath"

	"github.com/purelb/purelb-operator/internal/tcpmd5"
)

// passwordReader returns a function that reads the password in a file of a folder, if it is there.
// The kubelet replaces all files of the folder at once when the Secret changes.
func passwordReader(dir string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		if name != filepath.Base(name) || name == "." || name == ".." {
			return "", false
		}
		content, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // the name has no folder
		if err != nil {
			return "", false
		}
		password, problem := tcpmd5.ParsePassword(content)
		return password, problem == ""
	}
}
