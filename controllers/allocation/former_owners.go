package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// DefaultStickyFor is the stickyFor of a group that does not say.
const DefaultStickyFor = 5 * time.Minute

// MaxFormerOwners is how many owners FormerOwners remember, so that Services that come and go
// fill no memory.
const MaxFormerOwners = 1024

// FormerOwners are, by address, the deleted Services that had it. A Service of the same namespace
// and name gets the address back while it is free, and other Services get it only if nothing else
// is free. So what is forgotten costs a Service its former address, and no Service its turn.
type FormerOwners map[netip.Addr][]FormerOwner

// FormerOwner is a deleted Service.
type FormerOwner struct {
	Service    string // namespace/name
	ReleasedAt time.Time
}

func (o FormerOwner) namespace() string {
	namespace, _, _ := strings.Cut(o.Service, "/")
	return namespace
}

// Add notes that a Service that had addresses was deleted. What a Service of its name had before is
// forgotten. Beyond MaxFormerOwners the oldest one of the namespace with the most is forgotten: who
// makes and deletes Services without end displaces nobody else's.
func (f FormerOwners) Add(service string, addrs []netip.Addr, now time.Time) {
	for a := range f {
		f.forget(a, func(o FormerOwner) bool { return o.Service == service })
	}
	for _, a := range addrs {
		f[a] = append(f[a], FormerOwner{service, now})
	}
	for f.count() > MaxFormerOwners {
		f.forgetOldestOfLargest()
	}
}

func (f FormerOwners) count() int {
	n := 0
	for _, owners := range f {
		n += len(owners)
	}
	return n
}

// forgetOldestOfLargest forgets the oldest owner of the namespace that has the most.
func (f FormerOwners) forgetOldestOfLargest() {
	type candidate struct {
		address netip.Addr
		FormerOwner
	}
	var all []candidate
	count := map[string]int{}
	for a, owners := range f {
		for _, o := range owners {
			all = append(all, candidate{a, o})
			count[o.namespace()]++
		}
	}
	oldest := slices.MinFunc(all, func(x, y candidate) int {
		return cmp.Or(
			cmp.Compare(count[y.namespace()], count[x.namespace()]), x.ReleasedAt.Compare(y.ReleasedAt),
			cmp.Compare(x.Service, y.Service), x.address.Compare(y.address),
		)
	})
	f.forget(oldest.address, func(o FormerOwner) bool { return o == oldest.FormerOwner })
}

// forget forgets owners of an address.
func (f FormerOwners) forget(a netip.Addr, isForgotten func(FormerOwner) bool) {
	f[a] = slices.DeleteFunc(f[a], isForgotten)
	if len(f[a]) == 0 {
		delete(f, a)
	}
}

// formerAddress returns an address of a group for a slot that the Service had before it was deleted
// and made again, if that is not too long ago and the address is free.
func (d *decision) formerAddress(group *Group, s slot) (netip.Addr, bool) {
	var found netip.Addr
	for a, owners := range d.FormerOwners {
		isFormer := slices.ContainsFunc(owners, func(o FormerOwner) bool {
			return o.Service == d.String() && d.isRecent(group, o)
		})
		if isFormer && s.contains(a) && d.isFree(group, a) && (!found.IsValid() || a.Less(found)) {
			found = a
		}
	}
	return found, found.IsValid()
}

// hasFormerAddressIn reports whether the Service had an address of a group that it can have again, and
// the group can serve the Service (canServe).
func (d *decision) hasFormerAddressIn(v *Verdict) bool {
	return v.IsReady() && !v.Group.IsExternal() && slices.ContainsFunc(d.Families, func(family Family) bool {
		_, ok := d.formerAddress(&v.Group, slot{family: family, ranges: v.Group.rangesOf(family)})
		return ok
	}) && d.canServe(v)
}

// awaitedSince returns since when an address of a group is left to another Service that may come
// back. It is zero if none is awaited.
func (d *decision) awaitedSince(group *Group, a netip.Addr) time.Time {
	var since time.Time
	for _, o := range d.FormerOwners[a] {
		if o.Service != d.String() && d.isRecent(group, o) && o.ReleasedAt.After(since) {
			since = o.ReleasedAt
		}
	}
	return since
}

// isRecent reports whether a Service was deleted so recently that its address is left to it.
func (d *decision) isRecent(group *Group, o FormerOwner) bool {
	return d.Now.Sub(o.ReleasedAt) < group.StickyFor
}

// parseStickyFor returns for how long a group leaves an address to the deleted Service that had it.
func parseStickyFor(sg *v1.ServiceGroup, path *field.Path) (time.Duration, field.ErrorList) {
	switch set := sg.Spec.StickyFor; {
	case sg.Spec.Netbox == nil:
		return ptr.Deref(set, metav1.Duration{Duration: DefaultStickyFor}).Duration, nil
	case set == nil:
		return 0, nil
	}
	return 0, field.ErrorList{
		field.Forbidden(path, "NetBox allocates the addresses of the group, and gets those of deleted Services back at once"),
	}
}
