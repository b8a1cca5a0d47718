package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// slot is one address that a Service is to have.
type slot struct {
	family Family
	// ranges are where the address may come from.
	ranges []Range
	// requested is the address that the Service asks for. It is not valid if the Service
	// asks for none.
	requested netip.Addr
	// isOfOneRange says that the address has to be of the slot's only range: the Service
	// gets one of every range.
	isOfOneRange bool
}

func (s *slot) contains(a netip.Addr) bool {
	return slices.ContainsFunc(s.ranges, func(r Range) bool { return r.Addrs.Contains(a) })
}

// accepts reports whether an address of the ranges is the requested one, if there is one.
func (s *slot) accepts(a netip.Addr) bool {
	return s.contains(a) && (!s.requested.IsValid() || a == s.requested)
}

// allocateFamily finds the addresses of one family that the Service is to have. A refusal
// beside addresses says that some are missing, or what is wrong with them.
func (d *decision) allocateFamily(family Family) (addrs []netip.Addr, refused *refusal) {
	for _, s := range d.slotsOf(family) {
		a, why := d.fillSlot(s)
		refused = cmp.Or(refused, why)
		if a.IsValid() && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	for _, a := range d.ownAddresses {
		if FamilyOf(a) == family && !slices.Contains(addrs, a) && d.keepsWithoutSlot(a) {
			addrs, refused = append(addrs, a), cmp.Or(refused, d.sharingConflict(a))
		}
	}
	return d.keepOrder(addrs), refused
}

// keepOrder puts those of the addresses that the Service has in the order in which it has them. Each
// other one stays at its place. Which slots there are may change while all addresses stay.
func (d *decision) keepOrder(addrs []netip.Addr) []netip.Addr {
	isOther := func(a netip.Addr) bool { return !slices.Contains(addrs, a) }
	kept := slices.DeleteFunc(slices.Clone(d.ownAddresses), isOther)
	ordered := slices.Clone(addrs)
	for i, a := range addrs {
		if slices.Contains(d.ownAddresses, a) {
			ordered[i], kept = kept[0], kept[1:]
		}
	}
	return ordered
}

// slotsOf lists the slots of a family: one for the address that the Service asks for, or
// one for each range that some node can announce (multiPool), or one.
func (d *decision) slotsOf(family Family) []slot {
	single := slot{family: family, requested: d.requestedByFamily[family], ranges: d.group.rangesOf(family)}
	var eachRange []slot
	for _, r := range single.ranges {
		if d.canBeAnnounced(r) {
			eachRange = append(eachRange, slot{family: family, ranges: []Range{r}, isOfOneRange: true})
		}
	}
	if single.requested.IsValid() || d.group.IsExternal() || !d.usesMultiPool() || len(eachRange) == 0 {
		return []slot{single}
	}
	return eachRange
}

func (d *decision) usesMultiPool() bool {
	switch d.MultiPool {
	case "true":
		return true
	case "false":
		return false
	}
	return d.group.MultiPool
}

// canBeAnnounced reports whether some node can announce addresses of a range in the way
// that its group asks for, or whether that is not known yet.
func (d *decision) canBeAnnounced(r Range) bool {
	return d.group.Type != v1.PoolTypeLocal || d.AnnounceType == nil || d.AnnounceType(r) != v1.AnnounceVirtual
}

// keepsWithoutSlot reports whether the Service keeps an address that no slot asks for:
// one allocated when the group had, or nodes could announce, more ranges. Only the
// Service's own annotations take such an address away.
func (d *decision) keepsWithoutSlot(a netip.Addr) bool {
	if d.requestedByFamily[FamilyOf(a)].IsValid() || d.MultiPool == "false" || !d.hasAllocated(a) {
		return false
	}
	_, isInGroup := d.group.RangeContaining(a)
	return isInGroup || d.isOrphan(a, d.Allocated.Group)
}

// isOrphan reports whether an address that was allocated from a group has left the ranges
// of that group, if the group is the one to allocate from.
func (d *decision) isOrphan(a netip.Addr, allocatedFrom string) bool {
	_, isInGroup := d.group.RangeContaining(a)
	return !isInGroup && allocatedFrom == d.group.Name
}

// fillSlot finds the address for one slot. A refusal beside an address says what is wrong
// with it.
func (d *decision) fillSlot(s slot) (netip.Addr, *refusal) {
	for _, a := range d.ownAddresses {
		if FamilyOf(a) == s.family && d.fitsSlot(s, a) {
			if d.group.IsExternal() && !d.hasAllocated(a) { // to be adopted
				return d.requestFromIPAM(IPAMRequest{Family: s.family, Address: a, IsShown: true})
			}
			return a, d.conflictInSlot(s, a)
		}
	}
	if d.getsNothingNew && len(s.ranges) > 0 {
		return netip.Addr{}, d.namespaceRefusal(d.groupName)
	}
	keyAddress, keyService := d.addressOfKey(s)
	reserved, isReserved := d.reservedAddress(d.group, s.accepts)
	switch {
	case s.requested.IsValid() && keyService != nil && keyAddress != s.requested &&
		!slices.Contains(keyService.Addresses, s.requested):
		return netip.Addr{},
			refuse(v1.ReasonSharingRefused, "%s: %s is not what the sharing key %q stands for, which is %s of %s",
				d.RequestedAddressesIn, s.requested, d.SharingKey, keyAddress, keyService.nameFor(d.Namespace))
	case isReserved && keyService == nil:
		return reserved, nil
	case s.requested.IsValid():
		refused := d.refuseToJoin(s.requested)
		if refused == nil && d.group.IsExternal() && len(d.otherServicesWith(s.requested)) == 0 {
			return d.requestFromIPAM(IPAMRequest{Family: s.family, Address: s.requested})
		}
		return unlessRefused(s.requested, refused)
	case keyService != nil:
		return unlessRefused(keyAddress, d.refuseToJoin(keyAddress))
	}
	return d.fillWithAny(s)
}

// fillWithAny finds an address for a slot for which any address of its ranges will do.
func (d *decision) fillWithAny(s slot) (netip.Addr, *refusal) {
	if d.group.IsExternal() && len(s.ranges) > 0 {
		return d.requestFromIPAM(IPAMRequest{Family: s.family}) // the system offers what it offered before
	}
	if a, ok := d.freeAddress(d.group, s); ok {
		return a, nil
	}
	if s.isOfOneRange {
		return netip.Addr{}, refuse(v1.ReasonExhausted, "range %s of ServiceGroup %s has no free address: enlarge it, or "+
			"delete Services", s.ranges[0], d.groupName)
	}
	return netip.Addr{}, d.exhaustedRefusal(string(s.family))
}

// exhaustedRefusal says that the ServiceGroup has no free address of some families.
func (d *decision) exhaustedRefusal(families ...string) *refusal {
	return refuse(v1.ReasonExhausted, "ServiceGroup %s has no free %s address: add a range to it, or delete Services",
		d.groupName, strings.Join(families, " and no free "))
}

func unlessRefused(a netip.Addr, refused *refusal) (netip.Addr, *refusal) {
	if refused != nil {
		return netip.Addr{}, refused
	}
	return a, nil
}

// requestFromIPAM requests an address of the external group. It returns what the group's system
// has offered for the request.
func (d *decision) requestFromIPAM(request IPAMRequest) (netip.Addr, *refusal) {
	request.Group = d.groupName
	d.ipamRequests = append(d.ipamRequests, request)
	offer, isAnswered := d.Offers[request]
	switch {
	case !isAnswered:
		d.isAwaitingIPAM = true
		return netip.Addr{}, &refusal{reason: v1.ReasonWaitingForIPAM, isOfExternalSystem: true, isOutstanding: true}
	case offer.Reason != "":
		refused := &refusal{
			reason: offer.Reason, message: offer.Message, isOfExternalSystem: true, isOutstanding: offer.isOutstanding(),
		}
		if !refused.isOutstanding {
			d.refusedIPAMRequests = append(d.refusedIPAMRequests, request)
		}
		return netip.Addr{}, refused
	}
	if others := d.otherServicesWith(offer.Address); len(others) > 0 {
		return netip.Addr{},
			refuse(
				v1.ReasonAddressInUse, "%s, which ServiceGroup %s offers, is in use by %s", offer.Address, d.groupName,
				others[0].nameFor(d.Namespace),
			)
	}
	return offer.Address, nil
}

// fitsSlot reports whether an address that the Service has is good for a slot.
func (d *decision) fitsSlot(s slot, a netip.Addr) bool {
	if s.requested.IsValid() {
		return a == s.requested
	}
	return s.contains(a) || !s.isOfOneRange && d.isOrphan(a, d.Allocated.Group)
}

// freeAddress returns an address of a group for a slot: one that was set aside for the Service,
// else one that the Service had before it was deleted, else the first free one.
func (d *decision) freeAddress(group *Group, s slot) (netip.Addr, bool) {
	if a, ok := d.pendingAddress(group, s); ok {
		return a, true
	}
	if a, ok := d.formerAddress(group, s); ok {
		return a, true
	}
	return d.firstFree(group, s.ranges)
}

// pendingAddress returns an address of a group for a slot that an earlier attempt has set
// aside for the Service. The Service does not show it, because the write failed or may have
// failed.
func (d *decision) pendingAddress(group *Group, s slot) (netip.Addr, bool) {
	self := d.InUse.Service(d.String())
	if self == nil {
		return netip.Addr{}, false
	}
	for _, a := range self.Addresses {
		if s.contains(a) && d.isFree(group, a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// isFree reports whether an address of a group can be allocated to the Service, and no other one
// has it.
func (d *decision) isFree(group *Group, a netip.Addr) bool {
	_, isOfNode := d.NodeAddresses[a]
	r, isInGroup := group.RangeContaining(a)
	return isInGroup && !isOfNode && r.subnetAllows(a) && !group.Reservations.areKeptFrom(d.String(), a) &&
		len(d.otherServicesWith(a)) == 0
}

// firstFree returns the first free address of the first range of a group that has one. If
// the group balances its pools, the ranges with the fewest addresses in use come first. An
// address that is left to a deleted Service is taken only if there are no others: the one that has
// been left for longest.
func (d *decision) firstFree(group *Group, ranges []Range) (netip.Addr, bool) {
	if group.BalancePools {
		ranges = slices.Clone(ranges)
		slices.SortStableFunc(ranges, func(a, b Range) int { return cmp.Compare(d.InUse.countIn(a), d.InUse.countIn(b)) })
	}
	var awaited netip.Addr
	var longest time.Time
	for _, r := range ranges {
		a, ok := d.InUse.addresses.firstMissing(r.Addrs.From())
		for ok && r.Addrs.Contains(a) {
			_, isOfNode := d.NodeAddresses[a]
			if !isOfNode && !group.Reservations.areKeptFrom(d.String(), a) && r.subnetAllows(a) {
				since := d.awaitedSince(group, a)
				if since.IsZero() {
					return a, true
				}
				if longest.IsZero() || since.Before(longest) {
					awaited, longest = a, since
				}
			}
			if a = a.Next(); !a.IsValid() {
				break
			}
			a, ok = d.InUse.addresses.firstMissing(a)
		}
	}
	return awaited, awaited.IsValid()
}
