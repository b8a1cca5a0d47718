package netbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// System is a NetBox, with the addresses that one ServiceGroup takes from it.
type System struct {
	client  *client
	config  *allocation.Netbox
	cluster types.UID
	// pools are those found last, or nil: they are looked up again.
	pools []pool
}

var _ ipam.System = (*System)(nil)

// Connect returns the NetBox that config names. It sends nothing.
func Connect(config *allocation.Netbox, token string, cluster types.UID, o Options) (*System, error) {
	c, err := newClient(config.URL, token, config.CABundle, o)
	if err != nil {
		return nil, err
	}
	return &System{client: c, config: config, cluster: cluster}, nil
}

// Allocate records an address as the owner's.
func (s *System) Allocate(ctx context.Context, r ipam.Request) (netip.Addr, error) {
	a, err := s.allocate(ctx, &r)
	return a, s.explain(err)
}

// explain turns an answer that refuses a request into an error for people.
func (s *System) explain(err error) error {
	var refused *statusError
	if !errors.As(err, &refused) {
		return err
	}
	hint := ""
	switch {
	case refused.status == http.StatusForbidden:
		hint = "; the token's user needs the permissions to view prefixes, IP ranges, VRFs, tenants and tags, and to view, add, change and delete IP addresses"
	case refused.status == http.StatusBadRequest && strings.Contains(refused.text, `"tags"`):
		hint = "; NetBox has to know the tags " + strings.Join(s.config.Tags, ", ") + ", by their slugs"
	case refused.status == http.StatusBadRequest && strings.Contains(refused.text, `"tenant"`):
		hint = "; NetBox has to know the tenant " + s.config.Tenant + ", by its slug"
	}
	return &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: fmt.Sprintf("NetBox %s refuses the request: %s%s", s.client.base, refused.text, hint)}
}

func (s *System) allocate(ctx context.Context, r *ipam.Request) (netip.Addr, error) {
	if err := s.ensurePools(ctx); err != nil {
		return netip.Addr{}, err
	}
	if r.Address.IsValid() {
		return r.Address, s.recordRequested(ctx, r)
	}
	own, err := s.recordsMarked(ctx, r.Owner.Mark(s.cluster))
	if err != nil {
		return netip.Addr{}, err
	}
	own = slices.DeleteFunc(own, func(o ipAddress) bool {
		return allocation.FamilyOf(o.addr()) != r.Family || !s.hasAddress(&o) || r.Objection(o.addr()) != ""
	})
	if first := lowestID(own); first != nil {
		return first.addr(), nil
	}
	if s.config.IsByTenant() {
		return s.takeReserved(ctx, r)
	}
	return s.createFree(ctx, r)
}

// ensurePools looks up the group's prefixes and ranges, unless they are known.
func (s *System) ensurePools(ctx context.Context) error {
	if s.config.IsByTenant() || len(s.pools) > 0 {
		return nil
	}
	pools, problems, err := s.resolvePools(ctx)
	if err != nil {
		return err
	}
	if s.pools = pools; len(pools) == 0 {
		return &ipam.Error{Reason: v1.ReasonIPAMRefused, Message: strings.Join(problems, "; ")}
	}
	return nil
}

// hasAddress reports whether a record is of an address of the group.
func (s *System) hasAddress(o *ipAddress) bool {
	if s.config.IsByTenant() {
		return o.Tenant != nil && o.Tenant.Slug == s.config.Tenant
	}
	return s.poolOf(o.addr(), o.vrfID()) != nil
}

func (s *System) poolOf(a netip.Addr, vrf int64) *pool {
	for i := range s.pools {
		if s.pools[i].contains(a, vrf) {
			return &s.pools[i]
		}
	}
	return nil
}

// recordsMarked lists the addresses whose mark begins so.
func (s *System) recordsMarked(ctx context.Context, begin string) ([]ipAddress, error) {
	records, err := list[ipAddress](ctx, s.client, pathAddresses, url.Values{"description__isw": {begin}})
	if err != nil {
		return nil, err
	}
	// The filter of NetBox ignores case.
	return slices.DeleteFunc(records, func(o ipAddress) bool { return !strings.HasPrefix(o.Description, begin) || !o.addr().IsValid() }), nil
}

// recordsAt lists what NetBox has recorded of an address, in any VRF.
func (s *System) recordsAt(ctx context.Context, a netip.Addr) ([]ipAddress, error) {
	records, err := list[ipAddress](ctx, s.client, pathAddresses, url.Values{"address": {a.String()}})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(records, func(o ipAddress) bool { return o.addr() != a }), nil
}

// fields returns what an address is to have when it is the owner's.
func (s *System) fields(o ipam.Owner, before *ipAddress) map[string]any {
	description := o.Mark(s.cluster)
	if before != nil && before.Description != "" && !before.isMarked() {
		description += descriptionSeparator + before.Description
	} else if before != nil {
		if _, rest, ok := strings.Cut(before.Description, descriptionSeparator); ok {
			description += descriptionSeparator + rest
		}
	}
	fields := map[string]any{"status": s.config.Status, "description": cutRunes(description, ipam.MaxMark)}
	if s.config.Role != "" {
		fields["role"] = s.config.Role
	}
	if name := s.config.DNSNameOf(o.Namespace, o.Name); name != "" {
		fields["dns_name"] = name
	}
	if s.config.Tenant != "" && !s.config.IsByTenant() {
		fields["tenant"] = map[string]string{"slug": s.config.Tenant}
	}
	if len(s.config.Tags) > 0 {
		slugs := map[string]bool{}
		for _, slug := range s.config.Tags {
			slugs[slug] = true
		}
		if before != nil { // a change replaces the whole list
			for _, t := range before.Tags {
				slugs[t.Slug] = true
			}
		}
		var tags []map[string]string
		for _, slug := range slices.Sorted(maps.Keys(slugs)) {
			tags = append(tags, map[string]string{"slug": slug})
		}
		fields["tags"] = tags
	}
	return fields
}

// cutRunes cuts a text after so many letters, which is how NetBox counts.
func cutRunes(s string, most int) string {
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most])
	}
	return s
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
		// After the prefix has gone from NetBox, the record still has to go.
		if o := &records[i]; o.isOf(s.cluster) && (s.hasAddress(o) || len(s.pools) == 0) {
			err = cmp.Or(err, s.releaseRecord(ctx, o))
		}
	}
	return err
}

// releaseRecord deletes a record or, in the mode of reserved addresses, reserves the
// address again.
func (s *System) releaseRecord(ctx context.Context, o *ipAddress) error {
	if s.config.IsByTenant() {
		_, before, _ := strings.Cut(o.Description, descriptionSeparator)
		fields := map[string]any{"status": statusReserved, "description": before}
		if s.config.DNSName != "" {
			fields["dns_name"] = ""
		}
		return s.change(ctx, o.ID, fields, "")
	}
	return s.delete(ctx, o.ID)
}

func recordPath(id int64) string { return fmt.Sprintf("%s%d/", pathAddresses, id) }

func (s *System) delete(ctx context.Context, id int64) error {
	_, err := s.client.send(ctx, http.MethodDelete, recordPath(id), nil, nil, nil, nil)
	if err = s.checkAbsence(ctx, id, err); isStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// checkAbsence looks at a record of which NetBox has said, in err, that it is not there:
// NetBox says so, too, of a record that the token may view and not change or delete.
func (s *System) checkAbsence(ctx context.Context, id int64, err error) error {
	if !isStatus(err, http.StatusNotFound) {
		return err
	}
	if _, absent := s.client.send(ctx, http.MethodGet, recordPath(id), nil, nil, nil, nil); absent != nil {
		return absent
	}
	return &statusError{answer{status: http.StatusForbidden}, "the token may view the address, and neither change nor delete it: " +
		"a permission of its user may have a constraint, as for a tag that the address does not have"}
}

// change changes fields of a record, if its ETag is still the one given; NetBox has ETags
// since 4.6.
func (s *System) change(ctx context.Context, id int64, fields map[string]any, etag string) error {
	header := http.Header{}
	if etag != "" {
		header.Set("If-Match", etag)
	}
	_, err := s.client.send(ctx, http.MethodPatch, recordPath(id), nil, header, fields, nil)
	return s.checkAbsence(ctx, id, err)
}

// Inspect returns what NetBox has.
func (s *System) Inspect(ctx context.Context) (*ipam.Report, error) {
	report, err := s.inspect(ctx)
	return report, s.explain(err)
}

func (s *System) inspect(ctx context.Context) (*ipam.Report, error) {
	records, err := s.recordsMarked(ctx, ipam.MarksOfCluster(s.cluster))
	if err != nil {
		return nil, err
	}
	if s.config.IsByTenant() {
		return s.inspectTenant(ctx, records)
	}
	report := &ipam.Report{}
	if s.pools, report.Problems, err = s.resolvePools(ctx); err != nil {
		return nil, err
	}
	s.pools = slices.DeleteFunc(s.pools, func(p pool) bool {
		err := allocation.RefuseRange(p.addrs)
		if err != nil {
			report.Problems = append(report.Problems, err.Error())
		}
		return err != nil
	})
	if len(s.pools) > maxPools {
		report.Problems = append(report.Problems, fmt.Sprintf("the selector finds %d prefixes and ranges in NetBox: only the first %d are used", len(s.pools), maxPools))
		s.pools = s.pools[:maxPools]
	}
	for i := range s.pools {
		p, err := s.reportOf(ctx, &s.pools[i])
		if err != nil {
			return nil, err
		}
		report.Pools = append(report.Pools, p)
	}
	s.addRecords(report, records)
	return report, nil
}

// maxPools is how many ranges of a ServiceGroup its status has room for.
const maxPools = 128

// addRecords adds the records that are of the group.
func (s *System) addRecords(report *ipam.Report, records []ipAddress) {
	for i := range records {
		if o := &records[i]; s.hasAddress(o) {
			report.Records = append(report.Records, ipam.Record{Address: o.addr(), Mark: o.mark(), Difference: s.difference(o)})
		}
	}
}

// difference says what of a record is not as the group asks for.
func (s *System) difference(o *ipAddress) string {
	var differences []string
	note := func(what, want string, got *choice) {
		if want != "" && got == nil {
			differences = append(differences, fmt.Sprintf("it has no %s, and not %s", what, want))
		} else if want != "" && got.Value != want {
			differences = append(differences, fmt.Sprintf("its %s is %s, and not %s", what, got.Value, want))
		}
	}
	note("status", s.config.Status, o.Status)
	note("role", s.config.Role, o.Role)
	if s.config.Tenant != "" && (o.Tenant == nil || o.Tenant.Slug != s.config.Tenant) {
		differences = append(differences, "it is not of tenant "+s.config.Tenant)
	}
	for _, tag := range s.config.Tags {
		if !o.hasTag(tag) {
			differences = append(differences, "it has no tag "+tag)
		}
	}
	return strings.Join(differences, ", ")
}

// rangesOf returns the ranges that addresses make up, each within one subnet.
func rangesOf(subnets map[netip.Addr]netip.Prefix) []ipam.Pool {
	bySubnet := map[netip.Prefix]*netipx.IPSetBuilder{}
	for a, subnet := range subnets {
		if bySubnet[subnet] == nil {
			bySubnet[subnet] = &netipx.IPSetBuilder{}
		}
		bySubnet[subnet].Add(a)
	}
	var pools []ipam.Pool
	for subnet, builder := range bySubnet {
		set, err := builder.IPSet()
		if err != nil {
			continue // only for addresses that are not valid
		}
		for _, r := range set.Ranges() {
			pools = append(pools, ipam.Pool{Addrs: r, Subnet: subnet})
		}
	}
	slices.SortFunc(pools, func(a, b ipam.Pool) int { return a.Addrs.From().Compare(b.Addrs.From()) })
	return pools
}
