package speaker

import (
	"os"
	"path/filepath"
	"strings"
)

// maxPassword is the longest password of TCP MD5 in Linux, in bytes.
const maxPassword = 80

// passwordIn returns a function that reads the password in a file of a folder, if it is there.
// The kubelet replaces all files of the folder at once when the Secret changes.
func passwordIn(dir string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		if name != filepath.Base(name) || name == "." || name == ".." {
			return "", false
		}
		text, err := os.ReadFile(filepath.Join(dir, name)) //nolint:gosec // the name has no folder
		if err != nil {
			return "", false
		}
		password := strings.TrimRight(string(text), "\r\n")
		return password, password != "" && len(password) <= maxPassword
	}
}
