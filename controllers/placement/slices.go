package placement

import (
	"fmt"
	"hash/fnv"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// fillTo is how many addresses an Announcement gets before a further one is created. What
// a write costs the API server grows with the object, and one more address writes one
// object for each node twice: that bounds how fast a large cluster follows. Much shorter
// Announcements would only be many.
const fillTo = 25

// Slice distributes the entries of one owner, a node or an LBNodeAgent, over its objects,
// Announcements or CommonAnnouncements: an entry stays in the object that has its address
// now, a new one goes to the first object with room. names are the owner's objects, and
// nameOfAddress says which of them has an address. The object named after the owner comes
// first and is always in the result, others only if they have entries.
func Slice(
	owner string, entries []v1.AnnouncedAddress, names []string, nameOfAddress map[string]string,
) map[string][]v1.AnnouncedAddress {
	order := append([]string{owner},
		slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == owner })...)
	sliced := distribution[v1.AnnouncedAddress]{
		addressOf:     func(e *v1.AnnouncedAddress) string { return e.Address },
		nameOfAddress: nameOfAddress,
		fillTo:        fillTo,
		newName:       func(n int) string { return sliceName(owner, n) },
	}.distribute(entries, order)
	if sliced[owner] == nil {
		sliced[owner] = []v1.AnnouncedAddress{}
	}
	return sliced
}

// distribution says how items, each of one address, are distributed over objects.
type distribution[T any] struct {
	addressOf func(*T) string
	// nameOfAddress says which of the objects has an address now.
	nameOfAddress map[string]string
	// fillTo is how many items an object gets before the next one does.
	fillTo int
	// newName names a further object when there are n. It may return the name of one that exists.
	newName func(n int) string
}

// distribute returns the items of each object: an item stays in the object that has its address now. A new one goes to
// the first object with room, in the order of names, or to a further object.
func (d distribution[T]) distribute(items []T, names []string) map[string][]T {
	distributed := map[string][]T{}
	var unassigned []T
	for i := range items {
		name, exists := d.nameOfAddress[d.addressOf(&items[i])]
		if exists && distributed[name] == nil {
			distributed[name] = make([]T, 0, min(d.fillTo, len(items)))
		}
		if exists && len(distributed[name]) < v1.MaxAddressesPerAnnouncement {
			distributed[name] = append(distributed[name], items[i])
		} else {
			unassigned = append(unassigned, items[i])
		}
	}
	for i := range unassigned {
		for k := 0; ; k++ {
			if k == len(names) {
				names = append(names, d.newName(k))
			}
			if name := names[k]; len(distributed[name]) < d.fillTo {
				distributed[name] = append(distributed[name], unassigned[i])
				break
			}
		}
	}
	return distributed
}

// sliceName names the n-th object of an owner. The hash keeps it apart from the names of
// other owners.
func sliceName(owner string, n int) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s/%d", owner, n)
	return fmt.Sprintf("%s-%08x", owner, h.Sum32())
}
