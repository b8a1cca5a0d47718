package controllers

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/internal/pacing"
)

// restoreBackoffs say when the allocator may write the addresses of a Service again after
// another controller has overwritten them. Two controllers that both restored at once
// would write for ever, as fast as they can.
//
// The process loses them when it ends: then restoring begins at once again. The zero value
// is ready for use.
type restoreBackoffs struct {
	mu sync.Mutex
	// services has an entry for each Service that was restored lately.
	services map[client.ObjectKey]*restoreBackoff
	// pruneAt is when entries that have expired are removed next.
	pruneAt time.Time
}

// restoreBackoff is of one Service, whose addresses may be restored from notBefore on.
type restoreBackoff struct {
	pacing.Backoff
	notBefore time.Time
}

// isExpired reports whether nobody has overwritten the Service for so long that the next
// restore is a first one again.
func (b *restoreBackoff) isExpired(now time.Time) bool {
	return now.Sub(b.notBefore) > restoreMemory
}

// allowRestore returns 0 if the addresses of a Service may be restored now, and counts that as a
// restore. Otherwise it returns how long to wait. The wait doubles with each restore.
func (r *restoreBackoffs) allowRestore(key client.ObjectKey, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune(now)
	b := r.services[key]
	if b != nil {
		if wait := b.notBefore.Sub(now); wait > 0 {
			return wait
		}
	}
	if b == nil || b.isExpired(now) {
		b = &restoreBackoff{Backoff: pacing.Backoff{Min: restorePauseMin, Max: restorePauseMax}}
	}
	b.notBefore = now.Add(b.Next())
	if r.services == nil {
		r.services = map[client.ObjectKey]*restoreBackoff{}
	}
	r.services[key] = b
	return 0
}

// prune removes the entries that have expired, if it is time to look.
func (r *restoreBackoffs) prune(now time.Time) {
	if now.Before(r.pruneAt) {
		return
	}
	r.pruneAt = now.Add(restoreMemory)
	for key, b := range r.services {
		if b.isExpired(now) {
			delete(r.services, key)
		}
	}
}

// forget drops what is known of a Service that is deleted.
func (r *restoreBackoffs) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, key)
}
