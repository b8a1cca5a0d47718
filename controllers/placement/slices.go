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
	sliced := map[string][]v1.AnnouncedAddress{owner: {}}
	var unassigned []v1.AnnouncedAddress
	for _, e := range entries {
		name, exists := nameOfAddress[e.Address]
		if exists && sliced[name] == nil {
			sliced[name] = make([]v1.AnnouncedAddress, 0, fillTo)
		}
		if exists && len(sliced[name]) < v1.MaxAddressesPerAnnouncement {
			sliced[name] = append(sliced[name], e)
		} else {
			unassigned = append(unassigned, e)
		}
	}
	order := append([]string{owner},
		slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == owner })...)
	for _, e := range unassigned {
		for i := 0; ; i++ {
			if i == len(order) {
				order = append(order, sliceName(owner, i))
			}
			if name := order[i]; len(sliced[name]) < fillTo {
				sliced[name] = append(sliced[name], e)
				break
			}
		}
	}
	return sliced
}

// sliceName names the n-th object of an owner. The hash keeps it apart from the names of
// other owners.
func sliceName(owner string, n int) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s/%d", owner, n)
	return fmt.Sprintf("%s-%08x", owner, h.Sum32())
}
