package controllers

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// UnplacedReasons hands on why addresses have no node: PlacementReconciler sets the
// reasons, and AnnouncedReconciler reports them on Services. The process loses them when it
// ends; the first placement of the next leader sets all of them.
type UnplacedReasons struct {
	mu       sync.Mutex
	unplaced map[netip.Addr]placement.Explanation
	changes  chan event.GenericEvent
}

// NewUnplacedReasons makes an empty UnplacedReasons.
func NewUnplacedReasons() *UnplacedReasons {
	return &UnplacedReasons{changes: make(chan event.GenericEvent, 1024)}
}

// ReasonFor returns why an address has no node, if it has none.
func (r *UnplacedReasons) ReasonFor(a netip.Addr) (placement.Explanation, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, ok := r.unplaced[a]
	return why, ok
}

// set replaces all reasons, and sends an event for each Service for which they change.
func (r *UnplacedReasons) set(unplaced map[netip.Addr]placement.Explanation, addresses []placement.Address) {
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
			default: // the next change of its Announcements reports the reason, too
			}
		}
	}
}
