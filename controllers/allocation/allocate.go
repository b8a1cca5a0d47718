package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// InUse is which Service, as namespace/name, has each address.
type InUse map[netip.Addr]string

// Request is what a Service asks for and what it has.
type Request struct {
	// Service as namespace/name.
	Service string
	// Group that it asks for.
	Group string
	// Families in order of preference.
	Families []Family
	Policy   corev1.IPFamilyPolicy
	// Current addresses, in the order of its status.
	Current []netip.Addr
	// AllocatedFrom is the group that the current addresses were of when they
	// were given.
	AllocatedFrom string
}

// Result is what the Service is to have.
type Result struct {
	// Addresses in the order of the request's families. Addresses that cannot
	// be judged (their group is gone or invalid) are kept.
	Addresses []netip.Addr
	// Group and Type that the addresses are of; empty if there is none.
	Group string
	Type  v1.PoolType
	// Reason is v1.ReasonAllocated if the request is met, else why not, with
	// Message for people.
	Reason  string
	Message string
}

// Allocate decides which addresses a Service is to have. reserved is addresses
// that are never handed out, with why; it may be nil. An address that the
// Service has is kept for as long as its group is the one asked for and its
// family is wanted, and until there is another in its place. One that its group
// has lost is still the group's.
func Allocate(req Request, catalog Catalog, used InUse, reserved map[netip.Addr]string) Result {
	keep := Result{Addresses: mine(req, used)}
	verdict, exists := catalog[req.Group]
	switch {
	case !exists:
		keep.Reason, keep.Message = v1.ReasonNoSuchGroup, fmt.Sprintf("there is no ServiceGroup %s", req.Group)
		return keep
	case !verdict.Ready():
		keep.Reason, keep.Message = v1.ReasonGroupNotReady, fmt.Sprintf("ServiceGroup %s is not ready: %s", req.Group, verdict.Message)
		return keep
	}

	group := &verdict.Group
	// What the group gave stays, whoever's pool it is in now.
	ours := req.AllocatedFrom == group.Name
	var addrs []netip.Addr
	var missing []string
	for _, family := range req.Families {
		if a, ok := kept(keep.Addresses, family, group, ours); ok {
			addrs = append(addrs, a)
		} else if a, ok := firstFree(group, family, used, reserved); ok {
			addrs = append(addrs, a)
		} else {
			missing = append(missing, string(family))
		}
	}
	result := Result{Addresses: addrs, Group: group.Name, Type: group.Type, Reason: v1.ReasonAllocated}
	if len(missing) == 0 || (len(addrs) > 0 && req.Policy == corev1.IPFamilyPolicyPreferDualStack) {
		result.Message = fmt.Sprintf("%s from pool %s", Join(addrs), group.Name)
		return result
	}
	keep.Reason = v1.ReasonExhausted
	keep.Message = fmt.Sprintf("ServiceGroup %s has no free %s address", group.Name, strings.Join(missing, " and no free "))
	return keep
}

// mine is the current addresses of the request without those that another
// Service has, and without repetitions.
func mine(req Request, used InUse) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range req.Current {
		if holder, held := used[a]; (!held || holder == req.Service) && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// kept is the address of a family that the Service has from the group.
func kept(current []netip.Addr, family Family, group *Group, ours bool) (netip.Addr, bool) {
	for _, a := range current {
		if FamilyOf(a) != family {
			continue
		}
		if _, ok := group.RangeOf(a); ok || ours {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// firstFree returns the first free address of a family: of the first range that
// has one or, if the group balances, of the range with the fewest in use.
func firstFree(group *Group, family Family, used InUse, reserved map[netip.Addr]string) (netip.Addr, bool) {
	order := make([]int, 0, len(group.Ranges))
	for i, r := range group.Ranges {
		if r.Family() == family {
			order = append(order, i)
		}
	}
	if group.BalancePools {
		counts := group.Usage(used).Ranges
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(counts[a], counts[b]) })
	}
	for _, i := range order {
		r := group.Ranges[i]
		for a := r.Addrs.From(); r.Addrs.Contains(a); a = a.Next() {
			_, taken := used[a]
			_, never := reserved[a]
			if !taken && !never && r.usable(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// Join lists addresses for messages.
func Join(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ", ")
}
