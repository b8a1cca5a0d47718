package netbox

import (
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
	hasFamily := false
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
		case isStatus(err, http.StatusConflict) || errors.Is(err, errNoneFree):
			continue
		case isStatus(err, http.StatusNotFound):
			name := p.String()
			s.pools = nil // look again
			return netip.Addr{}, &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: fmt.Sprintf("NetBox %s has no %s any more, or the token may not view it", s.client.base, name)}
		}
		return netip.Addr{}, err
	}
	if !hasFamily {
		return netip.Addr{}, s.exhausted(r.Family, "no prefix or range of that family")
	}
	return netip.Addr{}, s.exhausted(r.Family, "no free address")
}

// errNoneFree says that a pool has no address that the owner can have.
var errNoneFree = errors.New("no free address")

func (s *System) exhausted(family allocation.Family, what string) error {
	return &ipam.Error{Reason: v1.ReasonExhausted, Message: fmt.Sprintf("NetBox %s has %s for %s of the group", s.client.base, what, family)}
}

// createFreeIn creates a record for a free address of a pool. NetBox chooses the address;
// if the cluster objects to it, another free one is created by name.
func (s *System) createFreeIn(ctx context.Context, r *ipam.Request, p *pool) (netip.Addr, error) {
	var created ipAddress
	_, err := s.client.send(ctx, http.MethodPost, p.path+"available-ips/", nil, nil, s.fields(r.Owner, nil), &created)
	if concernsAddress(err) {
		// NetBox 4.4 takes an address of a range for free that is recorded with another mask
		// than the range's.
		return s.createAmongFree(ctx, r, p)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	a := created.addr()
	if !a.IsValid() || !p.addrs.Contains(a) {
		return netip.Addr{}, s.client.unavailable("it has created an address that is not of the prefix: is there something else at this URL?")
	}
	if r.Objection(a) == "" {
		isFirst, err := s.isFirst(ctx, &created)
		if err != nil || isFirst {
			return a, err
		}
	}
	if err := s.delete(ctx, created.ID); err != nil {
		return netip.Addr{}, err
	}
	return s.createAmongFree(ctx, r, p)
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
	free = slices.DeleteFunc(free, func(a netip.Addr) bool { return r.Objection(a) != "" })
	for _, a := range free[:min(len(free), maxTries)] {
		switch isCreated, err := s.create(ctx, r.Owner, a, p); {
		case err == nil && isCreated:
			return a, nil
		case err != nil && !concernsAddress(err): // or another client has it now
			return netip.Addr{}, err
		}
	}
	return netip.Addr{}, errNoneFree
}

// create creates a record for an address. It reports false if another record was first.
func (s *System) create(ctx context.Context, owner ipam.Owner, a netip.Addr, p *pool) (isFirst bool, err error) {
	fields := s.fields(owner, nil)
	fields["address"] = netip.PrefixFrom(a, p.subnet.Bits()).String()
	if p.vrf != 0 {
		fields["vrf"] = p.vrf
	}
	var created ipAddress
	if _, err := s.client.send(ctx, http.MethodPost, pathAddresses, nil, nil, fields, &created); err != nil {
		return false, err
	}
	if isFirst, err = s.isFirst(ctx, &created); err != nil || isFirst {
		return isFirst, err
	}
	return false, s.delete(ctx, created.ID)
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
	p := &s.pools[i]
	records, err := s.recordsInVRF(ctx, r.Address, p.vrf)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		isFirst, err := s.create(ctx, r.Owner, r.Address, p)
		switch {
		case concernsAddress(err):
			return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: fmt.Sprintf("%s cannot be had from NetBox %s: %s", r.Address, s.client.base, err)}
		case err != nil || isFirst:
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
	if first.mark() == r.Owner.Mark(s.cluster) {
		return nil
	}
	return s.change(ctx, first.ID, s.fields(r.Owner, first), "")
}

func (s *System) inUse(a netip.Addr, o *ipAddress) error {
	what := "something else"
	if o != nil {
		what = o.describe()
	}
	return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: fmt.Sprintf("%s is recorded in NetBox %s already: %s", a, s.client.base, what)}
}
