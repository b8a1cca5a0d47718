// Package file writes files as a whole.
package file

import (
	"errors"
	"fmt"
	"os"
)

// Replace writes a file, which only one goroutine at a time may do, so that whoever reads it finds the old text or the new one.
// The new one may be lost with the machine; see ReplaceDurably.
func Replace(path string, text []byte) error { return replace(path, text, false) }

// ReplaceDurably is Replace, and returns when the text is on the disk.
func ReplaceDurably(path string, text []byte) error { return replace(path, text, true) }

func replace(path string, text []byte, durable bool) error {
	// Always the same name: what a process that was killed left is replaced.
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(text)
	if err == nil && durable {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
