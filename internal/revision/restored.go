package revision

import (
	"context"
	"fmt"
	"time"
)

// RestoreDetector is a Runnable of controller-runtime that ends its program when the API
// server's database is restored from a backup. Watches go on from versions that the database
// then has not reached, and deliver nothing until it has, and what the program remembers of
// writes that are no more is wrong. The kubelet starts the program again, which reads everything
// anew.
type RestoreDetector struct {
	// What is read, for the error.
	Subject string
	// Read asks the API server, and no cache, for a version that only a restore makes fall: that
	// of one object that stays, or of any list.
	Read func(ctx context.Context) (version string, err error)
	// Interval is how often it is read, and so how late a restore is noticed at the most if the
	// version has passed what the backup holds. A request may take two of them.
	Interval time.Duration

	seen Watermark
}

// Start looks until ctx ends, or returns ErrRestored. Whether the API server answers, or refuses,
// is not its business.
func (r *RestoreDetector) Start(ctx context.Context) error {
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		if version, err := r.read(ctx); err == nil {
			if err := r.seen.Note(version); err != nil {
				return fmt.Errorf("the program has to begin anew: %s: %w", r.Subject, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// read reads with a timeout: the next answer may come from another API server.
func (r *RestoreDetector) read(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*r.Interval)
	defer cancel()
	return r.Read(ctx)
}

// NeedLeaderElection is false: the caches of a standby replica go stale, too.
func (r *RestoreDetector) NeedLeaderElection() bool { return false }
