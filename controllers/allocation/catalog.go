package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Verdict is what the manager makes of one ServiceGroup.
type Verdict struct {
	Group    Group
	Warnings []string
	// Errors is why the group cannot be allocated from. A group can be
	// unsupported without an error.
	Errors field.ErrorList
	// Reason is v1.ReasonAccepted if the group can be allocated from, else why
	// not.
	Reason  string
	Message string
}

// Ready reports whether the group can be allocated from.
func (v *Verdict) Ready() bool { return v.Reason == v1.ReasonAccepted }

// Catalog is all ServiceGroups of the manager's namespace with the verdict on
// each, by name.
type Catalog map[string]*Verdict

// NewCatalog parses groups. Those of other namespaces than namespace are left
// out. Of groups that overlap, the oldest (then the first by name) is accepted.
func NewCatalog(groups []v1.ServiceGroup, namespace string) Catalog {
	catalog, _ := newCatalog(groups, namespace)
	return catalog
}

func newCatalog(groups []v1.ServiceGroup, namespace string) (Catalog, index) {
	var own []*v1.ServiceGroup
	for i := range groups {
		if groups[i].Namespace == namespace {
			own = append(own, &groups[i])
		}
	}
	slices.SortFunc(own, func(a, b *v1.ServiceGroup) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	catalog, accepted := Catalog{}, index{}
	for _, sg := range own {
		v := accepted.judge(sg)
		if catalog[sg.Name] = v; v.Ready() {
			accepted = accepted.with(&v.Group)
		}
	}
	return catalog, accepted
}

// index is the ranges of groups that have been accepted, by their addresses. No
// two have an address in common.
type index []indexed

type indexed struct {
	r     *Range
	group string
}

func byAddress(a, b indexed) int { return a.r.Addrs.From().Compare(b.r.Addrs.From()) }

// with is the index with the ranges of one more group.
func (x index) with(group *Group) index {
	more := make(index, len(group.Ranges))
	for i := range group.Ranges {
		more[i] = indexed{&group.Ranges[i], group.Name}
	}
	slices.SortFunc(more, byAddress)
	merged := make(index, 0, len(x)+len(more))
	for len(x) > 0 && len(more) > 0 {
		first := &x
		if byAddress(more[0], x[0]) < 0 {
			first = &more
		}
		merged, *first = append(merged, (*first)[0]), (*first)[1:]
	}
	return append(append(merged, x...), more...)
}

// overlap looks for a group, first by name, that has addresses in common with r.
func (x index) overlap(r Range) (name string, theirs Range, found bool) {
	start, _ := slices.BinarySearchFunc(x, r.Addrs.From(), func(i indexed, from netip.Addr) int { return i.r.Addrs.To().Compare(from) })
	for _, i := range x[start:] {
		if r.Addrs.To().Less(i.r.Addrs.From()) {
			break
		}
		if !found || i.group < name {
			name, theirs, found = i.group, *i.r, true
		}
	}
	return name, theirs, found
}

// judge parses one group and compares it with those accepted before.
func (x index) judge(sg *v1.ServiceGroup) *Verdict {
	group, warnings, errs := ParseGroup(sg)
	v := &Verdict{Group: group, Warnings: warnings, Reason: v1.ReasonAccepted, Message: count(len(group.Ranges), "range")}
	if len(errs) > 0 {
		return v.refuse(v1.ReasonInvalid, errs)
	}
	if group.Type == v1.PoolTypeNetbox {
		v.Reason, v.Message = v1.ReasonUnsupported, "spec.netbox: addresses from NetBox are not served yet"
		return v
	}
	for _, r := range group.Ranges {
		if other, theirs, overlaps := x.overlap(r); overlaps {
			errs = append(errs, field.Invalid(r.Path, r.Written,
				fmt.Sprintf("range %s overlaps range %s of ServiceGroup %s, which has these addresses already", r, theirs, other)))
		}
	}
	if len(errs) > 0 {
		return v.refuse(v1.ReasonOverlap, errs)
	}
	return v
}

func (v *Verdict) refuse(reason string, errs field.ErrorList) *Verdict {
	v.Reason, v.Errors, v.Message = reason, errs, errs.ToAggregate().Error()
	return v
}

// OutOfScope is the verdict on a group in another namespace than the one where
// groups count.
func OutOfScope(sg *v1.ServiceGroup, namespace string) *Verdict {
	group, warnings, errs := ParseGroup(sg)
	v := &Verdict{Group: group, Warnings: warnings}
	return v.refuse(v1.ReasonOutOfScope, append(field.ErrorList{field.Invalid(field.NewPath("metadata", "namespace"), sg.Namespace,
		fmt.Sprintf("only ServiceGroups in namespace %s count: move it there", namespace))}, errs...))
}

// GroupOf returns the accepted group, and its range, that contain a.
func (c Catalog) GroupOf(a netip.Addr) (*Group, Range, bool) {
	for _, v := range c {
		if !v.Ready() {
			continue
		}
		if r, ok := v.Group.RangeOf(a); ok {
			return &v.Group, r, true
		}
	}
	return nil, Range{}, false
}
