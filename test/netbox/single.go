package netbox

import (
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// serveObject answers GET, PATCH and DELETE of one object that is not an address. It changes
// of a prefix and of a range which addresses they have.
func (s *Server) serveObject(r *http.Request, kind string, id int64, body any) *reply {
	fields, _ := body.(map[string]any)
	switch kind {
	case "prefixes":
		i := slices.IndexFunc(s.prefixes, func(p *prefix) bool { return p.id == id })
		if i < 0 {
			return notFound("Prefix")
		}
		if r.Method == http.MethodDelete {
			s.prefixes = slices.Delete(s.prefixes, i, i+1)
			return &reply{status: http.StatusNoContent}
		}
		if refusal := setAddresses(fields, map[string]*netip.Prefix{"prefix": &s.prefixes[i].cidr}); refusal != nil {
			return refusal
		}
		s.prefixes[i].cidr = s.prefixes[i].cidr.Masked()
		return &reply{http.StatusOK, s.prefixes[i].view(), s.etag(s.prefixes[i].changed)}
	case "ip-ranges":
		i := slices.IndexFunc(s.ranges, func(g *ipRange) bool { return g.id == id })
		if i < 0 {
			return notFound("IPRange")
		}
		if r.Method == http.MethodDelete {
			s.ranges = slices.Delete(s.ranges, i, i+1)
			return &reply{status: http.StatusNoContent}
		}
		if refusal := setAddresses(
			fields, map[string]*netip.Prefix{"start_address": &s.ranges[i].first, "end_address": &s.ranges[i].last},
		); refusal != nil {
			return refusal
		}
		return &reply{http.StatusOK, s.ranges[i].view(), s.etag(s.ranges[i].changed)}
	case "vrfs", "tenants":
		if n := s.dependents(kind, id); n > 0 && r.Method == http.MethodDelete {
			return detail(http.StatusConflict, "Unable to delete object. %d dependent objects were found: …", n)
		}
	}
	switch kind {
	case "vrfs":
		s.vrfs = slices.DeleteFunc(s.vrfs, func(v *vrf) bool { return v.id == id && r.Method == http.MethodDelete })
	case "tenants", "tags", "roles":
		list := s.namedOf(kind)
		*list = slices.DeleteFunc(*list, func(n *named) bool { return n.id == id && r.Method == http.MethodDelete })
	}
	if r.Method == http.MethodDelete {
		return &reply{status: http.StatusNoContent}
	}
	return detail(http.StatusNotFound, "Not found.")
}

// setAddresses sets those addresses with a mask that a change names.
func setAddresses(fields map[string]any, at map[string]*netip.Prefix) *reply {
	for name, to := range at {
		value, isSet := fields[name]
		if !isSet {
			continue
		}
		text, _ := value.(string)
		a, err := netip.ParsePrefix(text)
		if err != nil {
			return invalid(name, "Invalid IP address format: %v", value)
		}
		*to = a
	}
	return nil
}

// dependents counts the prefixes, ranges and addresses that protect a VRF or tenant from
// being deleted.
func (s *Server) dependents(kind string, id int64) (n int) {
	count := func(c *common) {
		if kind == "vrfs" && c.vrf != nil && c.vrf.id == id || kind == "tenants" && c.tenant != nil && c.tenant.id == id {
			n++
		}
	}
	for _, p := range s.prefixes {
		count(&p.common)
	}
	for _, g := range s.ranges {
		count(&g.common)
	}
	for _, i := range s.ips {
		count(&i.common)
	}
	return n
}

// serveAddress answers GET, PATCH and DELETE of an address.
func (s *Server) serveAddress(r *http.Request, token *Token, id int64, body any) *reply {
	at := slices.IndexFunc(s.ips, func(i *ipAddress) bool { return i.id == id })
	if at < 0 {
		return notFound("IPAddress")
	}
	i := s.ips[at]
	mayDo := token.sees(i)
	if r.Method != http.MethodGet {
		mayDo = token.OnlyTagged == "" || i.hasTag(token.OnlyTagged)
	}
	if !mayDo {
		return notFound("IPAddress")
	}
	if match := r.Header.Get("If-Match"); match != "" && match != "*" && s.Version != V44 && r.Method != http.MethodGet {
		if current := s.etag(i.changed); !slices.Contains(strings.Split(match, ","), current["ETag"]) {
			return &reply{http.StatusPreconditionFailed, map[string]string{"detail": "Precondition failed."}, current}
		}
	}
	switch r.Method {
	case http.MethodGet:
	case http.MethodPatch:
		fields, _ := body.(map[string]any)
		changed := *i
		if refusal := s.setAddress(&changed, fields); refusal != nil {
			return refusal
		}
		*i = changed
	case http.MethodDelete:
		s.ips = slices.Delete(s.ips, at, at+1)
		return &reply{status: http.StatusNoContent}
	default:
		return detail(http.StatusMethodNotAllowed, "Method \"%s\" not allowed.", r.Method)
	}
	return &reply{http.StatusOK, i.view(), s.etag(i.changed)}
}

// parent is a prefix or range, as far as its free addresses are concerned.
type parent struct {
	vrf         *vrf
	first, last netip.Addr
	bits        int
	none        bool
	isRange     bool
}

func (s *Server) parentOf(kind string, id int64) (*parent, *reply) {
	switch kind {
	case "prefixes":
		for _, p := range s.prefixes {
			if p.id != id {
				continue
			}
			first, last, bits := p.cidr.Addr(), lastOf(p.cidr), p.cidr.Bits()
			if !p.isPool && bits < first.BitLen()-1 {
				first = first.Next()
				if first.Is4() {
					last = last.Prev()
				}
			}
			return &parent{p.vrf, first, last, bits, false, false}, nil
		}
		return nil, notFound("Prefix")
	case "ip-ranges":
		for _, g := range s.ranges {
			if g.id == id {
				return &parent{g.vrf, g.first.Addr(), g.last.Addr(), g.first.Bits(), g.isPopulated, true}, nil
			}
		}
		return nil, notFound("IPRange")
	}
	return nil, detail(http.StatusNotFound, "Not found.")
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// free lists at most so many free addresses of a parent.
func (s *Server) free(p *parent, most int) []netip.Addr {
	if p.none {
		return nil
	}
	isTaken := map[netip.Addr]bool{}
	for _, i := range s.ips {
		// 4.4 compares addresses with their masks to the ends of ranges: it does not see those
		// with another mask than the range's.
		if isSeen := s.Version != V44 || !p.isRange || i.address.Bits() == p.bits; isSeen && i.vrf == p.vrf {
			isTaken[i.address.Addr()] = true
		}
	}
	var free []netip.Addr
	for a := p.first; a.IsValid() && !p.last.Less(a) && len(free) < most; a = a.Next() {
		isPopulated := slices.ContainsFunc(
			s.ranges, func(g *ipRange) bool { return g.isPopulated && g.vrf == p.vrf && g.contains(a) },
		)
		if !isTaken[a] && !isPopulated {
			free = append(free, a)
		}
	}
	return free
}

// serveAvailable answers GET and POST of the free addresses of a prefix or range.
func (s *Server) serveAvailable(r *http.Request, kind string, id int64, body any) *reply {
	p, refusal := s.parentOf(kind, id)
	if refusal != nil {
		return refusal
	}
	if r.Method == http.MethodGet {
		limit := 50
		if n, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil {
			limit = n
			if n == 0 {
				limit = s.MaxPageSize
			}
		}
		list := []map[string]any{}
		for _, a := range s.free(p, min(limit, s.MaxPageSize)) {
			list = append(
				list,
				map[string]any{
					"family": familyOf(a)["value"], "address": netip.PrefixFrom(a, p.bits).String(), "vrf": p.vrf.view(),
				},
			)
		}
		return &reply{status: http.StatusOK, body: list}
	}
	if r.Method != http.MethodPost {
		return detail(http.StatusMethodNotAllowed, "Method \"%s\" not allowed.", r.Method)
	}
	objects, isList := body.([]any)
	if !isList {
		objects = []any{body}
	}
	free := s.free(p, len(objects))
	if len(free) < len(objects) {
		return detail(http.StatusConflict, "Insufficient resources are available to satisfy the request")
	}
	return s.createAt(p, objects, free, isList)
}

// createAt creates all addresses, or none.
func (s *Server) createAt(p *parent, objects []any, at []netip.Addr, isList bool) *reply {
	before := slices.Clone(s.ips)
	views := []map[string]any{}
	for n, object := range objects {
		fields, _ := object.(map[string]any)
		request := map[string]any{}
		for name, value := range fields {
			request[name] = value
		}
		request["address"] = netip.PrefixFrom(at[n], p.bits).String()
		request["vrf"] = nil
		if p.vrf != nil {
			request["vrf"] = float64(p.vrf.id)
		}
		i, refusal := s.addAddress(request)
		if refusal != nil {
			s.ips = before
			return refusal
		}
		views = append(views, i.view())
	}
	if isList {
		return &reply{status: http.StatusCreated, body: views}
	}
	return &reply{status: http.StatusCreated, body: views[0]}
}
