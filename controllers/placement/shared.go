package placement

import (
	"maps"
	"slices"

	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// ReviseShared returns the CommonAnnouncements of one LBNodeAgent that have to be written,
// by name, so that their entries are the wanted ones: one whose entries are all gone is
// written empty. stored are those that exist, by name, and nodes is how many nodes report.
// The result has no revision yet, and entries that are new, or that nodes have to realise
// anew, have no epoch: see WithRevision.
func ReviseShared(
	lbNodeAgent string, nodes int, wanted []v1.AnnouncedAddress, stored map[string]v1.CommonAnnouncementSpec,
) map[string]v1.CommonAnnouncementSpec {
	nameOfAddress, storedEntry := make(map[string]string, len(wanted)), make(map[string]*v1.AnnouncedAddress, len(wanted))
	for name, spec := range stored {
		for i := range spec.Addresses {
			e := &spec.Addresses[i]
			nameOfAddress[e.Address], storedEntry[e.Address] = name, e
		}
	}
	entries := slices.Clone(wanted)
	for i := range entries {
		e := &entries[i]
		e.Epoch = 0
		old := storedEntry[e.Address]
		if old != nil && old.Interface == e.Interface && old.PrefixLength == e.PrefixLength {
			e.Epoch = old.Epoch
		}
	}
	sliced := Slice(lbNodeAgent, entries, slices.Collect(maps.Keys(stored)), nameOfAddress)
	for name := range stored {
		if sliced[name] == nil {
			sliced[name] = []v1.AnnouncedAddress{}
		}
	}
	changed := map[string]v1.CommonAnnouncementSpec{}
	for name, addresses := range sliced {
		if old, exists := stored[name]; exists && SameAddresses(old.Addresses, addresses) || !exists && len(addresses) == 0 {
			continue
		}
		changed[name] = v1.CommonAnnouncementSpec{
			LBNodeAgent: lbNodeAgent, ReportSpreadSeconds: reportSpreadSeconds(nodes), Addresses: addresses,
		}
	}
	return changed
}

// WithRevision gives a CommonAnnouncement that is to be written its revision, which is the
// epoch of the entries that have none. Of one LBNodeAgent each CommonAnnouncement is
// written with a higher revision than all before it, so an agent that has seen one has
// seen all before it. One that was refused was never stored: the next one gets its
// revision.
func WithRevision(spec v1.CommonAnnouncementSpec, revision int64) v1.CommonAnnouncementSpec {
	spec.Revision, spec.AddressCount = revision, int32(len(spec.Addresses)) //nolint:gosec // the schema bounds it
	spec.Addresses = slices.Clone(spec.Addresses)
	for i := range spec.Addresses {
		if spec.Addresses[i].Epoch == 0 {
			spec.Addresses[i].Epoch = revision
		}
	}
	return spec
}

// HighestRevision returns the highest revision of some CommonAnnouncements, 0 if there are
// none.
func HighestRevision(specs map[string]v1.CommonAnnouncementSpec) int64 {
	revision := int64(0)
	for _, spec := range specs {
		revision = max(revision, spec.Revision)
	}
	return revision
}

// reportSpreadSeconds is over how many seconds so many nodes spread their reports: no more
// than 50 nodes report in one second, up to 3,000 nodes. A report costs an API server up
// to 10 ms of a processor, and only two things wait for it: what Services say, and a node's
// own entry for an address that became shared.
func reportSpreadSeconds(nodes int) int32 {
	const reportsPerSecond, maxSeconds = 50, 60
	return int32(min(nodes/reportsPerSecond, maxSeconds))
}

// SameAddresses compares entries without regard to their order, which is the API server's
// to choose.
func SameAddresses(a, b []v1.AnnouncedAddress) bool {
	if len(a) != len(b) || slices.EqualFunc(a, b, SameEntry) {
		return len(a) == len(b)
	}
	sorted := func(entries []v1.AnnouncedAddress) []v1.AnnouncedAddress {
		return slices.SortedFunc(slices.Values(entries), compareByAddress)
	}
	return slices.EqualFunc(sorted(a), sorted(b), SameEntry)
}

// SameEntry compares two entries field by field: each placement compares all that there are.
func SameEntry(a, b v1.AnnouncedAddress) bool {
	return a.Address == b.Address && a.PrefixLength == b.PrefixLength && a.Interface == b.Interface && a.Type == b.Type &&
		a.ServiceGroup == b.ServiceGroup && a.ClaimPolicy == b.ClaimPolicy && a.HandingOver == b.HandingOver &&
		a.SkipProbe == b.SkipProbe && a.HealthCheckNodePort == b.HealthCheckNodePort && a.Epoch == b.Epoch &&
		a.HighestEpoch == b.HighestEpoch && ptr.Equal(a.ContestedBy, b.ContestedBy) &&
		slices.Equal(a.Services, b.Services) && slices.Equal(a.PreviousMACs, b.PreviousMACs) &&
		slices.Equal(a.Successors, b.Successors)
}
