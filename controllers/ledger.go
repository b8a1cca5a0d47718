package controllers

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// ledger is the allocator's index of Services: who has which address, and who
// waits for one. It follows from the newest version of each Service that this
// process knows of, be it from the cache or from the answer to a write of its
// own, in whatever order they come. Nothing else is in it but for one thing: a
// Service that an address is about to be written to has that address, too, until
// a newer version of it is known. So an address is never free while somebody may
// have it, whether the write went through or not.
type ledger struct {
	isDefault bool

	mu       sync.Mutex
	inUse    *allocation.InUse
	services map[client.ObjectKey]entry
	waiting  map[string]map[client.ObjectKey]bool // by the group that they wait for
}

// entry is which version of a Service the ledger knows.
type entry struct {
	uid     types.UID
	version string
	// waits is the group that the Service waits for, or anyGroup, if it does.
	waits string
	// reserved is addresses that are about to be written to this version of the
	// Service, or may have been.
	reserved []netip.Addr
	// unseen is that the cache has not shown the Service yet.
	unseen bool
}

// Instead of a group: Services that wait for none, or for whatever is released.
const (
	noGroup  = ""
	anyGroup = "*"
)

func newLedger(isDefault bool) *ledger {
	return &ledger{
		isDefault: isDefault,
		inUse:     allocation.NewInUse(),
		services:  map[client.ObjectKey]entry{},
		waiting:   map[string]map[client.ObjectKey]bool{},
	}
}

// isNewer compares versions of Services, of which those in Kubernetes can be
// compared (KEP-5504).
func isNewer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return a != b
	}
	return order > 0
}

// see notes a version of a Service, unless it knows a newer one. unseen is that
// it is not from the cache.
func (l *ledger) see(svc *corev1.Service, unseen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(svc)
	e, known := l.services[key]
	if known && !isNewer(svc.ResourceVersion, e.version) {
		if e.unseen && !unseen {
			e.unseen = false
			l.services[key] = e
		}
		return
	}
	l.wait(key, e.waits, false)
	unseen = unseen && (!known || e.unseen || e.uid != svc.UID)
	e = entry{uid: svc.UID, version: svc.ResourceVersion, unseen: unseen} // what was reserved is shown by now, or never will be
	if isOurs(svc, l.isDefault) && isPending(svc) {
		e.waits = waitsFor(svc)
	}
	l.wait(key, e.waits, true)
	l.services[key] = e
	l.put(svc, nil)
}

// put makes a Service have what it shows and what is reserved for it.
func (l *ledger) put(svc *corev1.Service, reserved []netip.Addr) {
	holder := allocation.HolderOf(svc, isOurs(svc, l.isDefault))
	for _, a := range reserved {
		if !slices.Contains(holder.Addresses, a) {
			holder.Addresses = append(holder.Addresses, a)
		}
	}
	l.inUse.Put(holder)
}

func (l *ledger) wait(key client.ObjectKey, group string, waits bool) {
	switch {
	case group == noGroup:
	case !waits:
		delete(l.waiting[group], key)
		if len(l.waiting[group]) == 0 {
			delete(l.waiting, group)
		}
	default:
		if l.waiting[group] == nil {
			l.waiting[group] = map[client.ObjectKey]bool{}
		}
		l.waiting[group][key] = true
	}
}

// waitsFor is the group that a pending Service waits for.
func waitsFor(svc *corev1.Service) string {
	if allocation.Names(svc) {
		return anyGroup
	}
	if group := svc.Annotations[v1.AnnotationServiceGroup]; group != "" {
		return group
	}
	return groupOfHeld(svc)
}

// groupOfHeld is the group of what a Service has, or would have.
func groupOfHeld(svc *corev1.Service) string {
	if from := svc.Annotations[v1.AnnotationAllocatedFrom]; from != "" && isBranded(svc) {
		return from
	}
	return v1.DefaultServiceGroup
}

// decide lets an allocation be made, and reserves what comes of it: several may be
// made at the same time. The Service was seen before.
func (l *ledger) decide(svc *corev1.Service, facts *allocation.Facts) allocation.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	facts.InUse = l.inUse
	result := allocation.Allocate(allocation.RequestOf(svc), facts)
	l.reserve(svc, result.Addresses)
	return result
}

// reserve notes that addrs are about to be written to svc, which the API server
// will refuse unless that is its newest version.
func (l *ledger) reserve(svc *corev1.Service, addrs []netip.Addr) {
	key := client.ObjectKeyFromObject(svc)
	e := l.services[key]
	if e.version != svc.ResourceVersion {
		return
	}
	for _, a := range addrs {
		if !slices.Contains(e.reserved, a) {
			e.reserved = append(slices.Clone(e.reserved), a)
		}
	}
	l.services[key] = e
	l.put(svc, e.reserved)
}

// isBehind reports whether the ledger knows a newer version of a Service.
func (l *ledger) isBehind(svc *corev1.Service) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.services[client.ObjectKeyFromObject(svc)]
	return known && isNewer(e.version, svc.ResourceVersion)
}

// isUnseen reports whether the cache has yet to show a Service.
func (l *ledger) isUnseen(key client.ObjectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.services[key].unseen
}

// drop forgets a Service that is gone. Without a uid, whichever has the name.
func (l *ledger) drop(key client.ObjectKey, uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, known := l.services[key]
	if !known || uid != "" && e.uid != uid {
		return
	}
	l.wait(key, e.waits, false)
	delete(l.services, key)
	l.inUse.Delete(key.String())
}

// pending is the Services that wait for a group, or for any at all.
func (l *ledger) pending(group string) []client.ObjectKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []client.ObjectKey
	for g, waiting := range l.waiting {
		if g == group || g == anyGroup || group == anyGroup {
			for key := range waiting {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// holders is the Services that have one of the addresses.
func (l *ledger) holders(addrs []netip.Addr) []client.ObjectKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []client.ObjectKey
	for _, a := range addrs {
		for _, h := range l.inUse.Holders(a) {
			keys = append(keys, client.ObjectKey{Namespace: h.Namespace, Name: h.Name})
		}
	}
	return keys
}
