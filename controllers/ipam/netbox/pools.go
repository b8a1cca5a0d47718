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
	"strconv"

	"go4.org/netipx"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/ipam"
)

// pool is a prefix or IP range of NetBox that addresses are created in.
type pool struct {
	// path of the prefix or range, with its id.
	path   string
	addrs  netipx.IPRange
	subnet netip.Prefix
	vrf    int64 // 0 for none
	isCIDR bool
	// isChosenHere says that NetBox has refused its own choice: until the pools are looked up
	// again, the address is chosen from the list of free ones.
	isChosenHere bool
}

func (p *pool) contains(a netip.Addr, vrf int64) bool { return p.vrf == vrf && p.addrs.Contains(a) }

func (p *pool) family() allocation.Family { return allocation.FamilyOf(p.addrs.From()) }

// String is how users write the pool.
func (p *pool) String() string {
	if p.isCIDR {
		return p.subnet.String()
	}
	return p.addrs.String()
}

// maxPools is how many ranges of a ServiceGroup its status has room for.
const maxPools = 128

// lookup is what is found out about the prefixes and ranges of a group, in one or several parts:
// each part goes through the whole, and asks for what is not known yet.
type lookup struct {
	queries map[allocation.Family]selection
	// named are the prefixes and ranges found by each name, and selected by each selector.
	named    map[string][]pool
	selected map[allocation.Family][]pool
	// requestsLeft is how much may still be asked for in this part.
	requestsLeft int
}

// selection is the query of a selector, or why there is none.
type selection struct {
	query   url.Values
	problem string
}

func newLookup() *lookup {
	return &lookup{
		queries: map[allocation.Family]selection{}, named: map[string][]pool{}, selected: map[allocation.Family][]pool{},
	}
}

// errPartDone says that the rest of a lookup is for the next part.
var errPartDone = errors.New("there is more to look up")

// lookedUp returns what is known by a key, or asks for it if this part may still ask.
func lookedUp[K comparable, V any](l *lookup, known map[K]V, key K, ask func() (V, error)) (V, error) {
	if v, isKnown := known[key]; isKnown {
		return v, nil
	}
	var none V
	if l.requestsLeft <= 0 {
		return none, errPartDone
	}
	l.requestsLeft--
	v, err := ask()
	if err == nil {
		known[key] = v
	}
	return v, err
}

// lookUpPools looks up the prefixes and ranges that addresses are created in. problems say
// what the group asks for and NetBox does not have, and what no Service can have.
func (s *System) lookUpPools(ctx context.Context, l *lookup) (problems []string, err error) {
	pools, problems, err := s.resolvePools(ctx, l)
	if err != nil {
		return nil, err
	}
	pools = slices.DeleteFunc(pools, func(p pool) bool {
		err := allocation.CheckRange(p.addrs)
		if err != nil {
			problems = append(problems, err.Error())
		}
		return err != nil
	})
	if len(pools) > maxPools {
		problems = append(
			problems,
			fmt.Sprintf("the selector finds %d prefixes and ranges in NetBox: only the first %d are used", len(pools), maxPools),
		)
		pools = pools[:maxPools]
	}
	s.pools = pools
	maps.DeleteFunc(s.poolHistories, func(path string, _ *poolHistory) bool {
		return !slices.ContainsFunc(pools, func(p pool) bool { return p.path == path })
	})
	return problems, nil
}

// resolvePools looks up the prefixes and ranges of the group. problems say what the group
// names and NetBox does not have.
func (s *System) resolvePools(ctx context.Context, l *lookup) (pools []pool, problems []string, err error) {
	for _, family := range []allocation.Family{allocation.IPv4, allocation.IPv6} {
		source, isAsked := s.config.Sources[family]
		if !isAsked {
			continue
		}
		selected, err := lookedUp(l, l.queries, family, func() (q selection, err error) {
			q.query, q.problem, err = s.selectorQuery(ctx, &source.Selector)
			return q, err
		})
		if err != nil {
			return nil, nil, err
		}
		if selected.problem != "" {
			problems = append(problems, selected.problem)
			continue
		}
		var found []pool
		if len(source.Prefixes) == 0 && len(source.Ranges) == 0 {
			found, err = lookedUp(l, l.selected, family, func() ([]pool, error) {
				return s.selectPools(ctx, family, selected.query)
			})
			if err == nil && len(found) == 0 {
				problems = append(
					problems,
					fmt.Sprintf(
						"NetBox has no active %s prefix or range, that the token may view, with %s", family,
						describeSelector(&source.Selector),
					),
				)
			}
		} else {
			var missing []string
			found, missing, err = s.namedPools(ctx, &source, selected.query, l)
			problems = append(problems, missing...)
		}
		if isStatus(err, http.StatusBadRequest) { // a slug that NetBox does not know
			problems = append(problems, "NetBox does not know what the selector names: "+err.Error())
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		pools = append(pools, found...)
	}
	return pools, problems, nil
}

// selectorQuery returns the parameters of lists for a selector, or says why nothing can be
// selected.
func (s *System) selectorQuery(
	ctx context.Context, sel *v1.NetboxSelector,
) (query url.Values, problem string, err error) {
	query = url.Values{}
	for name, value := range map[string]string{"tag": sel.Tag, "role": sel.Role, "tenant": sel.Tenant} {
		if value != "" {
			query.Set(name, value)
		}
	}
	switch sel.VRF {
	case "":
	case allocation.NetboxVRFGlobal:
		query.Set("vrf_id", "null")
	default:
		vrfs, err := list[object](ctx, s.client, pathVRFs, url.Values{"name": {sel.VRF}})
		if err == nil && len(vrfs) == 0 {
			vrfs, err = list[object](ctx, s.client, pathVRFs, url.Values{"rd": {sel.VRF}})
		}
		if err != nil {
			return nil, "", err
		}
		if len(vrfs) != 1 {
			return nil, fmt.Sprintf(
				"NetBox has %d VRFs with the name or route distinguisher %s, that the token may view: there must be one", len(vrfs),
				sel.VRF,
			), nil
		}
		query.Set("vrf_id", strconv.FormatInt(vrfs[0].ID, 10))
	}
	return query, "", nil
}

func describeSelector(sel *v1.NetboxSelector) string {
	text := ""
	for _, part := range [][2]string{{"tag", sel.Tag}, {"role", sel.Role}, {"tenant", sel.Tenant}, {"VRF", sel.VRF}} {
		if part[1] != "" {
			if text != "" {
				text += ", "
			}
			text += part[0] + " " + part[1]
		}
	}
	return text
}

// namedPools looks up the prefixes and ranges that the group names.
func (s *System) namedPools(
	ctx context.Context, source *allocation.NetboxSource, query url.Values, l *lookup,
) (pools []pool, problems []string, err error) {
	choose := func(name string, found []pool) {
		switch len(found) {
		case 1:
			pools = append(pools, found[0])
		case 0:
			problems = append(problems, fmt.Sprintf("NetBox has no %s, or the token may not view it", name))
		default:
			problems = append(
				problems,
				fmt.Sprintf(
					"NetBox has %d of %s: say which one by selector.vrf (%q for that in no VRF)", len(found), name,
					allocation.NetboxVRFGlobal,
				),
			)
		}
	}
	for _, prefix := range source.Prefixes {
		found, err := lookedUp(l, l.named, prefix.String(), func() ([]pool, error) {
			return s.listPrefixes(ctx, withParameters(query, "prefix", prefix.String()))
		})
		if err != nil {
			return nil, nil, err
		}
		choose("prefix "+prefix.String(), found)
	}
	for _, r := range source.Ranges {
		found, err := lookedUp(l, l.named, r.String(), func() ([]pool, error) {
			return s.listRanges(ctx, withParameters(query, "start_address", r.From().String(), "end_address", r.To().String()))
		})
		if err != nil {
			return nil, nil, err
		}
		choose("IP range "+r.String(), found)
	}
	return pools, problems, nil
}

// selectPools lists the active prefixes and ranges that a selector finds, without those
// that another one contains.
func (s *System) selectPools(ctx context.Context, family allocation.Family, query url.Values) ([]pool, error) {
	number := "4"
	if family == allocation.IPv6 {
		number = "6"
	}
	query = withParameters(query, "family", number, "status", "active")
	prefixes, err := s.listPrefixes(ctx, query)
	if err != nil {
		return nil, err
	}
	ranges, err := s.listRanges(ctx, query)
	if err != nil {
		return nil, err
	}
	var pools []pool
	for _, p := range append(prefixes, ranges...) {
		isContained := slices.ContainsFunc(pools, func(other pool) bool {
			return other.vrf == p.vrf && other.addrs.Contains(p.addrs.From()) && other.addrs.Contains(p.addrs.To())
		})
		if !isContained {
			pools = append(pools, p)
		}
	}
	return pools, nil
}

// withParameters returns a copy of a query with more parameters, each a name and a value.
func withParameters(query url.Values, parameters ...string) url.Values {
	more := url.Values{}
	maps.Copy(more, query)
	for i := 0; i+1 < len(parameters); i += 2 {
		more.Set(parameters[i], parameters[i+1])
	}
	return more
}

func (s *System) listPrefixes(ctx context.Context, query url.Values) ([]pool, error) {
	objects, err := list[prefixObject](ctx, s.client, pathPrefixes, query)
	if err != nil {
		return nil, err
	}
	var pools []pool
	for _, o := range objects {
		if subnet := o.Prefix.Masked(); subnet.IsValid() {
			pools = append(pools, pool{
				path: fmt.Sprintf("%s%d/", pathPrefixes, o.ID), addrs: netipx.RangeOfPrefix(subnet),
				subnet: subnet, vrf: idOf(o.VRF), isCIDR: true,
			})
		}
	}
	return pools, nil
}

func (s *System) listRanges(ctx context.Context, query url.Values) ([]pool, error) {
	objects, err := list[rangeObject](ctx, s.client, pathRanges, query)
	if err != nil {
		return nil, err
	}
	var pools []pool
	for _, o := range objects {
		if r := netipx.IPRangeFrom(o.StartAddress.Addr(), o.EndAddress.Addr()); r.IsValid() {
			pools = append(pools, pool{
				path: fmt.Sprintf("%s%d/", pathRanges, o.ID), addrs: r, subnet: o.StartAddress.Masked(), vrf: idOf(o.VRF),
			})
		}
	}
	return pools, nil
}

// maxAvailable is how many free addresses are listed at most.
const maxAvailable = 1000

// availableAddresses lists free addresses of a pool, lowest first.
func (s *System) availableAddresses(ctx context.Context, p *pool) ([]netip.Addr, error) {
	var found []ipAddress
	if _, err := s.client.sendOnce(
		ctx, http.MethodGet, p.path+"available-ips/", url.Values{"limit": {strconv.Itoa(maxAvailable)}}, nil, nil, &found,
	); err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 0, len(found))
	for i := range found {
		if a := found[i].addr(); a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// countedRange returns the range of a pool, with how many of its addresses are recorded.
func (s *System) countedRange(ctx context.Context, p *pool) (ipam.Range, error) {
	out := ipam.Range{Addrs: p.addrs, Subnet: p.subnet}
	for some := range slices.Chunk(p.addrs.Prefixes(), maxAddressesPerQuery) {
		query := url.Values{"vrf_id": {vrfParameter(p.vrf)}}
		for _, prefix := range some {
			query.Add("parent", prefix.String())
		}
		recorded, err := count(ctx, s.client, pathAddresses, query)
		if err != nil {
			return out, err
		}
		out.Recorded += recorded
	}
	return out, nil
}

// vrfParameter returns the value of the parameter vrf_id for a VRF.
func vrfParameter(id int64) string {
	if id == 0 {
		return "null"
	}
	return strconv.FormatInt(id, 10)
}
