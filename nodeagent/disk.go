package nodeagent

import (
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

// Disk keeps files.
type Disk interface {
	// ReadWithin reads a file. It returns fs.ErrNotExist if there is none, and fails if reading takes longer
	// than the timeout.
	ReadWithin(path string, timeout time.Duration) ([]byte, error)
	// ReplaceDurably replaces a file's text, and returns when the text is on the disk.
	ReplaceDurably(path string, text []byte) error
}

// nodeDisk has the files of the node.
type nodeDisk struct{}

func (nodeDisk) ReadWithin(path string, timeout time.Duration) ([]byte, error) {
	return file.ReadWithin(path, timeout)
}

func (nodeDisk) ReplaceDurably(path string, text []byte) error {
	return file.ReplaceDurably(path, text)
}
