package allocation

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Two rules decide about shared addresses.
//
// A Service may join those that have an address in use (refuseToJoin) if its sharing key
// is that of each of them, it has no port in common with any, the address's group
// lets their namespaces share, and they are fewer than MaxSharers. Services of two namespaces
// share only if both have externalTrafficPolicy Cluster: with Local, the endpoints of each
// would decide to which nodes the traffic of the other goes.
//
// A Service that has an address already may stay (mayStay) beside every Service that was
// given the address by the same key, whatever becomes of keys and ports. Of two that
// may neither share nor stay, one has to give the address up (losesAddressTo): the one that
// departs from the key and the ports in its record or has policy Local, else the younger.

// MaxSharers is how many Services can have one address.
const MaxSharers = 100

// otherServicesWith returns the other Services that have an address in use.
func (d *decision) otherServicesWith(a netip.Addr) []*Service {
	all := d.InUse.ServicesWith(a)
	if !slices.ContainsFunc(all, d.isSelf) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), d.isSelf)
}

// isSelf reports whether s is the Service of the request.
func (d *decision) isSelf(s *Service) bool { return s.Name == d.Name && s.Namespace == d.Namespace }

// refuseToJoin says why the Service cannot come to share an address with those that have
// it in use, or returns nil.
func (d *decision) refuseToJoin(a netip.Addr) *refusal {
	if refused := d.refuseReserved(a); refused != nil {
		return refused
	}
	others := d.otherServicesWith(a)
	for _, other := range others {
		switch {
		case !other.IsOurs || !d.sharesByOldKey(other):
		case other.Namespace != d.Namespace:
			return refuse(
				v1.ReasonSharingRefused, "%s is in use by %s, which does not share it by the key of this one yet", a,
				unnamedService,
			)
		default:
			return refuse(
				v1.ReasonSharingRefused, "%s is in use by Service %s, which still shares what it has by the key %q", a, other,
				other.Allocated.Key,
			)
		}
	}
	if refused := d.refuseToShareWithAll(a); refused != nil {
		return refused
	}
	if len(others) >= MaxSharers {
		return refuse(
			v1.ReasonSharingRefused, "%s is shared by %d Services already: no more than %d can", a, len(others), MaxSharers,
		)
	}
	return nil
}

// refuseToShareWithAll says why the Service may not share an address with one of those
// that have it in use, or returns nil.
func (d *decision) refuseToShareWithAll(a netip.Addr) *refusal {
	for _, other := range d.otherServicesWith(a) {
		if refused := d.refuseToShare(a, other); refused != nil {
			return refused
		}
	}
	return nil
}

// sharesByOldKey reports whether a Service shares what it has by another key than the one
// in its annotation: see sharingTermsFor. A Service that shares with nobody can follow its
// new key at once.
func (d *decision) sharesByOldKey(s *Service) bool {
	if s.Allocated.Key == "" || s.Allocated.Key == s.SharingKey {
		return false
	}
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool {
		return slices.ContainsFunc(d.otherServicesWith(a), func(other *Service) bool { return other != s })
	})
}

// refuseToShare says why the Service may not share an address with another Service that
// has it in use, or returns nil.
func (d *decision) refuseToShare(a netip.Addr, other *Service) *refusal {
	if refused := d.refuseKeysAndPorts(a, other); refused != nil {
		return refused
	}
	if group, _, _ := d.Catalog.GroupContainingPreferring(other.Allocated.Group, a); !d.canShareByNamespace(group, other) {
		return refuse(
			v1.ReasonSharingRefused, "%s is in use by %s, and its ServiceGroup does not share across namespaces", a,
			other.nameFor(d.Namespace),
		)
	}
	return nil
}

// canShareByNamespace reports whether the namespaces of the Service and of another one
// let them share an address of a group, or of no group if that is nil.
func (d *decision) canShareByNamespace(group *Group, other *Service) bool {
	return other.Namespace == d.Namespace || group != nil && group.ShareAcrossNamespaces
}

// refuseKeysAndPorts says why the sharing keys and ports of two Services do not let them
// share an address, or returns nil. The Service learns no key of another namespace.
func (d *decision) refuseKeysAndPorts(a netip.Addr, other *Service) *refusal {
	isOfOtherNamespace, name := other.Namespace != d.Namespace, other.nameFor(d.Namespace)
	switch {
	case d.SharingKey == "":
		return refuse(v1.ReasonAddressInUse, "%s is in use by %s", a, name)
	case other.SharingKey != d.SharingKey && isOfOtherNamespace:
		return refuse(v1.ReasonSharingRefused, "%s is in use by %s, which does not share it by the key of this one", a, name)
	case other.SharingKey == "":
		return refuse(
			v1.ReasonSharingRefused, "%s is in use by %s, which does not share it: it has no annotation %s", a, name,
			v1.AnnotationAllowSharedIP,
		)
	case other.SharingKey != d.SharingKey:
		return refuse(
			v1.ReasonSharingRefused, "%s is in use by %s, which shares it by the key %q, not %q", a, name, other.SharingKey,
			d.SharingKey,
		)
	case isOfOtherNamespace && max(len(d.Ports), len(other.Ports)) > MaxRecordedPorts:
		return refuse(
			v1.ReasonSharingRefused, "%s cannot be shared with %s: one of the two has more than %d ports", a, name,
			MaxRecordedPorts,
		)
	case isOfOtherNamespace && (d.HasPolicyLocal || other.HasPolicyLocal):
		return refuse(
			v1.ReasonSharingRefused, "%s cannot be shared with %s: one of the two has externalTrafficPolicy Local", a, name,
		)
	}
	if port := d.Ports.portInCommon(other.Ports); port != "" {
		return refuse(v1.ReasonPortConflict, "%s cannot be shared with %s: both have port %s", a, name, port)
	}
	return nil
}

// mayStay reports whether the Service and another one both keep an address, although
// they may not share it now, because they were given it by the same sharing key. In
// different namespaces that ends with their agreement on keys and ports: otherwise one
// of them could take the other's traffic by an edit of its own.
func (d *decision) mayStay(a netip.Addr, other *Service) bool {
	if other.Allocated.Key == "" || other.Allocated.Key != d.Allocated.Key {
		return false
	}
	return other.Namespace == d.Namespace || d.refuseKeysAndPorts(a, other) == nil
}

// otherComesBefore reports whether another Service keeps an address rather than this one, if
// only one of them can.
func (d *decision) otherComesBefore(a netip.Addr, other *Service) bool {
	return compareForAddress(a)(other, &d.Service) < 0
}

// losesAddressTo reports whether the Service has to give an address up to another one.
func (d *decision) losesAddressTo(a netip.Addr, other *Service) bool {
	keepsIt := d.otherComesBefore(a, other) || !other.IsOurs && !d.hasAllocated(a)
	return keepsIt && !d.mayStay(a, other) && d.refuseToShare(a, other) != nil
}

// findOwnAddresses returns the addresses of the Service that no other Service keeps,
// without repetitions, and those that it loses. A Service that was allocated nothing has
// the addresses that it shows and may adopt.
func (d *decision) findOwnAddresses() (own []netip.Addr, lost []LostAddress) {
	for _, a := range union(d.Allocated.Addresses, d.Addresses) {
		switch keeper := d.keeperOf(a); {
		case keeper != nil:
			lost = append(lost, LostAddress{a, keeper.String(), keeper.Namespace != d.Namespace})
		case d.ownsAddress(&d.Service, a):
			own = append(own, a)
		}
	}
	return own, lost
}

// keeperOf returns the other Service to which this one has to give an address up, or nil.
func (d *decision) keeperOf(a netip.Addr) *Service {
	others := d.otherServicesWith(a)
	for _, other := range others {
		if d.losesAddressTo(a, other) {
			return other
		}
	}
	if !d.hasAllocated(a) && len(others) >= MaxSharers {
		return others[0]
	}
	return nil
}

// ownsAddress reports whether an address is a Service's own: it is allocated to the
// Service or, if nothing is, the Service may adopt it.
func (d *decision) ownsAddress(s *Service, a netip.Addr) bool {
	return s.hasAllocated(a) || s.IsOurs && len(s.Allocated.Addresses) == 0 && d.isAdoptable(s, a)
}

// isAdoptable reports whether an address that another controller has written into a
// Service could have been allocated to it.
func (d *decision) isAdoptable(s *Service, a netip.Addr) bool {
	_, isReserved := d.NodeAddresses[a]
	group, r, isPooled := d.Catalog.GroupContaining(a)
	return isPooled && !isReserved && r.subnetAllows(a) &&
		d.mayUse(group, s.Namespace) && !group.Reservations.areKeptFrom(s.String(), a)
}

// addressOfKey returns the address of a slot that the sharing key stands for, and the
// Service that decides so: of the other Services with the key, the first that has one.
func (d *decision) addressOfKey(s slot) (netip.Addr, *Service) {
	if d.SharingKey == "" {
		return netip.Addr{}, nil
	}
	for _, other := range d.InUse.servicesByKey[d.SharingKey] {
		if d.isSelf(other) || !d.canShareByNamespace(d.group, other) {
			continue
		}
		for _, a := range other.Addresses {
			if d.isOfSlot(s, other, a) {
				return a, other
			}
		}
	}
	return netip.Addr{}, nil
}

// isOfSlot reports whether an address is another Service's own and good for a slot.
func (d *decision) isOfSlot(s slot, other *Service, a netip.Addr) bool {
	return FamilyOf(a) == s.family && d.ownsAddress(other, a) &&
		(s.contains(a) || !s.isOfOneRange && d.isOrphan(a, other.Allocated.Group))
}

// sharingConflict says what is wrong with an address that the Service keeps: another
// Service keeps it, too, and they may no longer share it. Otherwise it returns nil.
func (d *decision) sharingConflict(a netip.Addr) *refusal {
	for _, other := range d.otherServicesWith(a) {
		refused := d.refuseToShare(a, other)
		if refused == nil || other.IsOurs && !d.mayStay(a, other) && !d.otherComesBefore(a, other) {
			continue // they share, or the other one has to yield
		}
		if refused.reason == v1.ReasonAddressInUse {
			refused.reason = v1.ReasonSharingRefused
			refused.message += fmt.Sprintf(
				", too, and this one no longer shares it: give both the same annotation %s, or ask for another address",
				v1.AnnotationAllowSharedIP,
			)
		}
		return refused
	}
	return nil
}

// conflictInSlot says what is wrong with an address that the Service keeps for a slot:
// there is a sharing conflict, or the sharing key stands for another address. Otherwise
// it returns nil.
func (d *decision) conflictInSlot(s slot, a netip.Addr) *refusal {
	if refused := d.sharingConflict(a); refused != nil {
		return refused
	}
	keyAddress, keyService := d.addressOfKey(s)
	if keyService == nil || slices.Contains(keyService.Addresses, a) || compareForKey(&d.Service, keyService) < 0 {
		return nil
	}
	return refuse(v1.ReasonSharingRefused,
		"the sharing key %q stands for %s, which %s has, but this one has %s, and keeps it: to share, ask for %s by "+
			"annotation %s",
		d.SharingKey, keyAddress, keyService.nameFor(d.Namespace), a, keyAddress, v1.AnnotationAddresses)
}
