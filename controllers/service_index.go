package controllers

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/internal/revision"
)

// serviceIndex is the allocator's index of Services: which Service has which address in
// use, and which Services wait for one. It is the state of the allocator that outlives a
// reconcile. The process loses it when it ends; a new leader lists all Services before it
// allocates (listBeforeAllocating), and so has all of it again but for what is said below.
//
// The index follows from the newest version of each Service that this process knows, be it
// from the cache or from the answer to a write, in whatever order they come. An address
// that is about to be written to a Service counts as in use by that Service, too, until a
// newer version is known. So no address is ever free while a Service may have it, whether
// or not the write went through. Whoever makes the index forget an address then wakes the
// Services that wait for one (freedAddresses).
type serviceIndex struct {
	isDefaultLoadBalancer bool

	mu    sync.Mutex
	inUse *allocation.InUse
	// services has an entry for each Service until it is deleted.
	services map[client.ObjectKey]indexedService
	// waiting are the Services that wait, by what they wait for.
	waiting map[need]map[client.ObjectKey]bool
	// released is what deleted Services had, until Reconcile of that name reports it. If
	// the process ends in between, the event AddressReleased is missing.
	released map[client.ObjectKey][]releasedAddresses
	// formerOwners are Services that were deleted, with their addresses. A new leader knows none:
	// a Service that is then made again gets the first free address.
	formerOwners allocation.FormerOwners
	now          func() time.Time
}

// indexedService is what the index knows of one Service.
type indexedService struct {
	uid     types.UID
	version string
	needs   []need
	// allocated are the addresses that are allocated to the Service, if PureLB serves it.
	allocated []netip.Addr
	// pending are the addresses that the allocator is about to write to this version of
	// the Service, or may have written. A new leader knows none: it reads from the API
	// server whether they were written.
	pending []netip.Addr
	// waitReason is why the last allocation did not give the Service what it asks for; zero if it did,
	// or if there was none yet. A new leader allocates to each Service once.
	waitReason waitReason
	// progress is how far the Service is, if PureLB serves it; otherwise empty.
	progress ServiceProgress
	// isMissingFromCache says that the cache has not shown the Service yet.
	isMissingFromCache bool
}

// waitReason is the reason for which a Service waits, and the ServiceGroup that it asks for, or
// empty if there is none of that name.
type waitReason struct{ pool, reason string }

// releasedAddresses are the addresses of a deleted Service.
type releasedAddresses struct {
	uid       types.UID
	addresses []netip.Addr
}

// freedAddresses are addresses that a Service does not have in use any more, and the group that they
// are of, or anyGroup if they may be of several.
type freedAddresses struct {
	group     string
	addresses []netip.Addr
}

// without leaves out addresses.
func (f freedAddresses) without(addrs []netip.Addr) freedAddresses {
	f.addresses = slices.DeleteFunc(
		slices.Clone(f.addresses), func(a netip.Addr) bool { return slices.Contains(addrs, a) },
	)
	return f
}

// need is what a Service waits for: a free address of a group, or of anyGroup. If family
// is not empty, the address has to be of that family.
type need struct {
	group  string
	family allocation.Family
}

// anyGroup is the group of Services that wait for whatever is released.
const anyGroup = "*"

func newServiceIndex(isDefaultLoadBalancer bool, now func() time.Time) *serviceIndex {
	return &serviceIndex{
		isDefaultLoadBalancer: isDefaultLoadBalancer,
		inUse:                 allocation.NewInUse(),
		services:              map[client.ObjectKey]indexedService{},
		waiting:               map[need]map[client.ObjectKey]bool{},
		released:              map[client.ObjectKey][]releasedAddresses{},
		formerOwners:          allocation.FormerOwners{},
		now:                   now,
	}
}

// observe notes a version of a Service that the cache has shown, unless the index knows a newer
// version. It returns what was about to be written to the Service, and is not in that version.
func (x *serviceIndex) observe(svc *corev1.Service) freedAddresses {
	return x.note(svc, versionFromCache)
}

// observeUncached notes a version of a Service that the API server has listed, and that
// the cache may not have.
func (x *serviceIndex) observeUncached(svc *corev1.Service) { x.note(svc, versionFromList) }

// observeWritten is observe for a version that a write of a Service that the index knew has
// returned. If the Service has been removed since, its end has been observed before that version.
func (x *serviceIndex) observeWritten(svc *corev1.Service) freedAddresses {
	return x.note(svc, versionFromWrite)
}

// versionSource says where a version of a Service comes from.
type versionSource int

const (
	versionFromCache versionSource = iota
	versionFromList                // of all Services, by the API server itself
	versionFromWrite               // the answer to a write
)

// note notes a version of a Service, and returns what observe does.
func (x *serviceIndex) note(svc *corev1.Service, from versionSource) (freed freedAddresses) {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := client.ObjectKeyFromObject(svc)
	s, isKnown := x.services[key]
	if from == versionFromWrite && (!isKnown || s.uid != svc.UID) {
		return freedAddresses{}
	}
	if isKnown && !revision.IsNewer(svc.ResourceVersion, s.version) {
		if s.isMissingFromCache && from != versionFromList {
			s.isMissingFromCache = false
			x.services[key] = s
		}
		return freedAddresses{}
	}
	if isKnown && s.uid != svc.UID {
		x.noteReleased(key, s)
	}
	x.removeNeeds(key, s.needs)
	isMissing := from == versionFromList && (!isKnown || s.isMissingFromCache || s.uid != svc.UID)
	// The version shows by now what was pending, or never will.
	if len(s.pending) > 0 {
		has := allocation.AddressesAllocatedOrShown(svc)
		freed = freedAddresses{anyGroup, s.pending}.without(has)
	}
	wait := s.waitReason
	if s.uid != svc.UID {
		wait = waitReason{}
	}
	s = indexedService{uid: svc.UID, version: svc.ResourceVersion, isMissingFromCache: isMissing}
	if IsOurs(svc, x.isDefaultLoadBalancer) {
		s.waitReason, s.progress = wait, progressOf(svc)
		s.needs, s.allocated = needsOf(svc), allocation.RecordOf(svc).Addresses
	}
	x.addNeeds(key, s.needs)
	x.services[key] = s
	x.putInUse(svc, nil)
	return freed
}

// forgetVersion makes the index take the next version of a Service that it is shown, however
// old: the cache has gone back to an older one, as when the API server's database is restored
// from a backup. The manager then ends (RestoreDetector), but not at the same moment.
func (x *serviceIndex) forgetVersion(key client.ObjectKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s, isKnown := x.services[key]; isKnown {
		s.version = ""
		x.services[key] = s
	}
}

// putInUse makes the index count as in use what a Service has, and what is pending for it.
func (x *serviceIndex) putInUse(svc *corev1.Service, pending []netip.Addr) {
	x.inUse.Put(allocation.ServiceOf(svc, IsOurs(svc, x.isDefaultLoadBalancer)).WithPendingAddresses(pending))
}

func (x *serviceIndex) addNeeds(key client.ObjectKey, needs []need) {
	for _, n := range needs {
		if x.waiting[n] == nil {
			x.waiting[n] = map[client.ObjectKey]bool{}
		}
		x.waiting[n][key] = true
	}
}

func (x *serviceIndex) removeNeeds(key client.ObjectKey, needs []need) {
	for _, n := range needs {
		if delete(x.waiting[n], key); len(x.waiting[n]) == 0 {
			delete(x.waiting, n)
		}
	}
}

// needsOf returns what a Service that PureLB serves waits for.
func needsOf(svc *corev1.Service) []need {
	if isWaitingForAddresses(svc) {
		isForAnyGroup := allocation.RequestedGroup(svc) == "" && allocation.RecordOf(svc).Group == ""
		if allocation.RequestsAddresses(svc) || isForAnyGroup {
			return []need{{group: anyGroup}}
		}
		return []need{{group: wantedGroup(svc)}}
	}
	var needs []need
	for _, family := range missingFamilies(svc) {
		needs = append(needs, need{wantedGroup(svc), family})
	}
	return needs
}

// wantedGroup returns the group that a Service asks for or, if it asks for none, has
// addresses of.
func wantedGroup(svc *corev1.Service) string {
	return cmp.Or(allocation.RequestedGroup(svc), allocatedOrDefaultGroup(svc))
}

// allocatedOrDefaultGroup returns the group of what is allocated to a Service. If nothing is, it
// returns the default group.
func allocatedOrDefaultGroup(svc *corev1.Service) string {
	return cmp.Or(allocation.RecordOf(svc).Group, v1.DefaultServiceGroup)
}

// allocate decides what a Service is to have, and notes that as pending: so several
// Services can be decided on while others are being written. The caller has observed the
// Service.
func (x *serviceIndex) allocate(svc *corev1.Service, inputs *allocation.Inputs) allocation.Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	inputs.InUse, inputs.FormerOwners, inputs.Now = x.inUse, x.formerOwners, x.now()
	result := allocation.Allocate(allocation.RequestOf(svc), inputs)
	x.addPending(svc, result.Addresses)
	x.noteWait(client.ObjectKeyFromObject(svc), &result)
	return result
}

// noteWait notes whether a Service waits after an allocation. While an external IPAM system is
// asked nothing can be said, and what was noted before stays.
func (x *serviceIndex) noteWait(key client.ObjectKey, result *allocation.Result) {
	s, isKnown := x.services[key]
	if !isKnown || result.IsAwaitingIPAM {
		return
	}
	s.waitReason = waitReason{}
	if result.Reason != v1.ReasonAllocated {
		s.waitReason = waitReason{result.RequestedGroup, result.Reason}
	}
	x.services[key] = s
}

// countWaiting counts the Services that wait, by why.
func (x *serviceIndex) countWaiting() map[waitReason]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	counts := map[waitReason]int{}
	for _, s := range x.services {
		if s.waitReason != (waitReason{}) {
			counts[s.waitReason]++
		}
	}
	return counts
}

// countProgress counts the Services that PureLB serves, by how far they are.
func (x *serviceIndex) countProgress() map[ServiceProgress]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	counts := map[ServiceProgress]int{}
	for _, state := range ServiceProgresses {
		counts[state] = 0
	}
	for _, s := range x.services {
		if s.progress != "" {
			counts[s.progress]++
		}
	}
	return counts
}

// addPending notes that the allocator is about to write addrs to svc. The API server
// refuses that write unless svc is the newest version.
func (x *serviceIndex) addPending(svc *corev1.Service, addrs []netip.Addr) {
	key := client.ObjectKeyFromObject(svc)
	s := x.services[key]
	if s.version != svc.ResourceVersion {
		return
	}
	for _, a := range addrs {
		if !slices.Contains(s.pending, a) {
			s.pending = append(slices.Clone(s.pending), a)
		}
	}
	x.services[key] = s
	x.putInUse(svc, s.pending)
}

// knowsNewer reports whether the index knows a newer version of a Service.
func (x *serviceIndex) knowsNewer(svc *corev1.Service) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, isKnown := x.services[client.ObjectKeyFromObject(svc)]
	return isKnown && revision.IsNewer(s.version, svc.ResourceVersion)
}

// isMissingFromCache reports whether the index knows a Service that the cache has not
// shown yet.
func (x *serviceIndex) isMissingFromCache(key client.ObjectKey) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.services[key].isMissingFromCache
}

// remove forgets a deleted Service, if it has the uid. An empty uid stands for any. It returns the
// addresses that the Service had in use, and those that were about to be written to it.
func (x *serviceIndex) remove(key client.ObjectKey, uid types.UID) (freed freedAddresses) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, isKnown := x.services[key]
	if !isKnown || uid != "" && s.uid != uid {
		return freedAddresses{}
	}
	if had := x.inUse.Service(key.String()); had != nil {
		freed = freedAddresses{cmp.Or(had.Allocated.Group, anyGroup), had.Addresses}
	}
	if len(freedAddresses{addresses: s.pending}.without(s.allocated).addresses) > 0 {
		freed.group = anyGroup
	}
	x.noteReleased(key, s)
	x.removeNeeds(key, s.needs)
	delete(x.services, key)
	x.inUse.Delete(key.String())
	return freed
}

func (x *serviceIndex) noteReleased(key client.ObjectKey, s indexedService) {
	if len(s.allocated) > 0 {
		x.released[key] = append(x.released[key], releasedAddresses{s.uid, s.allocated})
		x.formerOwners.Add(key.String(), s.allocated, x.now())
	}
}

// takeReleased returns the addresses of deleted Services of a name, each time once.
func (x *serviceIndex) takeReleased(key client.ObjectKey) []releasedAddresses {
	x.mu.Lock()
	defer x.mu.Unlock()
	released := x.released[key]
	delete(x.released, key)
	return released
}

// servicesWaitingFor lists the Services that wait for addresses of some families of a
// group, or of any group, in the order of their names.
func (x *serviceIndex) servicesWaitingFor(group string, families ...allocation.Family) []client.ObjectKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	var keys []client.ObjectKey
	for n, waiting := range x.waiting {
		if n.family != "" && !slices.Contains(families, n.family) {
			continue
		}
		if n.group == group || n.group == anyGroup || group == anyGroup {
			for key := range waiting {
				keys = append(keys, key)
			}
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(keys)
}

// groupsWaitedFor returns the groups of which Services wait for addresses, and anyGroup if Services
// wait for those of any.
func (x *serviceIndex) groupsWaitedFor() map[string]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	groups := map[string]bool{}
	for n := range x.waiting {
		groups[n.group] = true
	}
	return groups
}

// servicesWith lists the Services that have one of the addresses in use.
func (x *serviceIndex) servicesWith(addrs []netip.Addr) []client.ObjectKey {
	x.mu.Lock()
	defer x.mu.Unlock()
	var keys []client.ObjectKey
	for _, a := range addrs {
		for _, s := range x.inUse.ServicesWith(a) {
			keys = append(keys, client.ObjectKey{Namespace: s.Namespace, Name: s.Name})
		}
	}
	return keys
}
