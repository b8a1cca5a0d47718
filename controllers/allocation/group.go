package allocation

import (
	"fmt"
	"math"
	"math/big"
	"net/netip"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
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
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Range is one range of a group, inclusive on both ends.
type Range struct {
	Addrs netipx.IPRange
	// Subnet contains Addrs.
	Subnet netip.Prefix
	// Mask is the prefix length that a virtual address of the range gets.
	Mask int
	// Written is what the user wrote, and Path where.
	Written string
	Path    *field.Path
}

// String is first-last.
func (r Range) String() string { return r.Addrs.String() }

// Family of all addresses of the range.
func (r Range) Family() Family { return FamilyOf(r.Addrs.From()) }

// usable reports whether the subnet lets a be handed out: not its network and
// IPv4 broadcast address, nor its IPv6 subnet-router anycast address (RFC 4291
// section 2.6.1), where the prefix is short enough to have them.
func (r Range) usable(a netip.Addr) bool {
	if r.Subnet.Bits() >= a.BitLen()-1 {
		return true
	}
	if a == r.Subnet.Addr() {
		return false
	}
	return a.Is6() || a != netipx.PrefixLastIP(r.Subnet)
}

// unusable says why an address that is not usable is not.
func (r Range) unusable(a netip.Addr) string {
	return fmt.Sprintf("%s is the first or last address of subnet %s: it is never handed out", a, r.Subnet)
}

// Capacity is how many addresses of the range can be handed out, at most the
// largest int64.
func (r Range) Capacity() int64 {
	from := new(big.Int).SetBytes(r.Addrs.From().AsSlice())
	to := new(big.Int).SetBytes(r.Addrs.To().AsSlice())
	n := to.Sub(to, from)
	n.Add(n, big.NewInt(1))
	ends := map[netip.Addr]bool{r.Subnet.Addr(): true, netipx.PrefixLastIP(r.Subnet): true}
	for end := range ends {
		if r.Addrs.Contains(end) && !r.usable(end) {
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
	Name                  string
	Type                  v1.PoolType
	Ranges                []Range // IPv4 first, then in the order in which they are tried
	MultiPool             bool
	BalancePools          bool
	SkipIPv6DAD           bool
	ShareAcrossNamespaces bool
}

// RangeOf returns the range that contains a.
func (g *Group) RangeOf(a netip.Addr) (Range, bool) {
	for _, r := range g.Ranges {
		if r.Addrs.Contains(a) {
			return r, true
		}
	}
	return Range{}, false
}

// overlap returns a range of the group that has addresses in common with r.
func (g *Group) overlap(r Range) (Range, bool) {
	for _, other := range g.Ranges {
		if other.Addrs.Overlaps(r.Addrs) {
			return other, true
		}
	}
	return Range{}, false
}

// Usage is how much of a group is in use.
type Usage struct {
	AllocatedIPv4, AllocatedIPv6 int64
	AvailableIPv4, AvailableIPv6 int64
	// Ranges is the number of addresses in use of each range, in the order of
	// Group.Ranges.
	Ranges []int64
}

// Usage counts what is in use of the group. Numbers of free addresses saturate
// at the largest int64.
func (g *Group) Usage(used *InUse) Usage {
	u := Usage{Ranges: make([]int64, len(g.Ranges))}
	for i, r := range g.Ranges {
		u.Ranges[i] = used.in(r)
		allocated, available := &u.AllocatedIPv4, &u.AvailableIPv4
		if r.Family() == IPv6 {
			allocated, available = &u.AllocatedIPv6, &u.AvailableIPv6
		}
		*allocated += u.Ranges[i]
		capacity := r.Capacity()
		free := max(capacity-u.Ranges[i], 0)
		if capacity == math.MaxInt64 || *available > math.MaxInt64-free {
			*available = math.MaxInt64
		} else {
			*available += free
		}
	}
	return u
}
