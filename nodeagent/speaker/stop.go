package speaker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/purelb/purelb-operator/internal/tasks"
)

const (
	// shutdownUnit is a unit of systemd that is active from the node's boot until its shutdown, and that
	// nothing else stops: it lets users log in, and stops that.
	shutdownUnit = "systemd-user-sessions.service"
	// shutdownPatience is how long a speaker that is to end waits for signs that the node shuts down. systemd
	// stops pods and shutdownUnit at the same time, and shutdownUnit after the programs of users. The sessions
	// are up meanwhile.
	shutdownPatience = 2 * time.Second
	// shutdownInterval is how often the speaker looks for them.
	shutdownInterval = 50 * time.Millisecond
)

// stopInputs is everything that reasonToDropRoutes decides from.
type stopInputs struct {
	// isDraining is that traffic is to leave the node, and isDeleted that the node's NodeRouting was deleted.
	isDraining, isDeleted bool
	// isShutdown is that the node shuts down.
	isShutdown bool
}

// reasonToDropRoutes returns why neighbours are to drop the routes at once when the speaker ends, in words; it is empty
// if they are to keep them, because another speaker follows on a node that forwards meanwhile.
func reasonToDropRoutes(in stopInputs) (whyRoutesGo string) {
	switch {
	case in.isDeleted:
		return "the node has no neighbours any more"
	case in.isDraining:
		return "traffic is to leave the node"
	case in.isShutdown:
		return "the node shuts down"
	}
	return ""
}

// unitWatch tells whether systemd has stopped a unit, by the link that systemd keeps for each active service
// in a folder. The link is not there on nodes without systemd, or without the unit: then nothing is known.
type unitWatch struct {
	// dir is the folder, and wasActive that the link was there once.
	dir       string
	wasActive bool
}

// observe looks at the unit, and notes that it is active. It reports whether the unit was active once and is not any
// more.
func (w *unitWatch) observe() (hasStopped bool) {
	if w.dir == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(w.dir, "invocation:"+shutdownUnit))
	w.wasActive = w.wasActive || err == nil
	return w.wasActive && errors.Is(err, fs.ErrNotExist)
}

// waitForShutdown waits until the node is known to shut down. It returns false if that is not so after
// shutdownPatience, or at once if it cannot be known.
func (w *unitWatch) waitForShutdown(ctx context.Context, t tasks.Runner) bool {
	ctx, cancel := context.WithTimeout(ctx, shutdownPatience)
	defer cancel()
	for !w.observe() {
		if !w.wasActive || t.Wait(ctx, shutdownInterval) == tasks.Ended {
			return false
		}
	}
	return true
}
