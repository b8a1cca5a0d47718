package controllers

import (
	"context"
	"net/netip"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// UnplacedReasons hands on why addresses have no node: PlacementReconciler sets the
// reasons, and AnnouncedReconciler reports them on Services. The process loses them when it
// ends; the first placement of the next leader sets all of them. The zero value has none.
type UnplacedReasons struct {
	mu       sync.Mutex
	unplaced map[netip.Addr]placement.Explanation
	// queue has each Service whose reasons have changed once, until AnnouncedReconciler
	// has reported them. It is nil until that begins, which then looks at all Services.
	queue queue
}

// source enqueues the Services for which reasons change.
func (r *UnplacedReasons) source() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = q
		return nil
	})
}

// ReasonFor returns why an address has no node, if it has none.
func (r *UnplacedReasons) ReasonFor(a netip.Addr) (placement.Explanation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, ok := r.unplaced[a]
	return why, ok
}

// set replaces all reasons, and enqueues each Service for which they change.
func (r *UnplacedReasons) set(unplaced map[netip.Addr]placement.Explanation, addresses []placement.Address) {
	r.mu.Lock()
	before, q := r.unplaced, r.queue
	r.unplaced = unplaced
	r.mu.Unlock()
	if q == nil {
		return
	}
	for _, a := range addresses {
		if before[a.Addr] != unplaced[a.Addr] {
			enqueueServices(q, 0, a.Services)
		}
	}
}
