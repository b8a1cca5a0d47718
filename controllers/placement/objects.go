package placement

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// StoredObject is an Announcement with standby or asking as it stands.
type StoredObject struct {
	Name      string
	Addresses []string
	// Witnesses are the names of the nodes that a standby names as witnesses.
	Witnesses []string
}

// isOf reports whether the object belongs to a plan. The argument is the name of the plan's first object.
func (o *StoredObject) isOf(first string) bool {
	return o.Name == first || strings.HasPrefix(o.Name, first+"-")
}

// planName names the first object of a node's plan. It is made of the node, the kind and the key of the plan. Names
// are never parsed.
func planName(node, kind, key string) string {
	const longestNode = 200
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%s/0", node, key)
	return fmt.Sprintf("%s-%s-%016x", strings.TrimRight(node[:min(len(node), longestNode)], "-."), kind, h.Sum64())
}

// distributePlan distributes the addresses of a node's plan over as many objects as they need, of which specOf
// makes each, and returns them by name, the addresses of each sorted. Further objects have the name of the first one
// and a number. An address stays in the object of the plan that has it now: objects are written one by one, and between
// two writes an address that changed its object would be in none, or in both. stored are the objects of the node, those
// of other plans included.
func distributePlan[A any](
	first string, addresses []A, addressOf func(*A) string, stored []StoredObject,
	specOf func(part []A) *v1.AnnouncementSpec,
) map[string]*v1.AnnouncementSpec {
	var names []string
	nameOfAddress := map[string]string{}
	for i := range stored {
		name := stored[i].Name
		if !stored[i].isOf(first) {
			continue
		}
		names = append(names, name)
		for _, a := range stored[i].Addresses {
			nameOfAddress[a] = min(name, cmp.Or(nameOfAddress[a], name))
		}
	}
	if len(names) == 0 {
		names = []string{first}
	}
	slices.Sort(names)
	distributed := distribution[A]{
		addressOf: addressOf, nameOfAddress: nameOfAddress, fillTo: v1.MaxAddressesPerAnnouncement,
		newName: func(n int) string { return fmt.Sprintf("%s-%d", first, n) },
	}.distribute(addresses, names)
	specs := make(map[string]*v1.AnnouncementSpec, len(distributed))
	for name, part := range distributed {
		slices.SortFunc(part, func(x, y A) int { return cmp.Compare(addressOf(&x), addressOf(&y)) })
		specs[name] = specOf(part)
	}
	return specs
}
