package netbox

import (
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

	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// partRequests is how many requests of an inspection follow one another, so that allocations and
// releases that come meanwhile need not wait for the rest: that is about one allocation's. Lists of
// several pages, and pools that are counted in several requests, may add some.
const partRequests = 4

// inspection is one that is under way.
type inspection struct {
	system *System
	lookup *lookup
	// pools have been looked up if they are not nil, and problems are theirs.
	pools    []pool
	problems []string
	// counted are the first pools, with what is recorded in them.
	counted []ipam.Range
	// older are the ids of older records of others, by the ids of the cluster's records that have been
	// looked at, and marked those that are yet to be. older is nil until the records have been listed.
	older  map[int64]int64
	marked []ipAddress
}

// BeginInspection returns an inspection of what NetBox has: it looks the pools up, counts what is
// recorded in each, looks for older records of others at the cluster's addresses and, in the end, reads
// the cluster's records.
func (s *System) BeginInspection() ipam.Inspection {
	part := s.inspectTenant
	if !s.config.IsByTenant() {
		i := &inspection{system: s, lookup: newLookup()}
		part = i.next
	}
	return func(ctx context.Context) (*ipam.Report, error) {
		report, err := part(ctx)
		return report, s.explain(err)
	}
}

// next does one part of the inspection.
func (i *inspection) next(ctx context.Context) (*ipam.Report, error) {
	i.lookup.requestsLeft = partRequests
	hasPools, err := i.lookUpPools(ctx)
	if err != nil || !hasPools {
		return nil, err
	}
	areCounted, err := i.countRecords(ctx)
	if err != nil || !areCounted {
		return nil, err
	}
	i.restorePools()
	if i.havePoolsChanged() { // an allocation has found that they have changed
		*i = inspection{system: i.system, lookup: newLookup()}
		return nil, nil //nolint:nilnil // the inspection begins anew
	}
	return i.inspectMoreRecords(ctx)
}

// lookUpPools looks up what it can of the pools, and reports whether they are known.
func (i *inspection) lookUpPools(ctx context.Context) (bool, error) {
	if i.pools != nil {
		return true, nil
	}
	problems, err := i.system.lookUpPools(ctx, i.lookup)
	if errors.Is(err, errPartDone) {
		return false, nil
	}
	if err == nil {
		i.problems, i.pools = problems, append([]pool{}, i.system.pools...)
	}
	return err == nil, err
}

// countRecords counts what is recorded in some of the pools, and reports whether that is known of all.
func (i *inspection) countRecords(ctx context.Context) (bool, error) {
	for len(i.counted) < len(i.pools) {
		if i.lookup.requestsLeft <= 0 {
			return false, nil
		}
		p := &i.pools[len(i.counted)]
		i.lookup.requestsLeft -= 1 + len(p.addrs.Prefixes())/maxAddressesPerQuery
		counted, err := i.system.countedRange(ctx, p)
		if err != nil {
			return false, err
		}
		i.counted = append(i.counted, counted)
	}
	return true, nil
}

// restorePools gives the System the pools of the inspection if it is to look them up again: those of the
// inspection are new enough.
func (i *inspection) restorePools() {
	if i.system.pools == nil {
		i.system.pools = slices.Clone(i.pools)
	}
}

// havePoolsChanged reports whether the group's pools have been looked up meanwhile, and are others.
func (i *inspection) havePoolsChanged() bool {
	return !slices.EqualFunc(i.system.pools, i.pools, func(p, q pool) bool {
		return p.path == q.path && p.addrs == q.addrs && p.subnet == q.subnet && p.vrf == q.vrf
	})
}

// inspectMoreRecords does a part that is about the cluster's records. Where these are many, they are
// listed once to look for older records of others, and once more in the end.
func (i *inspection) inspectMoreRecords(ctx context.Context) (*ipam.Report, error) {
	s := i.system
	if len(i.marked) > 0 {
		some := i.marked[:min(len(i.marked), partRequests*maxAddressesPerQuery)]
		older, err := s.olderRecords(ctx, some)
		if err == nil {
			maps.Copy(i.older, older)
			i.marked = i.marked[len(some):]
		}
		return nil, err
	}
	records, err := s.recordsWithMarkPrefix(ctx, ipam.MarkPrefix(s.installationID))
	if err != nil {
		return nil, err
	}
	if i.older == nil {
		i.older = map[int64]int64{}
		own := s.ownRecords(records)
		if len(own) > maxAddressesPerQuery {
			i.marked = own
			return nil, nil //nolint:nilnil // there is more
		}
		if i.older, err = s.olderRecords(ctx, own); err != nil {
			return nil, err
		}
	}
	report := &ipam.Report{Ranges: i.counted, Problems: i.problems}
	s.addRecords(report, records, i.older)
	return report, nil
}

// ownRecords returns the cluster's records of addresses of the group, without copies.
func (s *System) ownRecords(records []ipAddress) []ipAddress {
	return slices.DeleteFunc(slices.Clone(records), func(o ipAddress) bool { return !s.hasAddress(&o) || o.isCopy() })
}

// addRecords adds the cluster's records of addresses of the group and, as foreign ones, the
// copies of such records, and the cluster's records of addresses that are not the group's. older are
// the ids of older records of others by the ids of the cluster's.
func (s *System) addRecords(report *ipam.Report, records []ipAddress, older map[int64]int64) {
	for i := range records {
		o := &records[i]
		owner, of := o.mark()
		r := ipam.Record{Address: o.addr(), IsForeign: true}
		switch isOfGroup := s.hasAddress(o); {
		case o.isCopy() && (!isOfGroup || s.config.IsByTenant() && s.isFree(o)):
			continue
		case o.isCopy():
			r.Difference = fmt.Sprintf("the record with the id %d has the mark of %s, which is for %s: somebody has copied "+
				"that record, and the copy is not PureLB's",
				o.ID, textlimit.Shorten(ipam.DescribeMark(owner, s.installationID), maxQuoted), of)
		case !isOfGroup:
			r.Difference = fmt.Sprintf("the record with the id %d is that of %s, which does not have the address, and no "+
				"ServiceGroup takes addresses from there: delete the record in NetBox",
				o.ID, textlimit.Shorten(ipam.DescribeMark(owner, s.installationID), maxQuoted))
		case !of.IsValid(): // it is to be completed
			r.IsForeign = false
		default:
			r.Mark, r.IsForeign, r.Difference = owner, false, s.difference(o, older[o.ID])
		}
		report.MarkedRecords = append(report.MarkedRecords, r)
	}
}

// maxAddressesPerQuery is how many addresses a query names: servers take requests of some 4000 bytes.
const maxAddressesPerQuery = 50

// olderRecords finds those of the cluster's records for whose address NetBox has an older
// record of somebody else's. It returns the ids of these by the ids of the cluster's.
func (s *System) olderRecords(ctx context.Context, records []ipAddress) (map[int64]int64, error) {
	older := map[int64]int64{}
	for some := range slices.Chunk(records, maxAddressesPerQuery) {
		query := url.Values{}
		for i := range some {
			query.Add("address", some[i].addr().String())
		}
		all, err := list[ipAddress](ctx, s.client, pathAddresses, query)
		if err != nil {
			return nil, err
		}
		for i := range some {
			o := &some[i]
			first := lowestID(slices.DeleteFunc(slices.Clone(all), func(other ipAddress) bool {
				return other.addr() != o.addr() || other.vrfID() != o.vrfID()
			}))
			if first != nil && first.ID < o.ID && !first.isRecordOf(s.installationID) {
				older[o.ID] = first.ID
			}
		}
	}
	return older, nil
}

// difference says what of a record is not as the group asks for. older is the id of an
// older record of the address, or 0 for none.
func (s *System) difference(o *ipAddress, older int64) string {
	var differences []string
	if older != 0 {
		differences = append(
			differences, fmt.Sprintf("NetBox has an older record of the address, which is somebody else's: id %d", older),
		)
	}
	note := func(what, want string, got *choice) {
		if want != "" && got == nil {
			differences = append(differences, fmt.Sprintf("it has no %s, and not %s", what, want))
		} else if want != "" && got.Value != want {
			differences = append(
				differences, fmt.Sprintf("its %s is %s, and not %s", what, textlimit.Shorten(got.Value, maxQuoted), want),
			)
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
func rangesOf(subnets map[netip.Addr]netip.Prefix) []ipam.Range {
	bySubnet := map[netip.Prefix]*netipx.IPSetBuilder{}
	for a, subnet := range subnets {
		if bySubnet[subnet] == nil {
			bySubnet[subnet] = &netipx.IPSetBuilder{}
		}
		bySubnet[subnet].Add(a)
	}
	var pools []ipam.Range
	for subnet, builder := range bySubnet {
		set, err := builder.IPSet()
		if err != nil {
			continue // only for addresses that are not valid
		}
		for _, r := range set.Ranges() {
			pools = append(pools, ipam.Range{Addrs: r, Subnet: subnet})
		}
	}
	slices.SortFunc(pools, func(a, b ipam.Range) int { return a.Addrs.From().Compare(b.Addrs.From()) })
	return pools
}

// maxSpecialNamed is how many of a tenant's addresses that no Service can have are named.
const maxSpecialNamed = 3

// inspectTenant reports on the addresses that are reserved for the tenant, and on those
// that owners of this cluster have.
func (s *System) inspectTenant(ctx context.Context) (*ipam.Report, error) {
	records, err := s.recordsWithMarkPrefix(ctx, ipam.MarkPrefix(s.installationID))
	if err != nil {
		return nil, err
	}
	report := &ipam.Report{}
	free, err := s.listFree(ctx)
	if isStatus(err, http.StatusBadRequest) {
		report.Problems = append(
			report.Problems, "NetBox has no tenant with the slug "+s.config.Tenant+", that the token may view",
		)
		return report, nil
	}
	if err != nil {
		return nil, err
	}
	older, err := s.olderRecords(ctx, s.ownRecords(records))
	if err != nil {
		return nil, err
	}
	s.addRecords(report, records, older)
	subnets := map[netip.Addr]netip.Prefix{}
	isOurs := map[netip.Addr]bool{}
	var special []string
	free = slices.DeleteFunc(free, func(o ipAddress) bool {
		err := checkAddress(o.addr())
		if err != nil && o.addr().IsValid() {
			special = append(special, err.Error())
		}
		return err != nil
	})
	for _, o := range slices.Concat(free, records) {
		if a := o.addr(); a.IsValid() && (s.isFree(&o) || s.hasAddress(&o) && o.isRecordOf(s.installationID)) {
			subnets[a] = o.subnet()
			isOurs[a] = o.isRecordOf(s.installationID)
		}
	}
	report.Ranges = rangesOf(subnets)
	for i := range report.Ranges {
		for a := range isOurs {
			if isOurs[a] && report.Ranges[i].Addrs.Contains(a) {
				report.Ranges[i].Recorded++
			}
		}
	}
	if len(report.Ranges) > maxPools {
		report.Problems = append(
			report.Problems,
			fmt.Sprintf(
				"the addresses of tenant %s make up %d ranges: only the first %d are used, so reserve addresses that follow one "+
					"another",
				s.config.Tenant, len(report.Ranges), maxPools,
			),
		)
		report.Ranges = report.Ranges[:maxPools]
	}
	if len(special) > 0 {
		report.Problems = append(report.Problems, textlimit.List(special, maxSpecialNamed, "; "))
	}
	if len(report.Ranges) == 0 {
		report.Problems = append(
			report.Problems, strings.TrimSpace("tenant "+s.config.Tenant+" has no address with status "+statusReserved),
		)
	}
	return report, nil
}
