package placement

import (
	"fmt"
	"hash/fnv"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// fillTo is how many addresses an Announcement gets before a further one is made.
// What a write costs the API server grows with the object, and one more address
// writes one object for each node twice: that is what bounds how fast a large
// cluster follows. Much shorter ones would only be many.
const fillTo = 25

// Slice distributes the entries of one node over its Announcements: an entry
// stays in the one that has its address now, a new one goes to the first with
// room. names is the node's Announcements now, and where says which of them has
// an address. The one named after the node comes first and is always in the
// result, others only if they have entries.
func Slice(node string, entries []v1.AnnouncedAddress, names []string, where map[string]string) map[string][]v1.AnnouncedAddress {
	sliced := map[string][]v1.AnnouncedAddress{node: {}}
	var homeless []v1.AnnouncedAddress
	for _, e := range entries {
		name, has := where[e.Address]
		if has && len(sliced[name]) < v1.MaxAddressesPerAnnouncement {
			sliced[name] = append(sliced[name], e)
		} else {
			homeless = append(homeless, e)
		}
	}
	order := append([]string{node}, slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == node })...)
	for _, e := range homeless {
		for i := 0; ; i++ {
			if i == len(order) {
				order = append(order, sliceName(node, i))
			}
			if name := order[i]; len(sliced[name]) < fillTo {
				sliced[name] = append(sliced[name], e)
				break
			}
		}
	}
	return sliced
}

// sliceName names the n-th Announcement of a node. The hash keeps it apart from
// the names of other nodes.
func sliceName(node string, n int) string {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s/%d", node, n)
	return fmt.Sprintf("%s-%08x", node, h.Sum32())
}
