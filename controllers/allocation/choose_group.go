package allocation

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/order"
)

// chooseGroup finds out which addresses the Service asks for, and from which group they
// are to come: the group of the requested addresses, else the group that the Service
// names, else that of the addresses it has, else the one that keeps an address for it, else
// one for Services that name none.
func (d *decision) chooseGroup() *refusal {
	if d.groupName = d.RequestedGroup; d.groupName == "" {
		d.groupName = d.chooseImpliedGroup()
	}
	if d.TooLongMessage != "" {
		return refuse(v1.ReasonInvalid, "%s", d.TooLongMessage)
	}
	byFamily, why := d.AddressesByFamily()
	if why != "" {
		return refuse(v1.ReasonInvalid, "%s", why)
	}
	d.requestedByFamily = byFamily
	if refused := d.chooseGroupOfRequestedAddresses(); refused != nil {
		return refused
	}
	verdict, exists := d.Catalog[d.groupName]
	if !exists {
		return refuse(v1.ReasonNoSuchGroup, "there is no ServiceGroup %s", d.groupName)
	}
	// A namespace that may not use the group learns nothing else of it.
	mayUse := d.mayUse(&verdict.Group, d.Namespace)
	switch {
	case !mayUse && !d.hasAddressesOf(d.groupName):
		return d.namespaceRefusal(d.groupName)
	case verdict.Reason == v1.ReasonIPAMUnavailable, verdict.Reason == v1.ReasonIPAMRefused,
		verdict.Reason == v1.ReasonOtherInstallation:
		return refuse(verdict.Reason, "%s", verdict.Message)
	case !verdict.IsReady():
		return refuse(v1.ReasonGroupNotReady, "ServiceGroup %s is not ready: %s", d.groupName, verdict.Message)
	case d.isAutomatic && !verdict.Group.AutoAssign:
		return refuse(v1.ReasonNotAllowed, "ServiceGroup %s is only for Services that name it (autoAssign: false): "+
			"name it, or another one, by annotation %s", d.groupName, v1.AnnotationServiceGroup)
	}
	if d.getsNothingNew = !mayUse; d.getsNothingNew {
		d.warn("ServiceGroup %s is not for namespace %s any more: the Service keeps what it has, and gets nothing else of it",
			d.groupName, d.Namespace)
	}
	d.group = &verdict.Group
	return nil
}

// chooseImpliedGroup returns the group for a Service that names none: that of the addresses that
// the Service has or may adopt, else the one that keeps an address for the Service, else an
// automatic one, which it notes in isAutomatic.
func (d *decision) chooseImpliedGroup() string {
	if len(d.ownAddresses) > 0 && d.Allocated.Group != "" {
		return cmp.Or(d.groupInsteadOfDeleted(), d.Allocated.Group)
	}
	for _, a := range d.ownAddresses { // to be adopted
		if group, _, isPooled := d.Catalog.GroupContaining(a); isPooled {
			return group.Name
		}
	}
	if name := d.groupOfReservation(); name != "" {
		return name
	}
	d.isAutomatic = true
	return d.automaticGroup()
}

// groupInsteadOfDeleted returns the group that has the addresses of the Service now, if that of its
// record has been deleted: the first ready one, by name, that contains all of them and that its
// namespace may use. It returns an empty text if there is none. Addresses that an external system
// has allocated are only ever of external groups, and others never are.
func (d *decision) groupInsteadOfDeleted() string {
	if _, exists := d.Catalog[d.Allocated.Group]; exists {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(d.Catalog)) {
		v := d.Catalog[name]
		isOutside := func(a netip.Addr) bool {
			_, isInGroup := v.Group.RangeContaining(a)
			return !isInGroup
		}
		if v.IsReady() && v.Group.IsExternal() == (d.Allocated.Type == v1.PoolTypeNetbox) &&
			d.mayUse(&v.Group, d.Namespace) && !slices.ContainsFunc(d.ownAddresses, isOutside) {
			return name
		}
	}
	return ""
}

// automaticGroup returns the group for a Service that names none: of the groups with
// autoAssign, the one in which the sharing key stands for an address, else the one of which the
// Service had an address before it was deleted, else the first that has what the Service needs,
// else the first that its namespace may use, else the first. If there are none, it returns the
// default group.
func (d *decision) automaticGroup() string {
	names := d.Catalog.automaticGroups()
	allowed := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !d.mayUse(&d.Catalog[name].Group, d.Namespace)
	})
	for _, suits := range []func(*Verdict) bool{d.hasAddressOfKeyIn, d.hasFormerAddressIn, d.canServe} {
		if i := slices.IndexFunc(allowed, func(name string) bool { return suits(d.Catalog[name]) }); i >= 0 {
			return allowed[i]
		}
	}
	return append(append(allowed, names...), v1.DefaultServiceGroup)[0]
}

// automaticGroups lists the groups with autoAssign: the default one first, the others by
// name.
func (c Catalog) automaticGroups() []string {
	var names []string
	for name, v := range c {
		if v.Group.AutoAssign {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(order.TrueFirst(a == v1.DefaultServiceGroup, b == v1.DefaultServiceGroup), cmp.Compare(a, b))
	})
	return names
}

// hasAddressOfKeyIn reports whether the sharing key stands for an address of a group.
func (d *decision) hasAddressOfKeyIn(v *Verdict) bool {
	hasOne := func(other *Service) bool {
		return slices.ContainsFunc(other.Addresses, func(a netip.Addr) bool {
			_, isInGroup := v.Group.RangeContaining(a)
			return isInGroup && d.ownsAddress(other, a)
		})
	}
	return v.IsReady() && slices.ContainsFunc(d.InUse.servicesByKey[d.SharingKey], func(other *Service) bool {
		return !d.isSelf(other) && d.canShareByNamespace(&v.Group, other) && hasOne(other)
	})
}

// canServe reports whether a group has free addresses of the families that the Service
// needs. An external group may always have them.
func (d *decision) canServe(v *Verdict) bool {
	if !v.IsReady() || v.Group.IsExternal() {
		return v.IsReady()
	}
	served := 0
	for _, family := range d.Families {
		if _, ok := d.freeAddress(&v.Group, slot{family: family, ranges: v.Group.rangesOf(family)}); ok {
			served++
		}
	}
	return served == len(d.Families) || served > 0 && d.FamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
}

// chooseGroupOfRequestedAddresses lets the requested addresses, if there are any, decide
// the group.
func (d *decision) chooseGroupOfRequestedAddresses() *refusal {
	chosen, first := "", netip.Addr{}
	for _, family := range d.Families {
		a, isRequested := d.requestedByFamily[family]
		if !isRequested {
			continue
		}
		name := d.Allocated.Group
		preferred := cmp.Or(d.RequestedGroup, d.Allocated.Group)
		if group, r, isPooled := d.Catalog.GroupContainingPreferring(preferred, a); isPooled {
			name = group.Name
			if refused := cmp.Or(d.refuseAddressOf(group, a), d.refuseUnallocatable(a, r)); refused != nil {
				d.groupName = name
				return refused
			}
		} else if !slices.Contains(d.ownAddresses, a) || name == "" {
			return refuse(
				v1.ReasonAddressOutsidePools, "%s: %s is in no pool of a ServiceGroup that is ready", d.RequestedAddressesIn, a,
			)
		}
		if chosen != "" && chosen != name {
			return refuse(
				v1.ReasonInvalid, "%s: %s is of ServiceGroup %s, and %s of %s: ask for addresses of one", d.RequestedAddressesIn,
				first, chosen, a, name,
			)
		}
		chosen, first = name, a
	}
	if chosen == "" {
		return nil
	}
	if d.RequestedGroup != "" && d.RequestedGroup != chosen {
		d.warn("annotation %s asks for ServiceGroup %s, but %s is of %s, and that decides",
			v1.AnnotationServiceGroup, d.RequestedGroup, first, chosen)
	}
	d.groupName, d.isAutomatic = chosen, false
	return nil
}

// refuseAddressOf says why the Service may not ask for an address of a group, or returns
// nil: its namespace may not use the group, or the address is kept for another Service. A
// Service to which the address is allocated already may keep it.
func (d *decision) refuseAddressOf(group *Group, a netip.Addr) *refusal {
	switch {
	case d.hasAllocated(a):
		return nil
	case !d.mayUse(group, d.Namespace):
		return d.namespaceRefusal(group.Name)
	}
	return d.refuseReserved(a)
}

// refuseUnallocatable says why no Service gets address a of range r, or returns nil. A
// Service to which the address is allocated already may keep it, and share it.
func (d *decision) refuseUnallocatable(a netip.Addr, r Range) *refusal {
	if d.hasAllocated(a) ||
		slices.ContainsFunc(d.otherServicesWith(a), func(s *Service) bool { return s.hasAllocated(a) }) {
		return nil
	}
	if what, isReserved := d.NodeAddresses[a]; isReserved {
		return refuse(v1.ReasonAddressInUse, "%s: %s is %s: it is never allocated", d.RequestedAddressesIn, a, what)
	}
	if !r.subnetAllows(a) {
		return refuse(v1.ReasonAddressOutsidePools, "%s: %s", d.RequestedAddressesIn, r.whyNotAllocatable(a))
	}
	return nil
}
