package allocation

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// Family is IPv4 or IPv6, as core/v1 spells them.
type Family = corev1.IPFamily

// The families.
const (
	IPv4 = corev1.IPv4Protocol
	IPv6 = corev1.IPv6Protocol
)

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address is
// IPv6.
func FamilyOf(a netip.Addr) Family { return Family(v1.FamilyOf(a)) }

// Range is one range of a group, inclusive on both ends.
type Range struct {
	Addrs netipx.IPRange
	// Subnet contains Addrs.
	Subnet netip.Prefix
	// Mask is the prefix length that a Virtual address of the range gets.
	Mask int
	// PoolText is the pool as the user wrote it, and Path is the field that it is in.
	PoolText string
	Path     *field.Path
	// Recorded is how many addresses of the range an external IPAM system has in its
	// records, those of Services included.
	Recorded int64
}

// String is first-last.
func (r Range) String() string { return r.Addrs.String() }

// Family returns the family of all addresses of the range.
func (r Range) Family() Family { return FamilyOf(r.Addrs.From()) }

// subnetAllows reports whether the range's subnet lets a Service have address a. Where
// the prefix is short enough to have them, no Service gets the subnet's network
// address, its IPv4 broadcast address or its IPv6 subnet-router anycast address
// (RFC 4291 section 2.6.1).
func (r Range) subnetAllows(a netip.Addr) bool {
	if r.Subnet.Bits() >= a.BitLen()-1 {
		return true
	}
	if a == r.Subnet.Addr() {
		return false
	}
	return a.Is6() || a != netipx.PrefixLastIP(r.Subnet)
}

// whyNotAllocatable says why subnetAllows is false for address a.
func (r Range) whyNotAllocatable(a netip.Addr) string {
	return fmt.Sprintf("%s is the first or last address of subnet %s: it is never allocated", a, r.Subnet)
}

// Capacity is how many addresses of the range can be allocated, at most the largest
// int64.
func (r Range) Capacity() int64 {
	from := new(big.Int).SetBytes(r.Addrs.From().AsSlice())
	to := new(big.Int).SetBytes(r.Addrs.To().AsSlice())
	n := to.Sub(to, from)
	n.Add(n, big.NewInt(1))
	ends := map[netip.Addr]bool{r.Subnet.Addr(): true, netipx.PrefixLastIP(r.Subnet): true}
	for end := range ends {
		if r.Addrs.Contains(end) && !r.subnetAllows(end) {
			n.Sub(n, big.NewInt(1))
		}
	}
	if !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

// Group is a parsed ServiceGroup.
type Group struct {
	Name string
	Type v1.PoolType
	// Ranges are the IPv4 ranges, then the IPv6 ones, each in the order in which the
	// allocator tries them.
	Ranges                []Range
	MultiPool             bool
	BalancePools          bool
	SkipIPv6DAD           bool
	ShareAcrossNamespaces bool
	PolicyLocal           v1.PolicyLocal
	// AllowServices are the communities that Services may ask for. It is nil for none.
	AllowServices *v1.RouteCommunities
	// AutoAssign says whether Services that name no group may get addresses of this one.
	AutoAssign bool
	// NamespaceSelector selects the namespaces whose Services may use the group. It is nil for all.
	NamespaceSelector labels.Selector
	// Reservations are addresses of Ranges. Their Services need not exist.
	Reservations Reservations
	// StickyFor is for how long an address is left to the deleted Service that had it.
	StickyFor time.Duration
	// Preference says which nodes are given Local addresses of the group. It is nil if none are
	// preferred.
	Preference *placement.Preference
	// Netbox says how addresses are allocated from NetBox. It is nil for a group with pools
	// of its own.
	Netbox *Netbox
}

// IsExternal reports whether an external IPAM system allocates the group's addresses, one
// at a time. The group's ranges are then those that the system was last seen to have.
func (g *Group) IsExternal() bool { return g.Netbox != nil }

// RangeContaining returns the range that contains address a.
func (g *Group) RangeContaining(a netip.Addr) (Range, bool) {
	for _, r := range g.Ranges {
		if r.Addrs.Contains(a) {
			return r, true
		}
	}
	return Range{}, false
}

// rangesOf returns the ranges of a family.
func (g *Group) rangesOf(family Family) []Range {
	return slices.DeleteFunc(slices.Clone(g.Ranges), func(r Range) bool { return r.Family() != family })
}

// rangeOverlapping returns a range of the group that has addresses in common with r.
func (g *Group) rangeOverlapping(r Range) (Range, bool) {
	for _, other := range g.Ranges {
		if other.Addrs.Overlaps(r.Addrs) {
			return other, true
		}
	}
	return Range{}, false
}

// Usage is how many addresses of a group are in use.
type Usage struct {
	AllocatedIPv4, AllocatedIPv6 int64
	// ReservedIPv4 and ReservedIPv6 are how many are reserved and not in use.
	ReservedIPv4, ReservedIPv6 int64
	// AvailableIPv4 and AvailableIPv6 are how many are neither in use nor reserved. They
	// saturate at the largest int64.
	AvailableIPv4, AvailableIPv6 int64
	// AllocatedByRange is the number of addresses in use of each range, in the order of
	// Group.Ranges, and ReservedByRange that of those that are reserved and not in use.
	AllocatedByRange, ReservedByRange []int64
}

// Usage counts how many addresses of the group are in use.
func (g *Group) Usage(used *InUse) Usage {
	u := Usage{AllocatedByRange: make([]int64, len(g.Ranges)), ReservedByRange: make([]int64, len(g.Ranges))}
	for i, r := range g.Ranges {
		u.AllocatedByRange[i], u.ReservedByRange[i] = used.countIn(r), g.Reservations.countUnused(r, used)
		allocated, reserved, available := &u.AllocatedIPv4, &u.ReservedIPv4, &u.AvailableIPv4
		if r.Family() == IPv6 {
			allocated, reserved, available = &u.AllocatedIPv6, &u.ReservedIPv6, &u.AvailableIPv6
		}
		*allocated += u.AllocatedByRange[i]
		*reserved += u.ReservedByRange[i]
		capacity := r.Capacity()
		free := max(capacity-max(u.AllocatedByRange[i], r.Recorded)-u.ReservedByRange[i], 0)
		if capacity == math.MaxInt64 || *available > math.MaxInt64-free {
			*available = math.MaxInt64
		} else {
			*available += free
		}
	}
	return u
}
