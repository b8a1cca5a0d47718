package controllers

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/internal/revision"
)

// EndWhenRestored ends the manager when the API server's database is restored from a backup.
// Watches go on from versions that the database then has not reached, and deliver nothing until
// it has, and what the manager remembers of writes that are no more is wrong. The kubelet starts
// the manager again, which reads everything anew.
//
// EndWhenRestored reads the Lease of the leader every few seconds. The leader writes it twice a
// second, and its version falls with a restore. Each replica runs it.
type EndWhenRestored struct {
	// Reader reads from the API server, not from a cache.
	Reader client.Reader
	Lease  client.ObjectKey

	seen revision.Watermark
}

// Start looks until ctx ends, or returns revision.ErrRestored. Whether the API server answers is
// not its business, nor whether there is a Lease.
func (r *EndWhenRestored) Start(ctx context.Context) error {
	tick := time.NewTicker(restoreInterval)
	defer tick.Stop()
	for {
		lease := &coordinationv1.Lease{}
		if err := r.get(ctx, lease); err == nil {
			if err := r.seen.Note(lease.ResourceVersion); err != nil {
				return fmt.Errorf("the manager has to begin anew: Lease %s: %w", r.Lease.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// get reads the Lease, with a timeout: the next answer may come from another API server.
func (r *EndWhenRestored) get(ctx context.Context, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, 2*restoreInterval)
	defer cancel()
	return r.Reader.Get(ctx, r.Lease, lease)
}

// NeedLeaderElection is false: the caches of a standby replica go stale, too.
func (r *EndWhenRestored) NeedLeaderElection() bool { return false }
