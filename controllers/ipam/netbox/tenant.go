package netbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/tasks"
)

// statusReserved is what a tenant's free addresses have.
const statusReserved = "reserved"

// recheckDelay is how long after taking an address it is looked at again where NetBox has no
// conditional changes (before 4.6): somebody who has seen it free at the same moment has
// changed it by then.
const recheckDelay = 300 * time.Millisecond

// listFree lists the tenant's free addresses.
func (s *System) listFree(ctx context.Context) ([]ipAddress, error) {
	return list[ipAddress](
		ctx, s.client, pathAddresses, url.Values{"tenant": {s.config.Tenant}, "status": {statusReserved}},
	)
}

// takeFree makes the first of the tenant's free addresses the owner's. Those that NetBox did not let be changed come
// last; only a few of them are tried.
func (s *System) takeFree(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	free, err := s.listFree(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	slices.SortStableFunc(free, func(a, b ipAddress) int { return a.addr().Compare(b.addr()) })
	idOfAddress := map[netip.Addr]int64{}
	var addrs []netip.Addr
	for i := range free {
		a := free[i].addr()
		if _, isKnown := idOfAddress[a]; isKnown || checkAddress(a) != nil || allocation.FamilyOf(a) != r.Family {
			continue
		}
		idOfAddress[a] = free[i].ID
		addrs = append(addrs, a)
	}
	history, t := s.historyOf(&pool{path: "tenant " + string(r.Family)}), attempt{triesLeft: maxTries}
	for _, a := range history.sortFree(addrs) {
		if r.Objection(a) != "" {
			continue
		}
		isTaken, err := s.markAsOwned(ctx, r.Owner, idOfAddress[a], s.isFree)
		var refused *requestRefused
		switch {
		case errors.As(err, &refused):
			t.note(err)
			if history.add(a); t.triesLeft == 0 {
				return netip.Addr{}, t.firstRefusal
			}
		case err != nil:
			return netip.Addr{}, err
		case isTaken:
			return a, nil
		}
	}
	if t.firstRefusal != nil {
		return netip.Addr{}, t.firstRefusal
	}
	return netip.Addr{}, s.exhaustedError(r.Family, "no reserved address of tenant "+s.config.Tenant)
}

// checkAddress says why no Service can have an address, or returns nil.
func checkAddress(a netip.Addr) error { return allocation.CheckRange(netipx.IPRangeFrom(a, a)) }

// isFree reports whether an address is the tenant's, and reserved.
func (s *System) isFree(o *ipAddress) bool {
	return s.hasAddress(o) && o.Status != nil && o.Status.Value == statusReserved
}

// markAsOwned makes a record the owner's if it may be taken, and nobody else does so.
func (s *System) markAsOwned(
	ctx context.Context, owner ipam.Owner, id int64, mayTake func(*ipAddress) bool,
) (bool, error) {
	var o ipAddress
	got, err := s.client.sendOnce(ctx, http.MethodGet, recordPath(id), nil, nil, nil, &o)
	if isStatus(err, http.StatusNotFound) {
		return false, nil
	}
	if err != nil || !mayTake(&o) {
		return false, err
	}
	err = s.change(ctx, id, s.fields(owner, o.addr(), &o), got.etag)
	if isStatus(err, http.StatusPreconditionFailed) || isStatus(err, http.StatusNotFound) {
		return false, nil
	}
	if err != nil || got.etag != "" {
		return err == nil, err
	}
	if s.client.options.Tasks.Wait(ctx, recheckDelay) == tasks.Ended {
		return false, ctx.Err()
	}
	if _, err := s.client.sendOnce(ctx, http.MethodGet, recordPath(id), nil, nil, nil, &o); err != nil {
		return false, err
	}
	return o.isRecordOfOwner(owner.Mark(s.installationID)), nil
}

// takeRequested makes a requested address of the tenant the owner's.
func (s *System) takeRequested(ctx context.Context, r *ipam.Request) error {
	if why := r.Objection(r.Address); why != "" {
		return &ipam.Error{Reason: v1.ReasonAddressInUse, Message: why}
	}
	if err := checkAddress(r.Address); err != nil {
		return &ipam.Error{Reason: v1.ReasonAddressOutsidePools, Message: err.Error()}
	}
	records, err := s.recordsAt(ctx, r.Address)
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(o ipAddress) bool { return !s.hasAddress(&o) })
	first := lowestID(records)
	if first == nil {
		return &ipam.Error{
			Reason:  v1.ReasonAddressOutsidePools,
			Message: fmt.Sprintf("%s is not an address of tenant %s in NetBox %s", r.Address, s.config.Tenant, s.client.base),
		}
	}
	if first.isRecordOfOwner(r.Owner.Mark(s.installationID)) && !s.isFree(first) {
		return nil
	}
	isTaken, err := s.markAsOwned(ctx, r.Owner, first.ID, func(o *ipAddress) bool {
		// What a Service shows already, an earlier PureLB has taken without a mark.
		return s.isFree(o) || o.isRecordOf(s.installationID) ||
			r.IsShown && !o.isMarked() && o.Status != nil && o.Status.Value == s.config.Status
	})
	if err == nil && !isTaken {
		err = s.inUseError(r.Address, first)
	}
	return err
}
