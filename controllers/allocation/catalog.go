package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// Verdict says whether the manager allocates from one ServiceGroup, and if not, why.
type Verdict struct {
	Group    Group
	Warnings []string
	// Errors are what the group's author has to put right. A group that is not
	// ready only because its IPAM system has not answered has none.
	Errors field.ErrorList
	// Reason is v1.ReasonAccepted if the manager allocates from the group. Any other
	// reason says why not.
	Reason  string
	Message string
}

// IsWaitingForIPAM reports whether the group becomes ready without a change of its
// specification, as soon as the external IPAM system answers.
func (v *Verdict) IsWaitingForIPAM() bool {
	return v.Reason == v1.ReasonProgressing || v.Reason == v1.ReasonIPAMUnavailable
}

// IsReady reports whether the manager allocates from the group.
func (v *Verdict) IsReady() bool { return v.Reason == v1.ReasonAccepted }

// Catalog holds the verdict on each ServiceGroup of the manager's namespace, by name.
type Catalog map[string]*Verdict

// NewCatalog parses the groups in the manager's namespace, and leaves out the others.
// Of groups that overlap, it accepts those with pools of their own before external ones, whose
// ranges others decide about, then the oldest, and of those of one age the first by name.
func NewCatalog(groups []v1.ServiceGroup, namespace string) Catalog {
	catalog, _ := newCatalog(groups, namespace)
	return catalog
}

func newCatalog(groups []v1.ServiceGroup, namespace string) (Catalog, acceptedGroups) {
	var own []*v1.ServiceGroup
	for i := range groups {
		if groups[i].Namespace == namespace {
			own = append(own, &groups[i])
		}
	}
	slices.SortFunc(own, func(a, b *v1.ServiceGroup) int {
		return cmp.Or(
			order.TrueFirst(a.Spec.Netbox == nil, b.Spec.Netbox == nil),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
	catalog, accepted := Catalog{}, acceptedGroups{}
	for _, sg := range own {
		v := accepted.judge(sg)
		if catalog[sg.Name] = v; v.IsReady() {
			accepted = accepted.withGroup(&v.Group)
		}
	}
	return catalog, accepted
}

// acceptedGroups are the groups that are accepted already. No two groups with pools of
// their own have an address in common, nor has one of them with an external group. Two
// external groups may: the system that both ask allocates each address once.
type acceptedGroups struct {
	pools    acceptedRanges
	external []*Group
}

// withGroup returns the accepted groups and one more.
func (a acceptedGroups) withGroup(group *Group) acceptedGroups {
	if group.IsExternal() {
		return acceptedGroups{a.pools, append(slices.Clone(a.external), group)}
	}
	return acceptedGroups{a.pools.withGroup(group), a.external}
}

// groupOverlapping returns an accepted group that must not have addresses in common with
// range r of a group, and has, and its range.
func (a acceptedGroups) groupOverlapping(group *Group, r Range) (name string, theirs Range, found bool) {
	name, theirs, found = a.pools.groupOverlapping(r)
	if found || group.IsExternal() {
		return name, theirs, found
	}
	for _, other := range a.external {
		if theirs, found := other.rangeOverlapping(r); found {
			return other.Name, theirs, true
		}
	}
	return "", Range{}, false
}

// acceptedRanges are the ranges of all accepted groups with pools of their own, sorted by
// address.
type acceptedRanges []acceptedRange

type acceptedRange struct {
	r     *Range
	group string
}

func compareFirstAddress(a, b acceptedRange) int {
	return a.r.Addrs.From().Compare(b.r.Addrs.From())
}

// withGroup returns the accepted ranges and those of one more group.
func (a acceptedRanges) withGroup(group *Group) acceptedRanges {
	more := make(acceptedRanges, len(group.Ranges))
	for i := range group.Ranges {
		more[i] = acceptedRange{&group.Ranges[i], group.Name}
	}
	slices.SortFunc(more, compareFirstAddress)
	merged := make(acceptedRanges, 0, len(a)+len(more))
	for len(a) > 0 && len(more) > 0 {
		first := &a
		if compareFirstAddress(more[0], a[0]) < 0 {
			first = &more
		}
		merged, *first = append(merged, (*first)[0]), (*first)[1:]
	}
	return append(append(merged, a...), more...)
}

// groupOverlapping returns a group that has addresses in common with r, and its range.
// Of several groups it returns the first by name.
func (a acceptedRanges) groupOverlapping(r Range) (name string, theirs Range, found bool) {
	start, _ := slices.BinarySearchFunc(
		a, r.Addrs.From(), func(one acceptedRange, from netip.Addr) int { return one.r.Addrs.To().Compare(from) },
	)
	for _, one := range a[start:] {
		if r.Addrs.To().Less(one.r.Addrs.From()) {
			break
		}
		if !found || one.group < name {
			name, theirs, found = one.group, *one.r, true
		}
	}
	return name, theirs, found
}

// judge parses one group and compares it with the groups accepted before.
func (a acceptedGroups) judge(sg *v1.ServiceGroup) *Verdict {
	group, warnings, errs := ParseGroup(sg)
	v := &Verdict{
		Group: group, Warnings: warnings, Reason: v1.ReasonAccepted, Message: countOf(len(group.Ranges), "range"),
	}
	if len(errs) > 0 {
		return v.refuse(v1.ReasonInvalid, errs)
	}
	if group.IsExternal() && len(group.Ranges) == 0 {
		v.Reason, v.Message = whyNoRanges(sg)
		return v
	}
	if errs = a.overlapErrors(&group); len(errs) > 0 {
		return v.refuse(v1.ReasonOverlap, errs)
	}
	return v
}

// overlapErrors says which ranges of a group have addresses of a group that is accepted already.
func (a acceptedGroups) overlapErrors(group *Group) field.ErrorList {
	var errs field.ErrorList
	for _, r := range group.Ranges {
		if other, theirs, overlaps := a.groupOverlapping(group, r); overlaps {
			errs = append(errs, field.Invalid(r.Path, r.PoolText,
				fmt.Sprintf("range %s overlaps range %s of ServiceGroup %s, which has these addresses already", r, theirs, other)))
		}
	}
	return errs
}

// gainsOverlap reports whether a range of a group has addresses in common with a group that is accepted
// already, and those are not all in had.
func (a acceptedGroups) gainsOverlap(group *Group, r Range, had *netipx.IPSet) bool {
	var b netipx.IPSetBuilder
	b.AddRange(r.Addrs)
	b.RemoveSet(had)
	gained, err := b.IPSet()
	if err != nil {
		return true // only for ranges that are not valid
	}
	return slices.ContainsFunc(gained.Ranges(), func(addrs netipx.IPRange) bool {
		_, _, overlaps := a.groupOverlapping(group, Range{Addrs: addrs})
		return overlaps
	})
}

// whyNoRanges says why the status of an external group has no ranges.
func whyNoRanges(sg *v1.ServiceGroup) (reason, message string) {
	reachable := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionReachable)
	drift := meta.FindStatusCondition(sg.Status.Conditions, v1.ConditionDrift)
	switch {
	case reachable == nil || reachable.ObservedGeneration != sg.Generation:
		return v1.ReasonProgressing, "what NetBox has of the group is not known yet"
	case reachable.Status == metav1.ConditionFalse:
		return reachable.Reason, reachable.Message
	case drift != nil:
		return v1.ReasonIPAMRefused, drift.Message
	}
	return v1.ReasonProgressing, "NetBox has no prefix or range of the group yet"
}

func (v *Verdict) refuse(reason string, errs field.ErrorList) *Verdict {
	v.Reason, v.Errors, v.Message = reason, errs, errs.ToAggregate().Error()
	return v
}

// OutOfScopeVerdict returns the verdict on a group that is not in namespace, the
// manager's.
func OutOfScopeVerdict(sg *v1.ServiceGroup, namespace string) *Verdict {
	group, warnings, errs := ParseGroup(sg)
	v := &Verdict{Group: group, Warnings: warnings}
	return v.refuse(v1.ReasonOutOfScope,
		append(field.ErrorList{field.Invalid(field.NewPath("metadata", "namespace"), sg.Namespace,
			fmt.Sprintf("only ServiceGroups in namespace %s count: move it there", namespace))}, errs...))
}

// GroupContaining returns the accepted group, and its range, that contain address a. Of
// several, which are all external, it returns the first by name.
func (c Catalog) GroupContaining(a netip.Addr) (group *Group, r Range, found bool) {
	for _, v := range c {
		if !v.IsReady() {
			continue
		}
		in, ok := v.Group.RangeContaining(a)
		switch {
		case ok && !v.Group.IsExternal():
			return &v.Group, in, true
		case ok && (!found || v.Group.Name < group.Name):
			group, r, found = &v.Group, in, true
		}
	}
	return group, r, found
}

// GroupContainingPreferring is GroupContaining, but prefers the group of a name.
func (c Catalog) GroupContainingPreferring(name string, a netip.Addr) (*Group, Range, bool) {
	if v := c[name]; v != nil && v.IsReady() {
		if r, ok := v.Group.RangeContaining(a); ok {
			return &v.Group, r, true
		}
	}
	return c.GroupContaining(a)
}

// PoolAddresses returns the addresses of all groups that the manager allocates from.
func (c Catalog) PoolAddresses() *netipx.IPSet { return addressesOf(c.PoolRanges()) }

// PoolRanges returns the ranges of all groups that the manager allocates from, in any order.
func (c Catalog) PoolRanges() []Range {
	var all []Range
	for _, v := range c {
		if v.IsReady() {
			all = append(all, v.Group.Ranges...)
		}
	}
	return all
}

// addressesOf returns the addresses of ranges as a set.
func addressesOf(ranges []Range) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, r := range ranges {
		b.AddRange(r.Addrs)
	}
	set, err := b.IPSet()
	if err != nil {
		return &netipx.IPSet{} // only for ranges that are not valid
	}
	return set
}
