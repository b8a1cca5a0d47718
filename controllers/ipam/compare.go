package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Comparison is how the records of a System differ from what Services hold.
type Comparison struct {
	// Missing are the addresses that Services hold, and that are not recorded as theirs, or more
	// than once, each with the owner whose it is to be.
	Missing []Missing
	// Unused are recorded addresses that no Service holds.
	Unused []netip.Addr
	// Differences are of addresses that Services hold and that have a record of ours, and of those
	// with a foreign record that no Service holds.
	Differences map[netip.Addr]string
}

// Missing is an address that is to be recorded as an owner's.
type Missing struct {
	Address netip.Addr
	Owner   Owner
	// HasOtherRecord says that the address has a record of ours already: that of an owner who has it
	// no more, while those who shared it with that owner still do, or a second one.
	HasOtherRecord bool
}

// CompareRecords compares the records of a System with the addresses that Services hold, by
// their owners, the first of whom is recorded if none is.
func CompareRecords(records []Record, held map[netip.Addr][]Owner, installationID types.UID) Comparison {
	comparison := Comparison{Differences: map[netip.Addr]string{}}
	marks := map[netip.Addr][]string{}
	for _, r := range records {
		if r.IsForeign {
			if len(held[r.Address]) == 0 { // otherwise the owner's record, or the lack of it, says more
				comparison.Differences[r.Address] = r.Difference
			}
			continue
		}
		marks[r.Address] = append(marks[r.Address], r.Mark)
		if len(held[r.Address]) == 0 {
			if !slices.Contains(comparison.Unused, r.Address) {
				comparison.Unused = append(comparison.Unused, r.Address)
			}
		} else if r.Difference != "" {
			comparison.Differences[r.Address] = r.Difference
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(held), netip.Addr.Compare) {
		owners := held[a]
		isRecorded := slices.ContainsFunc(owners, func(o Owner) bool {
			return slices.Contains(marks[a], o.Mark(installationID))
		})
		// A second record of one address is removed by recording the address once more.
		if len(owners) > 0 && (!isRecorded || len(marks[a]) > 1) {
			missing := Missing{Address: a, Owner: owners[0], HasOtherRecord: len(marks[a]) > 0}
			comparison.Missing = append(comparison.Missing, missing)
		}
	}
	slices.SortFunc(comparison.Unused, netip.Addr.Compare)
	return comparison
}

// Of the records of a system that no Service holds, so many may be released at once:
// one in releasableOneIn of all, and always a few.
const (
	releasableOneIn  = 10
	alwaysReleasable = 5
)

// countOwn counts the records that are ours.
func countOwn(records []Record) (n int) {
	for i := range records {
		if !records[i].IsForeign {
			n++
		}
	}
	return n
}

// areTooManyUnused reports whether so many of all records are unused that somebody ought
// to look, rather than the manager release them: what the cluster shows may be wrong.
func areTooManyUnused(unused, all int) bool {
	return unused > max(alwaysReleasable, all/releasableOneIn)
}

// compareOwners orders owners by namespace and name.
func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// SortOwners orders the owners of one address, so that the first is always the same.
func SortOwners(owners []Owner) { slices.SortFunc(owners, compareOwners) }
