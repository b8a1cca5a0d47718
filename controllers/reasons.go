package controllers

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// Reasons passes on, from placement to what Services say of themselves, why
// addresses have no node. It is made anew by each placement.
type Reasons struct {
	mu       sync.Mutex
	unplaced map[netip.Addr]placement.Why
	changes  chan event.GenericEvent
}

// NewReasons makes an empty Reasons.
func NewReasons() *Reasons { return &Reasons{changes: make(chan event.GenericEvent, 1024)} }

// Of returns why an address has no node, if it has none.
func (r *Reasons) Of(a netip.Addr) (placement.Why, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, ok := r.unplaced[a]
	return why, ok
}

// set replaces the reasons, and signals the Services for which they change.
func (r *Reasons) set(unplaced map[netip.Addr]placement.Why, addresses []placement.Address) {
	r.mu.Lock()
	before := r.unplaced
	r.unplaced = unplaced
	r.mu.Unlock()
	for _, a := range addresses {
		if before[a.Addr] == unplaced[a.Addr] {
			continue
		}
		for _, key := range a.Services {
			svc := &corev1.Service{}
			svc.Namespace, svc.Name = parseKey(key).Namespace, parseKey(key).Name
			select {
			case r.changes <- event.GenericEvent{Object: svc}:
			default: // it is told with the next change of its Announcements
			}
		}
	}
}
