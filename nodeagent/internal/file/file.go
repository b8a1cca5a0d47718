// Package file reads and writes whole files.
package file

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// ReadWithin reads a file. It returns os.ErrDeadlineExceeded if reading takes longer than the
// timeout, because a disk may hang. The goroutine that reads cannot be ended then, and stays
// until the disk answers.
func ReadWithin(path string, timeout time.Duration) ([]byte, error) {
	type content struct {
		text []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		text, err := os.ReadFile(path)
		read <- content{text, err}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case c := <-read:
		return c.text, c.err
	case <-timer.C:
		return nil, fmt.Errorf("read %s: %w", path, os.ErrDeadlineExceeded)
	}
}

// Replace replaces a file's text: a reader finds the old text or the new one. Only one
// goroutine at a time may replace a file. If the machine fails, the new text may be lost; see
// ReplaceDurably.
func Replace(path string, text []byte) error { return replace(path, text, false) }

// ReplaceDurably does what Replace does, and returns when the text is on the disk.
func ReplaceDurably(path string, text []byte) error { return replace(path, text, true) }

func replace(path string, text []byte, durable bool) error {
	// The name is always the same, so that a file that a killed process has left is replaced.
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
