package controllers

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// AddressExplanations hands on why addresses are not announced, or not as they are to be: PlacementReconciler sets
// the explanations, and AnnouncedReconciler reports them on Services. The process loses them when it ends; the first
// placement of the next leader sets all of them. The zero value has none.
type AddressExplanations struct {
	mu        sync.Mutex
	byAddress map[netip.Addr]placement.Explanation
	// since is when the first explanations were set.
	since time.Time
	// queue has each Service whose explanations have changed once, until AnnouncedReconciler
	// has reported them. It is nil until that begins, which then looks at all Services.
	queue atomic.Pointer[queue]
}

// ExplanationFor returns why an address is not announced, or not as it is to be; if there is something to say.
func (r *AddressExplanations) ExplanationFor(a netip.Addr) (placement.Explanation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, ok := r.byAddress[a]
	return why, ok
}

// AreKnown reports whether this process has placed addresses for so long that it knows which agents are silent.
func (r *AddressExplanations) AreKnown(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.since.IsZero() && now.Sub(r.since) >= silenceWait
}

// set replaces all explanations, and enqueues each Service for which they change.
func (r *AddressExplanations) set(
	explanations map[netip.Addr]placement.Explanation, addresses []placement.Address, now time.Time,
) {
	r.mu.Lock()
	before := r.byAddress
	r.byAddress = explanations
	if r.since.IsZero() {
		r.since = now
	}
	r.mu.Unlock()
	q := r.queue.Load()
	if q == nil {
		return
	}
	for _, a := range addresses {
		if before[a.Addr] != explanations[a.Addr] {
			enqueueServices(*q, 0, a.Services)
		}
	}
}
