package speaker

import (
	"context"
	"errors"
	"fmt"
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
	path := filepath.Join(dir, lockFile)
	// The descriptor stays open: it is the lock. An os.File would be closed with the next garbage collection.
	lock, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock %s: %w", path, err)
	}
	for {
		err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return errors.Join(fmt.Errorf("lock %s: %w", path, err), unix.Close(lock))
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), unix.Close(lock))
		case <-time.After(lockInterval):
		}
	}
}
