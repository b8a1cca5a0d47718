package netbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// Bounds of how many records are created, changed or refused for one attempt to get a free address: a
// NetBox that refuses every address, as by a validation rule, is not asked for all of them at once.
// The next attempt goes on with others.
const (
	maxTries       = 5
	maxTriesInPool = 3
)

// attempt is what one attempt to get a free address may still do, and what came of it so far.
type attempt struct {
	triesLeft, triesLeftInPool int
	// firstRefusal is the first answer by which NetBox has refused an address, or nil.
	firstRefusal error
}

// note notes that an address was not to be had. err is nil if another client was first.
func (t *attempt) note(err error) {
	t.triesLeft--
	t.triesLeftInPool--
	if t.firstRefusal == nil {
		t.firstRefusal = err
	}
}

// poolHistory is what earlier requests have met in a pool, or among the reserved addresses of a tenant.
type poolHistory struct {
	// addrs were listed as free and not to be had, the one that was tried last at the end. Only
	// addresses that are still listed as free are kept.
	addrs []netip.Addr
	// objected is the address that NetBox has chosen last and the cluster has objected to, such as a
	// node's. While it is free in NetBox and the cluster objects, NetBox would choose it again.
	objected netip.Addr
	// turn orders pools by their last attempt that has ended in refusals. It is 0 for none since
	// an address was created.
	turn int
}

// add notes that an address was not to be had.
func (h *poolHistory) add(a netip.Addr) {
	h.addrs = append(slices.DeleteFunc(h.addrs, func(b netip.Addr) bool { return a == b }), a)
}

// sortFree returns free addresses in the order in which they are tried: those that were not to be had
// come last. It forgets those that are not free any more.
func (h *poolHistory) sortFree(free []netip.Addr) []netip.Addr {
	isFree := map[netip.Addr]bool{}
	for _, a := range free {
		isFree[a] = true
	}
	h.addrs = slices.DeleteFunc(h.addrs, func(a netip.Addr) bool { return !isFree[a] })
	for _, a := range h.addrs {
		isFree[a] = false
	}
	return append(slices.DeleteFunc(slices.Clone(free), func(a netip.Addr) bool { return !isFree[a] }), h.addrs...)
}

// historyOf returns what is remembered of a pool.
func (s *System) historyOf(p *pool) *poolHistory {
	if s.poolHistories[p.path] == nil {
		s.poolHistories[p.path] = &poolHistory{}
	}
	return s.poolHistories[p.path]
}

// createFree creates a record for the first free address of the group's pools.
func (s *System) createFree(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	a, err := s.tryPools(ctx, r)
	if errors.Is(err, errOutsidePool) { // somebody has changed the prefix or range in NetBox
		if err = s.ensurePools(ctx); err == nil {
			a, err = s.tryPools(ctx, r)
		}
	}
	if errors.Is(err, errOutsidePool) {
		err = &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: fmt.Sprintf(
			"NetBox %s has created, or lists as free, an address that is not of the prefix or range it was asked for: no "+
				"record of it is left", s.client.base)}
	}
	return a, err
}

// errOutsidePool says that NetBox has created an address outside of the pool that it was
// asked for, as the pool is known, or has listed one as free. The record is deleted, and the pools
// are known no more.
var errOutsidePool = errors.New("an address outside of the prefix or range")

// poolsInTurn returns the pools of a family in the order in which they are tried: those in which the
// last attempt has ended in refusals come last.
func (s *System) poolsInTurn(family allocation.Family) []*pool {
	var pools []*pool
	for i := range s.pools {
		if s.pools[i].family() == family {
			pools = append(pools, &s.pools[i])
		}
	}
	slices.SortStableFunc(pools, func(p, q *pool) int {
		return cmp.Compare(s.historyOf(p).turn, s.historyOf(q).turn)
	})
	return pools
}

func (s *System) tryPools(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	pools, t := s.poolsInTurn(r.Family), &attempt{triesLeft: maxTries}
	for _, p := range pools {
		before := t.triesLeft
		if before == 0 {
			break
		}
		t.triesLeftInPool = min(t.triesLeft, maxTriesInPool)
		a, err := s.createFreeIn(ctx, r, p, t)
		if err == nil {
			s.historyOf(p).turn = 0
		} else if t.triesLeft < before {
			s.lastTurn++
			s.historyOf(p).turn = s.lastTurn
		}
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, errNoneFree), isStatus(err, http.StatusConflict):
			continue
		case isStatus(err, http.StatusNotFound):
			name := p.String()
			s.pools = nil // look again
			return netip.Addr{}, &ipam.Error{
				Reason:  v1.ReasonIPAMRefused,
				Message: fmt.Sprintf("NetBox %s has no %s any more, or the token may not view it", s.client.base, name),
			}
		}
		return netip.Addr{}, err
	}
	var refused *requestRefused
	switch {
	case errors.As(t.firstRefusal, &refused):
		return netip.Addr{}, &ipam.Error{Reason: v1.ReasonIPAMRefused, Scope: ipam.ScopeGroup, Message: fmt.Sprintf(
			"NetBox %s refuses addresses that it lists as free for %s of the group: %s; others are tried next",
			s.client.base, r.Family, refused.text)}
	case t.triesLeft < maxTries:
		return netip.Addr{}, &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: fmt.Sprintf(
			"NetBox %s has earlier records of the addresses that it lists as free for %s of the group; others are tried next",
			s.client.base, r.Family)}
	case len(pools) == 0:
		return netip.Addr{}, s.exhaustedError(r.Family, "no prefix or range of that family")
	}
	return netip.Addr{}, s.exhaustedError(r.Family, "no free address")
}

// errNoneFree says that a pool has no address that the owner can have, or that none of those that
// were tried was to be had.
var errNoneFree = errors.New("no free address")

func (s *System) exhaustedError(family allocation.Family, what string) error {
	return &ipam.Error{
		Reason: v1.ReasonExhausted, Message: fmt.Sprintf("NetBox %s has %s for %s of the group", s.client.base, what, family),
	}
}

// createFreeIn creates a record for a free address of a pool. NetBox chooses the address;
// if the cluster objects to it, another free one is created by name.
func (s *System) createFreeIn(ctx context.Context, r *ipam.Request, p *pool, t *attempt) (netip.Addr, error) {
	history := s.historyOf(p)
	if p.isChosenHere || history.objected.IsValid() && r.Objection(history.objected) != "" {
		return s.createAmongFree(ctx, r, p, t)
	}
	var created ipAddress
	_, err := s.client.sendOnce(ctx, http.MethodPost, p.path+"available-ips/", nil, nil, s.newFields(r.Owner), &created)
	if concernsAddress(err) {
		// NetBox 4.4 takes an address of a range for free that is recorded with another mask
		// than the range's.
		p.isChosenHere = true
		t.note(err)
		return s.createAmongFree(ctx, r, p, t)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	a := created.addr()
	switch {
	case created.ID == 0 || !a.IsValid():
		return netip.Addr{}, s.client.unavailableError("it has created no address: is there something else at this URL?")
	case !p.contains(a, created.vrfID()):
		s.pools = nil
		return netip.Addr{}, cmp.Or(s.delete(ctx, created.ID, ""), errOutsidePool)
	case r.Objection(a) != "":
		history.objected = a
		err = s.delete(ctx, created.ID, "")
	default:
		var isCompleted bool
		if isCompleted, err = s.completeOrDelete(ctx, r.Owner, &created); isCompleted {
			return a, nil
		}
		t.note(nil)
		history.add(a)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return s.createAmongFree(ctx, r, p, t)
}

// newFields returns what a new record is created with. The role follows later: NetBox takes
// one address twice if both records have a role such as vip. Without one it refuses an
// address of which it has any record, also one that the token may not view, where it is set
// to keep addresses unique. The address follows in the mark, which says that the record is
// complete.
func (s *System) newFields(owner ipam.Owner) map[string]any {
	fields := s.fields(owner, netip.Addr{}, nil)
	delete(fields, "role")
	return fields
}

// completeOrDelete completes a record that was created for an owner, and reports whether the owner
// has the address by it. A record that another one has come before, or that NetBox does not
// let be completed, is deleted: the owner has no address by it yet.
func (s *System) completeOrDelete(ctx context.Context, owner ipam.Owner, o *ipAddress) (bool, error) {
	isFirst, err := s.isFirst(ctx, o)
	if err == nil && isFirst {
		if err = s.complete(ctx, owner, o); err == nil {
			return true, nil
		}
	}
	var refused *requestRefused
	if err != nil && !errors.As(err, &refused) {
		return false, err // the next request finds the record by its mark
	}
	if deleteErr := s.delete(ctx, o.ID, ""); deleteErr != nil {
		return false, deleteErr
	}
	if concernsAddress(err) || isStatus(err, http.StatusNotFound) {
		return false, nil // somebody else has recorded the address, or has deleted the record
	}
	return false, err
}

// complete writes into a record of an owner what it was created without: the role and, in the
// mark, the address.
func (s *System) complete(ctx context.Context, owner ipam.Owner, o *ipAddress) error {
	if o.isComplete() {
		return nil
	}
	fields := map[string]any{"description": s.descriptionWithMark(owner, o.addr(), o)}
	if s.config.Role != "" && o.Role == nil {
		fields["role"] = s.config.Role
	}
	return s.change(ctx, o.ID, fields, "")
}

// concernsAddress reports whether NetBox refuses the address of a new record.
func concernsAddress(err error) bool {
	var refused *requestRefused
	return errors.As(err, &refused) && refused.status == http.StatusBadRequest &&
		strings.Contains(refused.text, `"address"`)
}

// createAmongFree creates a record for one of the addresses that NetBox lists as free. Those that the
// cluster objects to, such as nodes' own, are not asked for.
func (s *System) createAmongFree(ctx context.Context, r *ipam.Request, p *pool, t *attempt) (netip.Addr, error) {
	free, err := s.availableAddresses(ctx, p)
	if err != nil {
		return netip.Addr{}, err
	}
	if slices.ContainsFunc(free, func(a netip.Addr) bool { return !p.addrs.Contains(a) }) {
		s.pools = nil
		return netip.Addr{}, errOutsidePool
	}
	history := s.historyOf(p)
	if !slices.Contains(free, history.objected) {
		history.objected = netip.Addr{}
	}
	for _, a := range history.sortFree(free) {
		if r.Objection(a) != "" {
			continue
		}
		if t.triesLeftInPool <= 0 {
			break
		}
		isCreated, err := s.create(ctx, r.Owner, a, p)
		if err == nil && isCreated {
			return a, nil
		}
		if err != nil && !concernsAddress(err) {
			return netip.Addr{}, err
		}
		t.note(err) // another client may have the address now
		history.add(a)
	}
	return netip.Addr{}, errNoneFree
}

// create creates a record for an address. It reports false if another record was first.
func (s *System) create(ctx context.Context, owner ipam.Owner, a netip.Addr, p *pool) (isFirst bool, err error) {
	fields := s.newFields(owner)
	fields["address"] = netip.PrefixFrom(a, p.subnet.Bits()).String()
	if p.vrf != 0 {
		fields["vrf"] = p.vrf
	}
	var created ipAddress
	if _, err := s.client.sendOnce(ctx, http.MethodPost, pathAddresses, nil, nil, fields, &created); err != nil {
		return false, err
	}
	if created.ID == 0 || created.addr() != a {
		return false, s.client.unavailableError(
			"it has created another address than the one that it was asked for: is there something else at this URL?",
		)
	}
	return s.completeOrDelete(ctx, owner, &created)
}

// isFirst reports whether a record that was just created is the first one of its address.
func (s *System) isFirst(ctx context.Context, created *ipAddress) (bool, error) {
	records, err := s.recordsInVRF(ctx, created.addr(), created.vrfID())
	if err != nil {
		return false, err
	}
	first := lowestID(records)
	return first == nil || first.ID >= created.ID, nil
}

// recordsInVRF lists what NetBox has recorded of an address in a VRF.
func (s *System) recordsInVRF(ctx context.Context, a netip.Addr, vrf int64) ([]ipAddress, error) {
	records, err := s.recordsAt(ctx, a)
	return slices.DeleteFunc(records, func(o ipAddress) bool { return o.vrfID() != vrf }), err
}

// recordRequested makes a requested address the owner's.
func (s *System) recordRequested(ctx context.Context, r *ipam.Request) error {
	if s.config.IsByTenant() {
		return s.takeRequested(ctx, r)
	}
	i := slices.IndexFunc(s.pools, func(p pool) bool { return p.addrs.Contains(r.Address) })
	if i < 0 {
		return &ipam.Error{
			Reason:  v1.ReasonAddressOutsidePools,
			Message: fmt.Sprintf("%s is in no prefix or range that NetBox %s has for the group", r.Address, s.client.base),
		}
	}
	if why := r.Objection(r.Address); why != "" {
		return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: why}
	}
	err := s.recordIn(ctx, r, &s.pools[i])
	if concernsAddress(err) {
		err = &ipam.Error{
			Reason:  v1.ReasonAddressInUse,
			Message: fmt.Sprintf("%s cannot be had from NetBox %s: %s", r.Address, s.client.base, err),
		}
	}
	return err
}

// recordIn makes a requested address of a pool the owner's.
func (s *System) recordIn(ctx context.Context, r *ipam.Request, p *pool) error {
	records, err := s.recordsInVRF(ctx, r.Address, p.vrf)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		if isFirst, err := s.create(ctx, r.Owner, r.Address, p); err != nil || isFirst {
			return err
		}
		if records, err = s.recordsInVRF(ctx, r.Address, p.vrf); err != nil {
			return err
		}
	}
	return s.reassignRecord(ctx, r, records)
}

// reassignRecord makes a record of this cluster the owner's, the first one if there are several,
// and deletes the others of this cluster.
func (s *System) reassignRecord(ctx context.Context, r *ipam.Request, records []ipAddress) error {
	first := lowestID(records)
	if first == nil || !first.isRecordOf(s.installationID) {
		return s.inUseError(r.Address, first)
	}
	for i := range records {
		if o := &records[i]; o.ID != first.ID && o.isRecordOf(s.installationID) {
			if err := s.delete(ctx, o.ID, ""); err != nil {
				return err
			}
		}
	}
	if first.isRecordOfOwner(r.Owner.Mark(s.installationID)) {
		return s.complete(ctx, r.Owner, first)
	}
	return s.change(ctx, first.ID, s.fields(r.Owner, first.addr(), first), "")
}

// inUseError says that NetBox has another record of an address. It says no more than the record's
// id: whoever may make a Service reads it, and need not know what the address is used for.
func (s *System) inUseError(a netip.Addr, o *ipAddress) error {
	what := "something else"
	if o != nil {
		what = fmt.Sprintf("id %d", o.ID)
	}
	return &ipam.Error{
		Reason:  v1.ReasonAddressInUse,
		Message: fmt.Sprintf("%s is recorded in NetBox %s already: %s", a, s.client.base, what),
	}
}
