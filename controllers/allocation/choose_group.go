package allocation

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// chooseGroup finds out which addresses the Service asks for, and from which group they
// are to come: the group of the requested addresses, else the group that the Service
// names, else that of the addresses it has, else the default one.
func (d *decision) chooseGroup() *refusal {
	d.groupName = cmp.Or(d.RequestedGroup, d.presentGroup())
	if d.TooLong != "" {
		return refuse(v1.ReasonInvalid, "%s", d.TooLong)
	}
	byFamily, errs := parseRequestedAddresses(d.RequestedAddresses, d.RequestedAddressesIn, d.Families)
	if len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, err := range errs {
			texts[i] = err.Error()
		}
		return refuse(v1.ReasonInvalid, "%s", strings.Join(texts, "; "))
	}
	d.requestedByFamily = byFamily
	if no := d.chooseGroupOfRequestedAddresses(); no != nil {
		return no
	}
	verdict, exists := d.Catalog[d.groupName]
	switch {
	case !exists:
		return refuse(v1.ReasonNoSuchGroup, "there is no ServiceGroup %s", d.groupName)
	case verdict.Reason == v1.ReasonIPAMUnavailable, verdict.Reason == v1.ReasonIPAMRefused,
		verdict.Reason == v1.ReasonOtherInstallation:
		return refuse(verdict.Reason, "%s", verdict.Message)
	case !verdict.Ready():
		return refuse(v1.ReasonGroupNotReady, "ServiceGroup %s is not ready: %s", d.groupName, verdict.Message)
	}
	d.group = &verdict.Group
	return nil
}

// presentGroup returns the group of the addresses that the Service has or may adopt. If
// there are none, it returns the group for Services that name none.
func (d *decision) presentGroup() string {
	if len(d.ownAddresses) > 0 && d.Allocated.Group != "" {
		return d.Allocated.Group
	}
	for _, a := range d.ownAddresses { // to be adopted
		if group, _, isPooled := d.Catalog.GroupContaining(a); isPooled {
			return group.Name
		}
	}
	return v1.DefaultServiceGroup
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
		if group, r, isPooled := d.Catalog.GroupContainingFor(cmp.Or(d.RequestedGroup, d.Allocated.Group), a); isPooled {
			name = group.Name
			if no := d.refuseUnallocatable(a, r); no != nil {
				d.groupName = name
				return no
			}
		} else if !slices.Contains(d.ownAddresses, a) || name == "" {
			return refuse(v1.ReasonAddressOutsidePool, "%s: %s is in no pool of a ServiceGroup that is ready", d.RequestedAddressesIn, a)
		}
		if chosen != "" && chosen != name {
			return refuse(v1.ReasonInvalid, "%s: %s is of ServiceGroup %s, and %s of %s: ask for addresses of one", d.RequestedAddressesIn, first, chosen, a, name)
		}
		chosen, first = name, a
	}
	if chosen == "" {
		return nil
	}
	if d.RequestedGroup != "" && d.RequestedGroup != chosen {
		d.warning = fmt.Sprintf("annotation %s asks for ServiceGroup %s, but %s is of %s, and that decides", v1.AnnotationServiceGroup, d.RequestedGroup, first, chosen)
	}
	d.groupName = chosen
	return nil
}

// refuseUnallocatable says why no Service gets address a of range r, or returns nil. A
// Service to which the address is allocated already may keep it, and share it.
func (d *decision) refuseUnallocatable(a netip.Addr, r Range) *refusal {
	if d.hasAllocated(a) || slices.ContainsFunc(d.otherServicesWith(a), func(s *Service) bool { return s.hasAllocated(a) }) {
		return nil
	}
	if what, isReserved := d.Reserved[a]; isReserved {
		return refuse(v1.ReasonAddressInUse, "%s: %s is %s: it is never allocated", d.RequestedAddressesIn, a, what)
	}
	if !r.canAllocate(a) {
		return refuse(v1.ReasonAddressOutsidePool, "%s: %s", d.RequestedAddressesIn, r.whyNotAllocatable(a))
	}
	return nil
}
