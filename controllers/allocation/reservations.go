package allocation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Reservations are the addresses of a group that are kept for one Service each, by
// namespace/name.
type Reservations map[netip.Addr]string

// addressesFor returns the addresses that are kept for a Service, in ascending order.
func (r Reservations) addressesFor(service string) []netip.Addr {
	var addrs []netip.Addr
	for a, owner := range r {
		if owner == service {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// areKeptFrom reports whether an address is kept for another Service than service.
func (r Reservations) areKeptFrom(service string, a netip.Addr) bool {
	owner := r[a]
	return owner != "" && owner != service
}

// countUnused counts the reserved addresses of a range that no Service has.
func (r Reservations) countUnused(in Range, used *InUse) int64 {
	n := int64(0)
	for a := range r {
		if in.Addrs.Contains(a) && len(used.ServicesWith(a)) == 0 {
			n++
		}
	}
	return n
}

// parseReservations parses the reservations of a group whose ranges are parsed. If a range
// is not valid, it does not matter in which range an address is.
func parseReservations(
	list []v1.Reservation, group *Group, hasAllRanges bool, path *field.Path,
) (reservations Reservations, errs field.ErrorList) {
	if len(list) == 0 {
		return nil, nil
	}
	if group.IsExternal() {
		return nil, field.ErrorList{field.Forbidden(path, "NetBox allocates the addresses of the group: reserve them there")}
	}
	reservations = Reservations{}
	for i, r := range list {
		at := path.Index(i)
		if err := checkServiceName(r.Service); err != "" {
			errs = append(errs, field.Invalid(at.Child("service"), r.Service, err))
		}
		a, err := parseAddress(r.Address)
		if err != nil {
			errs = append(errs, field.Invalid(at.Child("address"), r.Address, err.Error()))
			continue
		}
		in, isInGroup := group.RangeContaining(a)
		why := ""
		switch {
		case reservations[a] != "":
			why = fmt.Sprintf("is reserved for Service %s already", reservations[a])
		case hasAllRanges && !isInGroup:
			why = "is in no pool of the group: add it to one, or remove the reservation"
		case isInGroup && !in.subnetAllows(a):
			why = in.whyNotAllocatable(a)
		}
		if why != "" {
			errs = append(errs, field.Invalid(at.Child("address"), r.Address, why))
		}
		if reservations[a] == "" {
			reservations[a] = r.Service
		}
	}
	return reservations, errs
}

// checkServiceName says why a text is not the namespace and name of a Service, or returns
// an empty text.
func checkServiceName(text string) string {
	namespace, name, _ := strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return "must be the namespace and the name of a Service, such as team-a/web"
	}
	return ""
}

// reservationsWith returns the reservations of the group that contains an address; nil if none does.
func (in *Inputs) reservationsWith(a netip.Addr) Reservations {
	group, _, isPooled := in.Catalog.GroupContaining(a)
	if !isPooled {
		return nil
	}
	return group.Reservations
}

// isKeptFrom reports whether an address is kept for another Service than s.
func (in *Inputs) isKeptFrom(s *Service, a netip.Addr) bool {
	return in.reservationsWith(a).areKeptFrom(s.String(), a)
}

// reservedForText names the Service that an address is kept for, to the users of the Service's
// namespace.
func (d *decision) reservedForText(a netip.Addr) string {
	namespace, name, _ := strings.Cut(d.reservationsWith(a)[a], "/")
	return NameFor(d.Namespace, types.NamespacedName{Namespace: namespace, Name: name})
}

// refuseReserved says that an address is kept for another Service, or returns nil.
func (d *decision) refuseReserved(a netip.Addr) *refusal {
	if !d.isKeptFrom(&d.Service, a) {
		return nil
	}
	return refuse(
		v1.ReasonAddressInUse, "%s is reserved for %s: no other Service gets it, and none shares it", a, d.reservedForText(a),
	)
}

// reservedAddress returns the lowest address of a group that is kept for the Service, that
// isWanted, and that neither a node nor another Service has. Another controller may have written such an
// address into a Service of PureLB that may not have it: that Service does not count.
func (d *decision) reservedAddress(group *Group, isWanted func(netip.Addr) bool) (netip.Addr, bool) {
	for _, a := range group.Reservations.addressesFor(d.String()) {
		_, isOfNode := d.NodeAddresses[a]
		isInUse := slices.ContainsFunc(d.otherServicesWith(a), func(s *Service) bool {
			return !s.IsOurs || d.ownsAddress(s, a)
		})
		if isWanted(a) && !isOfNode && !isInUse {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// groupOfReservation returns the first group, by name, that keeps a free address for the
// Service, or an empty text.
func (d *decision) groupOfReservation() string {
	isOfFamilies := func(a netip.Addr) bool { return slices.Contains(d.Families, FamilyOf(a)) }
	for _, name := range slices.Sorted(maps.Keys(d.Catalog)) {
		v := d.Catalog[name]
		if len(v.Group.Reservations) == 0 || !v.IsReady() || !d.mayUse(&v.Group, d.Namespace) {
			continue
		}
		if _, ok := d.reservedAddress(&v.Group, isOfFamilies); ok {
			return name
		}
	}
	return ""
}

// warnOfReservedAddresses says which of the addresses that the Service keeps are reserved
// for another one.
func (d *decision) warnOfReservedAddresses(kept []netip.Addr) {
	for _, a := range kept {
		if d.isKeptFrom(&d.Service, a) {
			d.warn("%s is reserved for %s: this one keeps it until it asks for another one", a, d.reservedForText(a))
		}
	}
}

// reservationWarnings says which reservations of a group have no effect, and why.
func (in *Inputs) reservationWarnings(group *Group) []string {
	var warnings []string
	for _, a := range slices.SortedFunc(maps.Keys(group.Reservations), netip.Addr.Compare) {
		owner := group.Reservations[a]
		namespace, _, _ := strings.Cut(owner, "/")
		_, exists := in.NamespaceLabels[namespace]
		if holder := in.InUse.otherServiceWith(a, owner); holder != nil {
			warnings = append(warnings, fmt.Sprintf("spec.reservations: %s, reserved for Service %s, is in use by Service %s, "+
				"which keeps it until it goes or asks for another one", a, owner, holder))
		}
		if exists && !in.mayUse(group, namespace) {
			warnings = append(warnings, fmt.Sprintf("spec.reservations: %s is reserved for Service %s, "+
				"whose namespace may not use the group: spec.allowedNamespaces leaves it out", a, owner))
		}
	}
	return warnings
}

// refuseReservationsInUse refuses the reservations of a group that it did not have before,
// if there was one, and whose addresses other Services have.
func (a *Admission) refuseReservationsInUse(before, after *v1.ServiceGroup) (errs field.ErrorList) {
	if a.InUse == nil {
		return nil
	}
	for i, r := range after.Spec.Reservations {
		addr, err := parseAddress(r.Address)
		if err != nil || before != nil && slices.Contains(before.Spec.Reservations, r) {
			continue
		}
		if holder := a.InUse.otherServiceWith(addr, r.Service); holder != nil {
			at := field.NewPath("spec", "reservations").Index(i).Child("address")
			errs = append(errs, field.Invalid(at, r.Address, fmt.Sprintf(
				"is in use by Service %s: reserve another address, or let that Service ask for another one first", holder)))
		}
	}
	return errs
}
