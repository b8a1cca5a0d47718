package allocation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// AdmitCreate checks a ServiceGroup that is about to be created.
func (a *Admission) AdmitCreate(sg *v1.ServiceGroup) (warnings []string, errs field.ErrorList) {
	v := a.judge(nil, sg)
	errs = slices.Concat(v.Errors, a.refuseReservationsInUse(nil, sg))
	return a.warningsBeside(v, errs), errs
}

// AdmitUpdate checks a change of a ServiceGroup. A change that leaves the specification as
// it is is never refused, nor one that leaves the group with addresses of another group that it had
// before. It needs InUse.
func (a *Admission) AdmitUpdate(before, after *v1.ServiceGroup) (warnings []string, errs field.ErrorList) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	v := a.judge(before, after)
	if v.Reason == v1.ReasonOutOfScope {
		return []string{v.Errors[0].Error()}, nil // the group has no effect, whatever it says
	}
	errs = slices.Concat(v.Errors, a.refuseReservationsInUse(before, after))
	warnings = a.warningsBeside(v, errs)
	if len(errs) > 0 {
		return warnings, errs
	}
	if PolicyLocalOf(before) == v1.PolicyLocalAllow && v.Group.PolicyLocal == v1.PolicyLocalOverride {
		warnings = append(warnings, a.overrideWarnings(before)...)
	}
	stranded := a.strandedBy(before, after)
	changedType := ""
	if what := describeReplacement(before, &v.Group); what != "" {
		used := a.countAllocated(before, func(netip.Addr) bool { return true })
		if used.addressCount > 0 {
			stranded, changedType = used, what
		}
	}
	switch {
	case stranded.addressCount == 0:
	case allowsOrphans(after):
		warnings = append(warnings, "spec: "+stranded.warningText(changedType))
	default:
		errs = field.ErrorList{field.Forbidden(field.NewPath("spec"), stranded.refusalText(changedType))}
	}
	return warnings, errs
}

// AdmitDelete checks the deletion of a ServiceGroup. refusal says why it must not be
// deleted, or is empty. AdmitDelete needs InUse.
func (a *Admission) AdmitDelete(sg *v1.ServiceGroup) (warnings []string, refusal string) {
	if sg.Namespace != a.Namespace || !sg.DeletionTimestamp.IsZero() {
		return nil, ""
	}
	stranded := a.strandedBy(sg, nil)
	switch {
	case stranded.addressCount == 0:
		return nil, ""
	case allowsOrphans(sg):
		return []string{stranded.warningText("")}, ""
	default:
		return nil, stranded.refusalText("")
	}
}

// ServicesWithPolicyLocal returns the Services with externalTrafficPolicy Local that have addresses of a
// group, sorted.
func (a *Admission) ServicesWithPolicyLocal(group string) []string {
	return a.InUse.namesWhere(func(s *Service) bool { return s.Allocated.Group == group && s.HasPolicyLocal })
}

// overrideWarnings names the Services that keep externalTrafficPolicy Local only because
// their ServiceGroup allows it.
func (a *Admission) overrideWarnings(sg *v1.ServiceGroup) []string {
	services := a.InUse.namesWhere(func(s *Service) bool {
		return s.Allocated.Group == sg.Name && s.IsPolicyLocalUpToGroup
	})
	if len(services) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("spec.policyLocal: externalTrafficPolicy Local of %s (%s) is set to Cluster where an "+
		"address is Local or shared",
		countOf(len(services), "Service"), textlimit.List(services, maxNamedInMessage, ", "))}
}

func allowsOrphans(sg *v1.ServiceGroup) bool {
	return sg.Annotations[v1.AnnotationAllowOrphans] == "true"
}

// describeReplacement says that a change of a group gives its addresses another origin, or
// returns an empty text.
func describeReplacement(before *v1.ServiceGroup, after *Group) string {
	group, _, _ := ParseGroup(before)
	switch {
	case group.Type == "":
		return ""
	case group.Type != after.Type:
		return fmt.Sprintf("changes the group from %s to %s", group.Type, after.Type)
	case group.IsExternal() && group.Netbox.URL != "" && group.Netbox.URL != after.Netbox.URL:
		return fmt.Sprintf("changes the NetBox from %s to %s", group.Netbox.URL, after.Netbox.URL)
	case group.IsExternal() && group.Netbox.describeSource() != after.Netbox.describeSource():
		return fmt.Sprintf("changes the group from %s to %s", group.Netbox.describeSource(), after.Netbox.describeSource())
	}
	return ""
}

// judge returns the verdict that a group would get if all others were older, and if only the addresses
// that it gains beside those of before, which may be nil, could be theirs already: of the
// others it is warned.
func (a *Admission) judge(before, sg *v1.ServiceGroup) *Verdict {
	if sg.Namespace != a.Namespace {
		return OutOfScopeVerdict(sg, a.Namespace)
	}
	_, accepted := newCatalog(a.groupsExcept(sg.Name), a.Namespace)
	v := accepted.judge(sg)
	if v.Reason != v1.ReasonOverlap || before == nil {
		return v
	}
	group, _, _ := ParseGroup(before)
	had := addressesOf(group.Ranges)
	isGained := map[string]bool{} // by field
	for _, r := range v.Group.Ranges {
		if accepted.gainsOverlap(&v.Group, r, had) {
			isGained[r.Path.String()] = true
		}
	}
	v.Errors = slices.DeleteFunc(v.Errors, func(e *field.Error) bool {
		if !isGained[e.Field] {
			v.Warnings = append(v.Warnings, fmt.Sprintf("%s: %s: the group had them too before this change", e.Field, e.Detail))
		}
		return !isGained[e.Field]
	})
	return v
}

func (a *Admission) groupsExcept(name string) []v1.ServiceGroup {
	return slices.DeleteFunc(slices.Clone(a.Groups), func(sg v1.ServiceGroup) bool { return sg.Name == name })
}

// warningsBeside returns the warnings that come with a verdict beside some errors. With errors there are
// none of what would become of Services, as nothing will.
func (a *Admission) warningsBeside(v *Verdict, errs field.ErrorList) []string {
	if len(errs) > 0 {
		return append(slices.Clone(v.Warnings), NodeAddressWarnings(&v.Group, a.NodeAddresses)...)
	}
	return slices.Concat(v.Warnings, a.GroupWarnings(&v.Group), a.subnetWarnings(&v.Group))
}

// GroupWarnings says what the author of a group should know of it in this cluster: which of its
// addresses no Service gets and, if InUse is known, which reservations have no effect and
// which Services have addresses of it that they could not get any more.
func (in *Inputs) GroupWarnings(group *Group) []string {
	warnings := NodeAddressWarnings(group, in.NodeAddresses)
	if in.InUse == nil {
		return warnings
	}
	return slices.Concat(warnings, in.namespaceWarnings(group), in.reservationWarnings(group))
}

// allocatedCount counts addresses of a ServiceGroup that Services have been allocated.
type allocatedCount struct {
	addressCount int
	serviceNames []string // namespace/name
}

func (s allocatedCount) String() string {
	return DescribeInUse(s.addressCount, s.serviceNames)
}

func (s allocatedCount) refusalText(changedType string) string {
	cure := fmt.Sprintf(
		"annotate the ServiceGroup with %s=true, and they stay as they are until their Services go",
		v1.AnnotationAllowOrphans,
	)
	if changedType != "" {
		return fmt.Sprintf("%s with %s: make another ServiceGroup instead, or %s", changedType, s, cure)
	}
	return fmt.Sprintf("leaves %s outside every pool: keep them in one, or %s", s, cure)
}

func (s allocatedCount) warningText(changedType string) string {
	if changedType != "" {
		return fmt.Sprintf("%s with %s: they stay as they are until their Services go", changedType, s)
	}
	return fmt.Sprintf("leaves %s outside every pool: they stay as they are until their Services go", s)
}

// strandedBy counts the allocated addresses of a group that would be in no pool any more
// if the group were changed to after or, where after is nil, deleted.
func (a *Admission) strandedBy(before, after *v1.ServiceGroup) allocatedCount {
	groups := a.groupsExcept(before.Name)
	if after != nil {
		groups = append(groups, *after)
	}
	remaining := NewCatalog(groups, a.Namespace).PoolAddresses()
	return a.countAllocated(before, func(addr netip.Addr) bool { return !remaining.Contains(addr) })
}

// countAllocated counts the allocated addresses of a group for which counts is true.
func (a *Admission) countAllocated(sg *v1.ServiceGroup, counts func(netip.Addr) bool) allocatedCount {
	// A group that is not valid may have been valid before, and its addresses may be in
	// use since then: every range that can be parsed counts.
	group, _, _ := ParseGroup(sg)
	inGroup := addressesOf(group.Ranges)
	return a.InUse.countAllocatedWhere(func(s *Service, addr netip.Addr) bool {
		// What an external system has allocated counts wherever it was last seen.
		isOfGroup := inGroup.Contains(addr) ||
			group.IsExternal() && s.Allocated.Group == sg.Name && s.Allocated.Type == group.Type
		return isOfGroup && counts(addr)
	})
}

// countAllocatedWhere counts the addresses that are allocated to Services and for which counts is
// true.
func (u *InUse) countAllocatedWhere(counts func(*Service, netip.Addr) bool) allocatedCount {
	addresses, services := map[netip.Addr]bool{}, map[string]bool{}
	for name, s := range u.serviceByName {
		for _, addr := range s.Allocated.Addresses {
			if counts(s, addr) {
				addresses[addr], services[name] = true, true
			}
		}
	}
	return allocatedCount{len(addresses), slices.Sorted(maps.Keys(services))}
}
