package announced

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// ServicesOfAnnouncement lists the Services that have entries in an Announcement, or addresses that it asks for,
// as namespace/name.
func ServicesOfAnnouncement(a *v1.Announcement) []string {
	if a.Spec.Asking == nil {
		return servicesOfEntries(a.Spec.Addresses)
	}
	var keys []string
	for i := range a.Spec.Asking.Addresses {
		keys = append(keys, a.Spec.Asking.Addresses[i].Services...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ServicesOfCommonAnnouncement lists the Services that have entries in a CommonAnnouncement, as
// namespace/name.
func ServicesOfCommonAnnouncement(c *v1.CommonAnnouncement) []string {
	return servicesOfEntries(c.Spec.Addresses)
}

func servicesOfEntries(entries []v1.AnnouncedAddress) []string {
	var keys []string
	for i := range entries {
		keys = append(keys, entries[i].Services...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ServicesWithVirtualAddressesOn lists the Services that have entries for Virtual addresses on a node, of its own or
// shared ones, as namespace/name.
func ServicesWithVirtualAddressesOn(
	node string, announcements []v1.Announcement, commons []v1.CommonAnnouncement,
) []string {
	var entries []v1.AnnouncedAddress
	for i := range announcements {
		a := &announcements[i]
		if a.Spec.NodeName != node {
			continue
		}
		for k := range a.Spec.Addresses {
			if a.Spec.Addresses[k].Type == v1.AnnounceVirtual {
				entries = append(entries, a.Spec.Addresses[k])
			}
		}
		for k := range commons {
			if a.Spec.IncludeCommonAnnouncements && commons[k].Spec.LBNodeAgent == a.Spec.LBNodeAgent {
				entries = append(entries, commons[k].Spec.Addresses...)
			}
		}
	}
	return servicesOfEntries(entries)
}

// ServicesOfChangedEntries lists the Services, as namespace/name, for which something differs
// between two versions of an Announcement, shared entries apart.
func ServicesOfChangedEntries(before, after *v1.Announcement) []string {
	type entryAndStatus struct {
		spec   v1.AnnouncedAddress
		status v1.AddressStatus
	}
	placesByAddress := func(a *v1.Announcement) map[string]entryAndStatus {
		places := map[string]entryAndStatus{}
		for _, spec := range a.Spec.Addresses {
			places[spec.Address] = entryAndStatus{spec: spec}
		}
		for _, s := range a.Status.Addresses {
			p := places[s.Address]
			p.status = s
			places[s.Address] = p
		}
		return places
	}
	keys := servicesOfChangedReachability(before, after)
	old, current := placesByAddress(before), placesByAddress(after)
	for address, p := range old {
		if now := current[address]; !equality.Semantic.DeepEqual(p.spec, now.spec) ||
			!equality.Semantic.DeepEqual(p.status, now.status) {
			keys = append(append(keys, p.spec.Services...), now.spec.Services...)
		}
	}
	for address, p := range current {
		if _, existed := old[address]; !existed {
			keys = append(keys, p.spec.Services...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// SharedReportChanged reports whether what a node reports of the shared entries may
// differ between two versions of its Announcement.
func SharedReportChanged(before, after *v1.Announcement) bool {
	return (before.Spec.IncludeCommonAnnouncements || after.Spec.IncludeCommonAnnouncements) &&
		(before.Spec.IncludeCommonAnnouncements != after.Spec.IncludeCommonAnnouncements ||
			!equality.Semantic.DeepEqual(before.Status.CommonAnnouncementsRevision, after.Status.CommonAnnouncementsRevision) ||
			!equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses))
}

// ServicesOfChangedSharedReport lists the Services, as namespace/name, for which two versions of
// a node's Announcement report something else of the shared entries.
func ServicesOfChangedSharedReport(before, after *v1.Announcement, commons []v1.CommonAnnouncement) []string {
	var services []string
	for i := range commons {
		for k := range commons[i].Spec.Addresses {
			e := &commons[i].Spec.Addresses[k]
			old, current := sharedStatus(before, commons[i].Spec.LBNodeAgent, e),
				sharedStatus(after, commons[i].Spec.LBNodeAgent, e)
			if old.State != current.State || old.Message != current.Message {
				services = append(services, e.Services...)
			}
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// ServicesOfChangedCommonAnnouncement lists the Services, as namespace/name, for which two versions of a
// CommonAnnouncement differ.
func ServicesOfChangedCommonAnnouncement(before, after *v1.CommonAnnouncement) []string {
	old := map[string]v1.AnnouncedAddress{}
	for _, e := range before.Spec.Addresses {
		old[e.Address] = e
	}
	var changed []v1.AnnouncedAddress
	for _, e := range after.Spec.Addresses {
		if was, existed := old[e.Address]; !existed || !equality.Semantic.DeepEqual(was, e) {
			changed = append(changed, was, e)
		}
		delete(old, e.Address)
	}
	for _, e := range old {
		changed = append(changed, e)
	}
	return servicesOfEntries(changed)
}
