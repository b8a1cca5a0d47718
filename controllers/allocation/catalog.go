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
	var own []*v1.ServiceGroup
	for i := range groups {
		if groups[i].Namespace == namespace {
			own = append(own, &groups[i])
		}
	}
	slices.SortFunc(own, func(a, b *v1.ServiceGroup) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	catalog := Catalog{}
	for _, sg := range own {
		catalog[sg.Name] = catalog.judge(sg)
	}
	return catalog
}

// judge parses one group and compares it with those accepted before.
func (c Catalog) judge(sg *v1.ServiceGroup) *Verdict {
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
		if other, theirs, overlaps := c.overlap(r); overlaps {
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

// overlap looks for an accepted group, first by name, that has addresses in
// common with r.
func (c Catalog) overlap(r Range) (name string, theirs Range, found bool) {
	for other, v := range c {
		if t, overlaps := v.Group.overlap(r); overlaps && v.Ready() && (!found || other < name) {
			name, theirs, found = other, t, true
		}
	}
	return name, theirs, found
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
