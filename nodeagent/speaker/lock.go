package speaker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockFile     = "speaker.lock"
	lockInterval = 50 * time.Millisecond
)

// takeLock waits until no other speaker of the node runs. The kernel gives up the lock when the
// process ends, however it ends.
func takeLock(ctx context.Context, dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock: %w", err)
	}
	for {
		err := flock(lock)
		switch {
		case err == nil:
			return nil // the file stays open: it is the lock
		case !errors.Is(err, unix.EWOULDBLOCK):
			return errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), lock.Close())
		case <-time.After(lockInterval):
		}
	}
}

// flock locks a file, or fails with EWOULDBLOCK.
func flock(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a file descriptor
}
