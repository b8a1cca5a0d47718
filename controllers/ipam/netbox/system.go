package netbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/order"
)

// System is a NetBox, with the addresses that one ServiceGroup takes from it.
type System struct {
	client         *client
	config         *allocation.Netbox
	installationID types.UID
	// pools are those found last, or nil: they are looked up again.
	pools []pool
	// poolHistories are what is remembered of pools, by their paths: they say what to try first.
	// lastTurn is the last turn in them.
	poolHistories map[string]*poolHistory
	lastTurn      int
}

var _ ipam.System = (*System)(nil)

// NewSystem returns the NetBox that config names. It sends nothing.
func NewSystem(config *allocation.Netbox, token string, installationID types.UID, o Options) (*System, error) {
	c, err := newClient(config.URL, token, config.CABundle, o)
	if err != nil {
		return nil, err
	}
	return &System{
		client: c, config: config, installationID: installationID, poolHistories: map[string]*poolHistory{},
	}, nil
}

// Allocate records an address as the owner's.
func (s *System) Allocate(ctx context.Context, r ipam.Request) (netip.Addr, error) {
	a, err := s.allocate(ctx, &r)
	return a, s.explain(err)
}

// explain turns an answer that refuses a request into an error for people.
func (s *System) explain(err error) error {
	var refused *requestRefused
	if !errors.As(err, &refused) {
		return err
	}
	hint := ""
	switch {
	case refused.status == http.StatusForbidden:
		hint = "; the token's user needs the permissions to view prefixes, IP ranges, VRFs, tenants and tags, and to view, " +
			"add, change and delete IP addresses"
	case refused.status == http.StatusBadRequest && strings.Contains(refused.text, `"tags"`):
		hint = "; NetBox has to know the tags " + strings.Join(s.config.Tags, ", ") + ", by their slugs"
	case refused.status == http.StatusBadRequest && strings.Contains(refused.text, `"tenant"`):
		hint = "; NetBox has to know the tenant " + s.config.Tenant + ", by its slug"
	}
	return &ipam.Error{
		Reason:  v1.ReasonIPAMRefused,
		Message: fmt.Sprintf("NetBox %s refuses the request: %s%s", s.client.base, refused.text, hint),
	}
}

func (s *System) allocate(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	if err := s.ensurePools(ctx); err != nil {
		return netip.Addr{}, err
	}
	if r.Address.IsValid() {
		return r.Address, s.recordRequested(ctx, r)
	}
	mark := r.Owner.Mark(s.installationID)
	own, err := s.recordsWithMarkPrefix(ctx, mark)
	if err != nil {
		return netip.Addr{}, err
	}
	own = slices.DeleteFunc(own, func(o ipAddress) bool {
		return allocation.FamilyOf(o.addr()) != r.Family || !o.isRecordOfOwner(mark) || !s.hasAddress(&o) ||
			r.Objection(o.addr()) != ""
	})
	if s.config.IsByTenant() {
		if first := lowestID(own); first != nil {
			return first.addr(), nil
		}
		return s.takeFree(ctx, r)
	}
	slices.SortFunc(own, func(a, b ipAddress) int {
		return cmp.Or(order.TrueFirst(a.isComplete(), b.isComplete()), cmp.Compare(a.ID, b.ID))
	})
	for i := range own { // an earlier request may have ended before it looked, or before it completed the record
		isCompleted, err := s.completeOrDelete(ctx, r.Owner, &own[i])
		if isCompleted {
			s.deleteIncomplete(ctx, own[i+1:])
		}
		if err != nil || isCompleted {
			return own[i].addr(), err
		}
	}
	return s.createFree(ctx, r)
}

// deleteIncomplete deletes records that were created for an owner which has another address by now: a NetBox that is
// slow goes on with requests that were given up. What cannot be deleted now a comparison finds.
func (s *System) deleteIncomplete(ctx context.Context, records []ipAddress) {
	for i := range records {
		if records[i].isComplete() {
			continue
		}
		if err := s.delete(ctx, records[i].ID, ""); err != nil {
			return
		}
	}
}

// ensurePools looks up the group's prefixes and ranges, unless they are known.
func (s *System) ensurePools(ctx context.Context) error {
	if s.config.IsByTenant() || len(s.pools) > 0 {
		return nil
	}
	l := newLookup()
	l.requestsLeft = math.MaxInt
	problems, err := s.lookUpPools(ctx, l)
	if err != nil {
		return err
	}
	if len(s.pools) == 0 {
		return &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: strings.Join(problems, "; ")}
	}
	return nil
}

// hasAddress reports whether a record is of an address of the group.
func (s *System) hasAddress(o *ipAddress) bool {
	if s.config.IsByTenant() {
		return o.Tenant != nil && o.Tenant.Slug == s.config.Tenant
	}
	return slices.ContainsFunc(s.pools, func(p pool) bool { return p.contains(o.addr(), o.vrfID()) })
}

// recordsWithMarkPrefix lists the addresses whose mark begins so.
func (s *System) recordsWithMarkPrefix(ctx context.Context, begin string) ([]ipAddress, error) {
	records, err := list[ipAddress](ctx, s.client, pathAddresses, url.Values{"description__isw": {begin}})
	if err != nil {
		return nil, err
	}
	// The filter of NetBox ignores case.
	return slices.DeleteFunc(
		records, func(o ipAddress) bool { return !strings.HasPrefix(o.Description, begin) || !o.addr().IsValid() },
	), nil
}

// recordsAt lists what NetBox has recorded of an address, in any VRF.
func (s *System) recordsAt(ctx context.Context, a netip.Addr) ([]ipAddress, error) {
	records, err := list[ipAddress](ctx, s.client, pathAddresses, url.Values{"address": {a.String()}})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(records, func(o ipAddress) bool { return o.addr() != a }), nil
}

// fields returns what the record of an address is to have when it is the owner's. before is
// what it was, or nil.
func (s *System) fields(o ipam.Owner, a netip.Addr, before *ipAddress) map[string]any {
	fields := map[string]any{"status": s.config.Status, "description": s.descriptionWithMark(o, a, before)}
	if s.config.Role != "" {
		fields["role"] = s.config.Role
	}
	name := s.config.DNSNameOf(o.Namespace, o.Name)
	if name != "" {
		fields["dns_name"] = name
	}
	if s.config.IsByTenant() && before != nil {
		description, comments := before.descriptionAndComments(s.markAt(o, a), name != "")
		fields["description"] = description
		if comments != before.Comments {
			fields["comments"] = comments
		}
	}
	if s.config.Tenant != "" && !s.config.IsByTenant() {
		fields["tenant"] = map[string]string{"slug": s.config.Tenant}
	}
	if len(s.config.Tags) > 0 {
		slugs := slices.Clone(s.config.Tags)
		if before != nil { // a change replaces the whole list
			for _, t := range before.Tags {
				slugs = append(slugs, t.Slug)
			}
		}
		slices.Sort(slugs)
		var tags []map[string]string
		for _, slug := range slices.Compact(slugs) {
			tags = append(tags, map[string]string{"slug": slug})
		}
		fields["tags"] = tags
	}
	return fields
}

// Release removes what is recorded of an address for owners of this cluster.
func (s *System) Release(ctx context.Context, a netip.Addr) error {
	return s.explain(s.release(ctx, a))
}

func (s *System) release(ctx context.Context, a netip.Addr) error {
	records, err := s.recordsAt(ctx, a)
	if err != nil {
		return err
	}
	for i := range records {
		// The prefix may have left the group, or NetBox: the record has to go all the same.
		if o := &records[i]; o.isRecordOf(s.installationID) {
			err = cmp.Or(err, s.releaseRecord(ctx, o))
		}
	}
	return err
}

// releaseRecord deletes a record or, where a tenant's addresses are used, makes the address free
// again. It looks once more if somebody writes into the record at the same moment.
func (s *System) releaseRecord(ctx context.Context, o *ipAddress) error {
	owner, _ := o.mark()
	err := s.releaseRecordOf(ctx, owner, o.ID)
	if isStatus(err, http.StatusPreconditionFailed) {
		err = s.releaseRecordOf(ctx, owner, o.ID)
	}
	return err
}

// releaseRecordOf releases a record of an owner of this cluster, unless it is somebody else's by now: that of another
// tenant or client, or that of a Service to which another manager, which leads now, has given the address.
func (s *System) releaseRecordOf(ctx context.Context, owner string, id int64) error {
	var o ipAddress
	got, err := s.client.sendOnce(ctx, http.MethodGet, recordPath(id), nil, nil, nil, &o)
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	if err != nil || !o.isRecordOfOwner(owner) {
		return err
	}
	k, comments := o.savedFields()
	if !s.config.IsByTenant() && k.Status == "" {
		return s.delete(ctx, id, got.etag)
	}
	fields := map[string]any{"description": o.originalDescription()}
	if comments != o.Comments {
		fields["comments"] = comments
	}
	if !s.config.IsByTenant() || s.hasAddress(&o) {
		fields["status"] = statusReserved
		if s.config.DNSName != "" || k.DNSName != "" {
			fields["dns_name"] = k.DNSName
		}
	}
	return s.change(ctx, id, fields, got.etag)
}

func recordPath(id int64) string { return fmt.Sprintf("%s%d/", pathAddresses, id) }

// delete deletes a record, if its ETag is still the one given. The ETag may be empty.
func (s *System) delete(ctx context.Context, id int64, etag string) error {
	_, err := s.client.sendOnce(ctx, http.MethodDelete, recordPath(id), nil, ifMatch(etag), nil, nil)
	if err = s.confirmNotFound(ctx, id, err); isStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// confirmNotFound looks at a record of which NetBox has said, in err, that it is not there:
// NetBox says so, too, of a record that the token may view and not change or delete.
func (s *System) confirmNotFound(ctx context.Context, id int64, err error) error {
	if !isStatus(err, http.StatusNotFound) {
		return err
	}
	if _, absent := s.client.sendOnce(ctx, http.MethodGet, recordPath(id), nil, nil, nil, nil); absent != nil {
		return absent
	}
	return &requestRefused{answer{status: http.StatusForbidden},
		"the token may view the address, and neither change nor delete it: " +
			"a permission of its user may have a constraint, as for a tag that the address does not have"}
}

// change changes fields of a record, if its ETag is still the one given; NetBox has ETags
// since 4.6.
func (s *System) change(ctx context.Context, id int64, fields map[string]any, etag string) error {
	_, err := s.client.sendOnce(ctx, http.MethodPatch, recordPath(id), nil, ifMatch(etag), fields, nil)
	return s.confirmNotFound(ctx, id, err)
}

// ifMatch returns the header of a request that is done only to a record with an ETag; nil without one.
func ifMatch(etag string) http.Header {
	if etag == "" {
		return nil
	}
	return http.Header{"If-Match": {etag}}
}
