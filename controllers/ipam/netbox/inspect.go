package netbox

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/purelb/purelb-operator/controllers/ipam"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

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
	if report.Problems, err = s.lookUpPools(ctx); err != nil {
		return nil, err
	}
	for i := range s.pools {
		p, err := s.reportOf(ctx, &s.pools[i])
		if err != nil {
			return nil, err
		}
		report.Pools = append(report.Pools, p)
	}
	return report, s.addRecords(ctx, report, records)
}

// addRecords adds the cluster's records of addresses of the group and, as foreign ones, the
// copies of such records, and the cluster's records of addresses that are not the group's.
func (s *System) addRecords(ctx context.Context, report *ipam.Report, records []ipAddress) error {
	older, err := s.olderRecords(ctx, slices.DeleteFunc(slices.Clone(records), func(o ipAddress) bool { return !s.hasAddress(&o) || o.isCopy() }))
	if err != nil {
		return err
	}
	for i := range records {
		o := &records[i]
		owner, of := o.mark()
		r := ipam.Record{Address: o.addr(), IsForeign: true}
		switch isOfGroup := s.hasAddress(o); {
		case o.isCopy() && (!isOfGroup || s.config.IsByTenant() && s.isFree(o)):
			continue
		case o.isCopy():
			r.Difference = fmt.Sprintf("the record with the id %d has the mark of %s, which is for %s: somebody has copied that record, and the copy is not PureLB's",
				o.ID, textlimit.Shorten(ipam.DescribeMark(owner, s.cluster), maxQuoted), of)
		case !isOfGroup:
			r.Difference = fmt.Sprintf("the record with the id %d is that of %s, which does not have the address, and no ServiceGroup takes addresses from there: delete the record in NetBox",
				o.ID, textlimit.Shorten(ipam.DescribeMark(owner, s.cluster), maxQuoted))
		case !of.IsValid(): // it is to be completed
			r.IsForeign = false
		default:
			r.Mark, r.IsForeign, r.Difference = owner, false, s.difference(o, older[o.ID])
		}
		report.Records = append(report.Records, r)
	}
	return nil
}

// maxNamed is how many addresses a query names: servers take requests of some 4000 bytes.
const maxNamed = 50

// olderRecords finds those of the cluster's records for whose address NetBox has an older
// record of somebody else's. It returns the ids of these by the ids of the cluster's.
func (s *System) olderRecords(ctx context.Context, records []ipAddress) (map[int64]int64, error) {
	older := map[int64]int64{}
	for some := range slices.Chunk(records, maxNamed) {
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
			if first != nil && first.ID < o.ID && !first.isOf(s.cluster) {
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
		differences = append(differences, fmt.Sprintf("NetBox has an older record of the address, which is somebody else's: id %d", older))
	}
	note := func(what, want string, got *choice) {
		if want != "" && got == nil {
			differences = append(differences, fmt.Sprintf("it has no %s, and not %s", what, want))
		} else if want != "" && got.Value != want {
			differences = append(differences, fmt.Sprintf("its %s is %s, and not %s", what, textlimit.Shorten(got.Value, maxQuoted), want))
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

// inspectTenant reports on the addresses that are reserved for the tenant, and on those
// that owners of this cluster have.
func (s *System) inspectTenant(ctx context.Context, records []ipAddress) (*ipam.Report, error) {
	report := &ipam.Report{}
	free, err := s.reserved(ctx)
	if isStatus(err, http.StatusBadRequest) {
		report.Problems = append(report.Problems, "NetBox has no tenant with the slug "+s.config.Tenant+", that the token may view")
		return report, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.addRecords(ctx, report, records); err != nil {
		return nil, err
	}
	subnets := map[netip.Addr]netip.Prefix{}
	isOurs := map[netip.Addr]bool{}
	for _, o := range slices.Concat(free, records) {
		if a := o.addr(); a.IsValid() && (s.isFree(&o) || s.hasAddress(&o) && o.isOf(s.cluster)) {
			subnets[a] = o.subnet()
			isOurs[a] = o.isOf(s.cluster)
		}
	}
	report.Pools = rangesOf(subnets)
	for i := range report.Pools {
		for a := range isOurs {
			if isOurs[a] && report.Pools[i].Addrs.Contains(a) {
				report.Pools[i].Recorded++
			}
		}
	}
	if len(report.Pools) > maxPools {
		report.Problems = append(report.Problems, fmt.Sprintf("the addresses of tenant %s make up %d ranges: only the first %d are used, so reserve addresses that follow one another", s.config.Tenant, len(report.Pools), maxPools))
		report.Pools = report.Pools[:maxPools]
	}
	if len(report.Pools) == 0 {
		report.Problems = append(report.Problems, strings.TrimSpace("tenant "+s.config.Tenant+" has no address with status "+statusReserved))
	}
	return report, nil
}
