package speaker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/purelb/purelb-operator/nodeagent/internal/file"
)

// Machine is what a speaker runs on.
type Machine interface {
	// Lock waits until no other speaker of the machine runs, and has others wait until the process ends.
	Lock(ctx context.Context) error
	// BootID returns what tells this boot of the machine apart from others.
	BootID() (string, error)
	// ReadWithin reads a file. It returns fs.ErrNotExist if there is none, and fails if reading takes longer
	// than the timeout.
	ReadWithin(path string, timeout time.Duration) ([]byte, error)
	// Replace replaces a file's text. If the machine fails, the new text may be lost.
	Replace(path string, text []byte) error
}

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// machine is the node, with a folder for the lock.
type machine struct{ stateDir string }

func (m machine) Lock(ctx context.Context) error { return takeLock(ctx, m.stateDir) }

func (machine) BootID() (string, error) {
	text, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("find out which boot of the node this is: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (machine) ReadWithin(path string, timeout time.Duration) ([]byte, error) {
	return file.ReadWithin(path, timeout)
}

func (machine) Replace(path string, text []byte) error { return file.Replace(path, text) }
