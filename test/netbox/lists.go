package netbox

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// serveList answers GET and POST of a list of objects.
func (s *Server) serveList(r *http.Request, token *Token, app, kind string, body any) *reply {
	if r.Method == http.MethodPost {
		fields, _ := body.(map[string]any)
		return s.create(kind, fields)
	}
	if r.Method != http.MethodGet {
		return detail(http.StatusMethodNotAllowed, "Method \"%s\" not allowed.", r.Method)
	}
	q := r.URL.Query()
	statuses := prefixStatuses
	switch app + "/" + kind {
	case "ipam/ip-addresses":
		statuses = addressStatuses
	case "ipam/prefixes", "ipam/ip-ranges":
	case "ipam/vrfs", "tenancy/tenants", "extras/tags", "ipam/roles":
		return s.page(r, s.listOthers(kind, q))
	default:
		return detail(http.StatusNotFound, "Not found.")
	}
	if refusal := s.checkFilters(q, statuses); refusal != nil {
		return refusal
	}
	return s.page(r, s.listFiltered(token, kind, q))
}

// listFiltered lists addresses, prefixes or ranges.
func (s *Server) listFiltered(token *Token, kind string, q url.Values) (views []map[string]any) {
	switch kind {
	case "ip-addresses":
		all := slices.SortedFunc(slices.Values(s.ips), func(a, b *ipAddress) int {
			return cmp.Or(a.address.Addr().Compare(b.address.Addr()), cmp.Compare(a.id, b.id))
		})
		for _, i := range all {
			if token.sees(i) && i.matches(q) {
				views = append(views, i.view())
			}
		}
	case "prefixes":
		all := slices.SortedFunc(slices.Values(s.prefixes), func(a, b *prefix) int {
			return cmp.Or(a.cidr.Addr().Compare(b.cidr.Addr()), cmp.Compare(a.id, b.id))
		})
		for _, p := range all {
			if p.matches(q, p.cidr.Addr()) && oneOf(q, "prefix", p.cidr.String()) && isWithin(q, "within_include", p.cidr) &&
				slugOf(q, "role", p.role) {
				views = append(views, p.view())
			}
		}
	case "ip-ranges":
		for _, g := range s.ranges {
			isMatch := slugOf(q, "role", g.role) && addressIn(q, "start_address", g.first) &&
				addressIn(q, "end_address", g.last) && isWithin(q, "parent", hostOf(g.first)) &&
				isWithin(q, "parent", hostOf(g.last))
			if isMatch && g.matches(q, g.first.Addr()) {
				views = append(views, g.view())
			}
		}
	}
	return views
}

// listOthers lists VRFs, tenants, tags or roles.
func (s *Server) listOthers(kind string, q url.Values) (views []map[string]any) {
	switch kind {
	case "vrfs":
		for _, v := range s.vrfs {
			if oneOf(q, "name", v.name) && oneOf(q, "rd", v.rd) {
				view, _ := v.view().(map[string]any)
				views = append(views, view)
			}
		}
	default:
		for _, n := range *s.namedOf(kind) {
			if oneOf(q, "name", n.name) && oneOf(q, "slug", n.slug) {
				view, _ := n.view().(map[string]any)
				views = append(views, view)
			}
		}
	}
	return views
}

func (s *Server) namedOf(kind string) *[]*named {
	switch kind {
	case "tenants":
		return &s.tenants
	case "tags":
		return &s.tags
	}
	return &s.roles
}

// checkFilters refuses values of filters that name what is not there.
func (s *Server) checkFilters(q url.Values, statuses []string) *reply {
	refuse := func(name, value string) *reply {
		return invalid(name, "Select a valid choice. %s is not one of the available choices.", value)
	}
	hasSlug := func(all []*named, slug string) bool {
		return slug == "null" || slices.ContainsFunc(all, func(n *named) bool { return n.slug == slug })
	}
	for name, all := range map[string][]*named{"tag": s.tags, "tenant": s.tenants} {
		for _, value := range q[name] {
			if !hasSlug(all, value) {
				return refuse(name, value)
			}
		}
	}
	for _, value := range q["role"] {
		if len(statuses) == len(prefixStatuses) && !hasSlug(s.roles, value) ||
			len(statuses) == len(addressStatuses) && !slices.Contains(addressRoles, value) {
			return refuse("role", value)
		}
	}
	for _, value := range q["status"] {
		if !slices.Contains(statuses, value) {
			return refuse("status", value)
		}
	}
	for _, value := range q["vrf"] {
		if value != "null" && !slices.ContainsFunc(s.vrfs, func(v *vrf) bool { return v.rd == value }) {
			return refuse("vrf", value)
		}
	}
	for _, value := range q["vrf_id"] {
		if value != "null" &&
			!slices.ContainsFunc(s.vrfs, func(v *vrf) bool { return strconv.FormatInt(v.id, 10) == value }) {
			return refuse("vrf_id", value)
		}
	}
	return nil
}

// oneOf reports whether a parameter is absent, or has the value.
func oneOf(q url.Values, name, value string) bool {
	return len(q[name]) == 0 || slices.Contains(q[name], value)
}

func slugOf(q url.Values, name string, n *named) bool {
	if n == nil {
		return oneOf(q, name, "null")
	}
	return oneOf(q, name, n.slug)
}

// addressIn reports whether a parameter is absent or has the address, with or without its
// mask.
func addressIn(q url.Values, name string, a netip.Prefix) bool {
	if len(q[name]) == 0 {
		return true
	}
	return slices.ContainsFunc(q[name], func(text string) bool {
		if p, err := netip.ParsePrefix(text); err == nil {
			return p == a
		}
		addr, err := netip.ParseAddr(text)
		return err == nil && addr == a.Addr()
	})
}

// isWithin reports whether a parameter is absent, or a network that contains p.
func isWithin(q url.Values, name string, p netip.Prefix) bool {
	return len(q[name]) == 0 || slices.ContainsFunc(q[name], func(text string) bool {
		outer, err := netip.ParsePrefix(text)
		return err == nil && outer.Bits() <= p.Bits() && outer.Contains(p.Addr())
	})
}

// hostOf returns an address without the bits of its network.
func hostOf(p netip.Prefix) netip.Prefix { return netip.PrefixFrom(p.Addr(), p.Addr().BitLen()) }

func (c *common) matches(q url.Values, a netip.Addr) bool {
	for _, slug := range q["tag"] { // all of them
		if !slices.ContainsFunc(c.tags, func(t *named) bool { return t.slug == slug }) {
			return false
		}
	}
	family, vrfID, rd := "4", "null", "null"
	if a.Is6() {
		family = "6"
	}
	if c.vrf != nil {
		vrfID, rd = strconv.FormatInt(c.vrf.id, 10), c.vrf.rd
	}
	for _, begin := range q["description__isw"] {
		if !strings.HasPrefix(strings.ToLower(c.description), strings.ToLower(begin)) {
			return false
		}
	}
	return slugOf(q, "tenant", c.tenant) && oneOf(q, "status", c.status) && oneOf(q, "family", family) &&
		oneOf(q, "vrf_id", vrfID) &&
		oneOf(q, "vrf", rd) && oneOf(q, "description", c.description) && oneOf(q, "id", strconv.FormatInt(c.id, 10))
}

func (i *ipAddress) matches(q url.Values) bool {
	return isWithin(q, "parent", hostOf(i.address)) && addressIn(q, "address", i.address) && oneOf(q, "role", i.ipRole) &&
		oneOf(q, "dns_name", i.dnsName) && i.common.matches(q, i.address.Addr())
}

// create answers the creation of an object.
func (s *Server) create(kind string, body map[string]any) *reply {
	text := func(name string) string { value, _ := body[name].(string); return value }
	flag := func(name string, otherwise bool) bool {
		if value, isSet := body[name].(bool); isSet {
			return value
		}
		return otherwise
	}
	switch kind {
	case "ip-addresses":
		i, refusal := s.addAddress(body)
		if refusal != nil {
			return refusal
		}
		return &reply{http.StatusCreated, i.view(), s.etag(i.changed)}
	case "prefixes":
		p := &prefix{common: common{status: "active"}, isPool: flag("is_pool", false)}
		cidr, err := netip.ParsePrefix(text("prefix"))
		if err != nil {
			return invalid("prefix", "Invalid IP prefix format: %s", text("prefix"))
		}
		p.cidr = cidr.Masked()
		if refusal := s.setParent(&p.common, body); refusal != nil {
			return refusal
		}
		for _, other := range s.prefixes {
			if other.cidr == p.cidr && other.vrf == p.vrf && (p.vrf == nil || p.vrf.isUnique) {
				return invalid("prefix", "Duplicate prefix found in global table: %s", other.cidr)
			}
		}
		p.id = s.newID()
		s.prefixes = append(s.prefixes, p)
		return &reply{http.StatusCreated, p.view(), s.etag(p.changed)}
	case "ip-ranges":
		g := &ipRange{common: common{status: "active"}, isPopulated: flag("mark_populated", false)}
		var err1, err2 error
		g.first, err1 = parseAddress(text("start_address"))
		g.last, err2 = parseAddress(text("end_address"))
		if err1 != nil || err2 != nil {
			return invalid("start_address", "Invalid IP address format: %s", text("start_address"))
		}
		if refusal := s.setParent(&g.common, body); refusal != nil {
			return refusal
		}
		g.id = s.newID()
		s.ranges = append(s.ranges, g)
		return &reply{http.StatusCreated, g.view(), s.etag(g.changed)}
	case "vrfs":
		v := &vrf{id: s.newID(), name: text("name"), rd: text("rd"), isUnique: flag("enforce_unique", true)}
		s.vrfs = append(s.vrfs, v)
		return &reply{status: http.StatusCreated, body: v.view()}
	case "tenants", "tags", "roles":
		list := s.namedOf(kind)
		n := &named{name: text("name"), slug: text("slug")}
		if slices.ContainsFunc(*list, func(o *named) bool { return o.slug == n.slug }) {
			return invalid("slug", "%s with this slug already exists.", strings.TrimSuffix(kind, "s"))
		}
		n.id = s.newID()
		*list = append(*list, n)
		return &reply{status: http.StatusCreated, body: n.view()}
	}
	return detail(http.StatusNotFound, "Not found.")
}

func (s *Server) setParent(c *common, body map[string]any) *reply {
	if value, isSet := body["role"]; isSet && value != nil {
		role, problem := lookUp(s.roles, value, namedAttribute)
		if problem != "" {
			return invalid("role", "%s", problem)
		}
		c.role = role
	}
	return s.setCommon(c, body, prefixStatuses)
}
