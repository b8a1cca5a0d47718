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

// maxTries is how often a creation is tried that another client of NetBox gets ahead of.
const maxTries = 20

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
			"NetBox %s has created, or lists as free, an address that is not of the prefix or range it was asked for: no record of it is left", s.client.base)}
	}
	return a, err
}

// errOutsidePool says that NetBox has created an address outside of the pool that it was
// asked for, as the pool is known, or has listed one as free. The record is deleted, and the pools
// are known no more.
var errOutsidePool = errors.New("an address outside of the prefix or range")

func (s *System) tryPools(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	hasFamily := false
	var refusal *statusError
	for i := range s.pools {
		p := &s.pools[i]
		if p.family() != r.Family {
			continue
		}
		hasFamily = true
		a, err := s.createFreeIn(ctx, r, p)
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, errNoneFree):
			errors.As(err, &refusal)
			continue
		case isStatus(err, http.StatusConflict):
			continue
		case isStatus(err, http.StatusNotFound):
			name := p.String()
			s.pools = nil // look again
			return netip.Addr{}, &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: fmt.Sprintf("NetBox %s has no %s any more, or the token may not view it", s.client.base, name)}
		}
		return netip.Addr{}, err
	}
	if refusal != nil { // of each address that was tried in one of the pools
		return netip.Addr{}, &ipam.Error{Reason: v1.ReasonIPAMRefused, Scope: ipam.ScopeGroup, Message: fmt.Sprintf(
			"NetBox %s refuses each of the addresses that it lists as free for %s of the group: %s", s.client.base, r.Family, refusal.text)}
	}
	if !hasFamily {
		return netip.Addr{}, s.exhausted(r.Family, "no prefix or range of that family")
	}
	return netip.Addr{}, s.exhausted(r.Family, "no free address")
}

// errNoneFree says that a pool has no address that the owner can have. If NetBox has refused those
// that it lists as free, the error wraps the first refusal, too.
var errNoneFree = errors.New("no free address")

func (s *System) exhausted(family allocation.Family, what string) error {
	return &ipam.Error{Reason: v1.ReasonExhausted, Message: fmt.Sprintf("NetBox %s has %s for %s of the group", s.client.base, what, family)}
}

// createFreeIn creates a record for a free address of a pool. NetBox chooses the address;
// if the cluster objects to it, another free one is created by name.
func (s *System) createFreeIn(ctx context.Context, r *ipam.Request, p *pool) (netip.Addr, error) {
	if p.isChosenHere {
		return s.createAmongFree(ctx, r, p)
	}
	var created ipAddress
	_, err := s.client.send(ctx, http.MethodPost, p.path+"available-ips/", nil, nil, s.newFields(r.Owner), &created)
	if concernsAddress(err) {
		// NetBox 4.4 takes an address of a range for free that is recorded with another mask
		// than the range's.
		return s.createAmongFree(ctx, r, p)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	a := created.addr()
	switch {
	case created.ID == 0 || !a.IsValid():
		return netip.Addr{}, s.client.unavailable("it has created no address: is there something else at this URL?")
	case !p.contains(a, created.vrfID()):
		s.pools = nil
		return netip.Addr{}, cmp.Or(s.delete(ctx, created.ID), errOutsidePool)
	case r.Objection(a) != "":
		p.isChosenHere = true
		err = s.delete(ctx, created.ID)
	default:
		var isSettled bool
		if isSettled, err = s.settle(ctx, r.Owner, &created); isSettled {
			return a, nil
		}
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return s.createAmongFree(ctx, r, p)
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

// settle completes a record that was created for an owner, and reports whether the owner
// has the address by it. A record that another one has come before, or that NetBox does not
// let be completed, is deleted: the owner has no address by it yet.
func (s *System) settle(ctx context.Context, owner ipam.Owner, o *ipAddress) (bool, error) {
	isFirst, err := s.isFirst(ctx, o)
	if err == nil && isFirst {
		if err = s.complete(ctx, owner, o); err == nil {
			return true, nil
		}
	}
	var refused *statusError
	if err != nil && !errors.As(err, &refused) {
		return false, err // the next request finds the record by its mark
	}
	if deleteErr := s.delete(ctx, o.ID); deleteErr != nil {
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
	if _, of := o.mark(); of.IsValid() {
		return nil
	}
	fields := map[string]any{"description": s.describe(owner, o.addr(), o)}
	if s.config.Role != "" && o.Role == nil {
		fields["role"] = s.config.Role
	}
	return s.change(ctx, o.ID, fields, "")
}

// concernsAddress reports whether NetBox refuses the address of a new record.
func concernsAddress(err error) bool {
	var refused *statusError
	return errors.As(err, &refused) && refused.status == http.StatusBadRequest && strings.Contains(refused.text, `"address"`)
}

// createAmongFree creates a record for one of the addresses that NetBox lists as free.
func (s *System) createAmongFree(ctx context.Context, r *ipam.Request, p *pool) (netip.Addr, error) {
	free, err := s.availableAddresses(ctx, p)
	if err != nil {
		return netip.Addr{}, err
	}
	if slices.ContainsFunc(free, func(a netip.Addr) bool { return !p.addrs.Contains(a) }) {
		s.pools = nil
		return netip.Addr{}, errOutsidePool
	}
	free = slices.DeleteFunc(free, func(a netip.Addr) bool { return r.Objection(a) != "" })
	var refusal error
	for _, a := range free[:min(len(free), maxTries)] {
		switch isCreated, err := s.create(ctx, r.Owner, a, p); {
		case err == nil && isCreated:
			return a, nil
		case err != nil && !concernsAddress(err):
			return netip.Addr{}, err
		case refusal == nil: // another client may have the address now
			refusal = err
		}
	}
	if refusal != nil {
		return netip.Addr{}, fmt.Errorf("%w: %w", errNoneFree, refusal)
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
	if _, err := s.client.send(ctx, http.MethodPost, pathAddresses, nil, nil, fields, &created); err != nil {
		return false, err
	}
	if created.ID == 0 || created.addr() != a {
		return false, s.client.unavailable("it has created another address than the one that it was asked for: is there something else at this URL?")
	}
	return s.settle(ctx, owner, &created)
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
		return &ipam.Error{Reason: v1.ReasonAddressOutsidePool, Message: fmt.Sprintf("%s is in no prefix or range that NetBox %s has for the group", r.Address, s.client.base)}
	}
	if why := r.Objection(r.Address); why != "" {
		return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: why}
	}
	err := s.recordIn(ctx, r, &s.pools[i])
	if concernsAddress(err) {
		err = &ipam.Error{Reason: v1.ReasonAddressInUse, Message: fmt.Sprintf("%s cannot be had from NetBox %s: %s", r.Address, s.client.base, err)}
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
	return s.takeOver(ctx, r, records)
}

// takeOver makes a record of this cluster the owner's, the first one if there are several,
// and deletes the others of this cluster.
func (s *System) takeOver(ctx context.Context, r *ipam.Request, records []ipAddress) error {
	first := lowestID(records)
	if first == nil || !first.isOf(s.cluster) {
		return s.inUse(r.Address, first)
	}
	for i := range records {
		if o := &records[i]; o.ID != first.ID && o.isOf(s.cluster) {
			if err := s.delete(ctx, o.ID); err != nil {
				return err
			}
		}
	}
	if first.isOwnedBy(r.Owner.Mark(s.cluster)) {
		return s.complete(ctx, r.Owner, first)
	}
	return s.change(ctx, first.ID, s.fields(r.Owner, first.addr(), first), "")
}

// inUse says that NetBox has another record of an address. It says no more than the record's
// id: whoever may make a Service reads it, and need not know what the address is used for.
func (s *System) inUse(a netip.Addr, o *ipAddress) error {
	what := "something else"
	if o != nil {
		what = fmt.Sprintf("id %d", o.ID)
	}
	return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: fmt.Sprintf("%s is recorded in NetBox %s already: %s", a, s.client.base, what)}
}
