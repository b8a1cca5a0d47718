package sim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Disk is the disk of a node.
type Disk struct {
	files map[string]file
	// Hangs means that nothing is read or written, and Refuses that nothing is written.
	Hangs, Refuses bool
}

// file is a file with its text, and the one that it had before it was written.
type file struct {
	text, before []byte
	writtenAt    time.Time
}

// forgetAfter is how long a disk that says so too early takes until what was written outlives a loss of power.
const forgetAfter = time.Second

// loseLast makes the disk lose what was written last, although it has said that it has it.
func (d *Disk) loseLast() {
	for path, f := range d.files {
		switch {
		case time.Since(f.writtenAt) >= forgetAfter:
		case f.before == nil:
			delete(d.files, path)
		default:
			d.files[path] = file{text: f.before}
		}
	}
}

// disk is the disk of a node as a program there sees it.
type disk struct {
	*process
	node *Node
}

// How long a write takes.
const minWrite, maxWrite = 100 * time.Microsecond, 20 * time.Millisecond

var errDisk = errors.New("input/output error")

// retryDisk is how often it is looked whether a disk that hung goes on.
const retryDisk = 50 * time.Millisecond

func (d disk) ReadWithin(path string, timeout time.Duration) ([]byte, error) {
	for end := time.Now().Add(timeout); d.node.Disk.Hangs; {
		if time.Now().After(end) || d.isKilled {
			return nil, os.ErrDeadlineExceeded
		}
		d.Wait(context.Background(), retryDisk)
	}
	f, exists := d.node.Disk.files[path]
	if !exists {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(f.text), nil
}

func (d disk) ReplaceDurably(path string, text []byte) error {
	d.Wait(context.Background(), d.world.Between(minWrite, maxWrite))
	for d.node.Disk.Hangs && !d.isKilled {
		d.Wait(context.Background(), retryDisk)
	}
	switch {
	case d.isKilled:
		return errKilled
	case d.node.Disk.Refuses:
		return errDisk
	}
	d.node.Disk.files[path] = file{text, d.node.Disk.files[path].text, time.Now()}
	return nil
}
