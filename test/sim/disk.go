package sim

import (
	"context"
	"io/fs"
	"slices"
	"time"
)

// disk is the disk of a node as its agent sees it.
type disk struct{ agent *agent }

// How long a write takes.
const minWrite, maxWrite = 100 * time.Microsecond, 20 * time.Millisecond

func (d disk) ReadWithin(path string, _ time.Duration) ([]byte, error) {
	text, exists := d.agent.node.files[path]
	if !exists {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(text), nil
}

func (d disk) ReplaceDurably(path string, text []byte) error {
	a := d.agent
	a.Wait(context.Background(), a.world.Between(minWrite, maxWrite))
	if a.isKilled {
		return errKilled
	}
	a.node.files[path] = text
	return nil
}
