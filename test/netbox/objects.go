package netbox

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

type vrf struct {
	id       int64
	name     string
	rd       string
	isUnique bool // enforce_unique
}

// named is a tenant, a tag or a role.
type named struct {
	id         int64
	name, slug string
}

// common is what prefixes, ranges and addresses have.
type common struct {
	id          int64
	vrf         *vrf
	tenant      *named
	role        *named // of prefixes and ranges
	tags        []*named
	status      string
	description string
	comments    string
	changed     time.Time
}

type prefix struct {
	common
	cidr   netip.Prefix
	isPool bool
}

type ipRange struct {
	common
	first, last netip.Prefix
	isPopulated bool
}

type ipAddress struct {
	common
	address netip.Prefix
	ipRole  string
	dnsName string
}

func (i *ipAddress) hasTag(slug string) bool {
	return slices.ContainsFunc(i.tags, func(t *named) bool { return t.slug == slug })
}

// rolesNotUnique are those of which NetBox takes one address twice.
var rolesNotUnique = []string{"anycast", "vip", "vrrp", "hsrp", "glbp", "carp"}

var (
	addressStatuses = []string{"active", "reserved", "deprecated", "dhcp", "slaac"}
	prefixStatuses  = []string{"container", "active", "reserved", "deprecated"}
	addressRoles    = []string{"loopback", "secondary", "anycast", "vip", "vrrp", "hsrp", "glbp", "carp"}
	dnsPattern      = regexp.MustCompile(`^([0-9A-Za-z_-]+|\*)(\.[0-9A-Za-z_-]+)*\.?$`)
)

// label returns how NetBox shows a choice.
func label(value string) string {
	switch value {
	case "vip", "vrrp", "hsrp", "glbp", "carp":
		return strings.ToUpper(value)
	case "dhcp", "slaac":
		return strings.ToUpper(value)
	case "":
		return ""
	}
	return strings.ToUpper(value[:1]) + value[1:]
}

func choiceOf(value string) any {
	if value == "" {
		return nil
	}
	return map[string]any{"value": value, "label": label(value)}
}

func familyOf(a netip.Addr) map[string]any {
	if a.Is4() {
		return map[string]any{"value": 4, "label": "IPv4"}
	}
	return map[string]any{"value": 6, "label": "IPv6"}
}

func (n *named) view() any {
	if n == nil {
		return nil
	}
	return map[string]any{
		"id": n.id, "url": fmt.Sprintf("http://netbox/%d/", n.id), "display": n.name, "name": n.name, "slug": n.slug,
		"description": "",
	}
}

func (v *vrf) view() any {
	if v == nil {
		return nil
	}
	var rd any
	if v.rd != "" {
		rd = v.rd
	}
	return map[string]any{
		"id": v.id, "url": fmt.Sprintf("http://netbox/api/ipam/vrfs/%d/", v.id), "display": v.name, "name": v.name, "rd": rd,
		"enforce_unique": v.isUnique, "description": "",
	}
}

func (c *common) view(kind, display string) map[string]any {
	tags := []any{}
	for _, t := range c.tags {
		tags = append(tags, t.view())
	}
	return map[string]any{
		"id": c.id, "url": fmt.Sprintf("http://netbox/api/ipam/%s/%d/", kind, c.id), "display": display,
		"vrf": c.vrf.view(), "tenant": c.tenant.view(), "status": choiceOf(c.status), "description": c.description,
		"comments": c.comments,
		"tags":     tags, "custom_fields": map[string]any{}, "created": c.changed.Format(time.RFC3339Nano),
		"last_updated": c.changed.Format(time.RFC3339Nano),
	}
}

func (p *prefix) view() map[string]any {
	out := p.common.view("prefixes", p.cidr.String())
	out["prefix"], out["family"], out["is_pool"], out["mark_utilized"], out["role"] = p.cidr.String(),
		familyOf(p.cidr.Addr()), p.isPool, false, p.role.view()
	out["children"], out["_depth"], out["vlan"], out["scope"] = 0, 0, nil, nil
	return out
}

func (g *ipRange) view() map[string]any {
	out := g.common.view("ip-ranges", g.first.Addr().String()+"-"+g.last.String())
	out["start_address"], out["end_address"], out["family"], out["role"] = g.first.String(), g.last.String(),
		familyOf(g.first.Addr()), g.role.view()
	out["mark_populated"], out["mark_utilized"] = g.isPopulated, false
	return out
}

func (i *ipAddress) view() map[string]any {
	out := i.common.view("ip-addresses", i.address.String())
	out["address"], out["family"], out["role"], out["dns_name"] = i.address.String(), familyOf(i.address.Addr()),
		choiceOf(i.ipRole), i.dnsName
	out["assigned_object_type"], out["assigned_object_id"], out["assigned_object"] = nil, nil, nil
	out["nat_inside"], out["nat_outside"] = nil, []any{}
	return out
}

// lookUp finds a related object by its id or by its attributes.
func lookUp[T any](all []T, value any, attribute func(T, string) any) (found T, problem string) {
	var matches func(T) bool
	switch v := value.(type) {
	case float64:
		matches = func(o T) bool { return attribute(o, "id") == int64(v) }
		problem = fmt.Sprintf("Related object not found using the provided numeric ID: %d", int64(v))
	case map[string]any:
		matches = func(o T) bool {
			for name, want := range v {
				got := attribute(o, name)
				if n, isNumber := want.(float64); isNumber {
					want = int64(n)
				}
				if got != want {
					return false
				}
			}
			return true
		}
		problem = "Related object not found using the provided attributes: " +
			strings.NewReplacer("map[", "{'", "]", "'}", ":", "': '").Replace(fmt.Sprint(v))
	default:
		return found, fmt.Sprintf(
			"Related objects must be referenced by numeric ID or by dictionary of attributes. Received an unrecognized value: "+
				"%v",
			value,
		)
	}
	n := 0
	for _, o := range all {
		if matches(o) {
			found = o
			n++
		}
	}
	if n == 1 {
		return found, ""
	}
	return found, problem
}

func namedAttribute(n *named, name string) any {
	switch name {
	case "id":
		return n.id
	case "slug":
		return n.slug
	case "name":
		return n.name
	}
	return nil
}

func vrfAttribute(v *vrf, name string) any {
	switch name {
	case "id":
		return v.id
	case "rd":
		return v.rd
	case "name":
		return v.name
	}
	return nil
}

// setCommon sets what prefixes, ranges and addresses have in common from a request.
func (s *Server) setCommon(c *common, body map[string]any, statuses []string) *reply {
	if value, isSet := body["vrf"]; isSet {
		c.vrf = nil
		if value != nil {
			var problem string
			if c.vrf, problem = lookUp(s.vrfs, value, vrfAttribute); problem != "" {
				return invalid("vrf", "%s", problem)
			}
		}
	}
	if value, isSet := body["tenant"]; isSet {
		c.tenant = nil
		if value != nil {
			var problem string
			if c.tenant, problem = lookUp(s.tenants, value, namedAttribute); problem != "" {
				return invalid("tenant", "%s", problem)
			}
		}
	}
	if value, isSet := body["tags"].([]any); isSet {
		c.tags = nil
		for _, v := range value {
			tag, problem := lookUp(s.tags, v, namedAttribute)
			if problem != "" {
				return invalid("tags", "%s", problem)
			}
			if !slices.Contains(c.tags, tag) {
				c.tags = append(c.tags, tag)
			}
		}
	}
	if value, isSet := body["status"]; isSet {
		text, _ := value.(string)
		if !slices.Contains(statuses, text) {
			return invalid("status", "%v is not a valid choice.", value)
		}
		c.status = text
	}
	if value, isSet := body["description"]; isSet {
		text, _ := value.(string)
		if len([]rune(text)) > 200 {
			return invalid("description", "Ensure this field has no more than 200 characters.")
		}
		c.description = strings.TrimSpace(text)
	}
	if value, isSet := body["comments"]; isSet {
		text, _ := value.(string)
		c.comments = strings.TrimSpace(text)
	}
	c.changed = s.now()
	return nil
}

// now is a time that no other object has: the entity tags of two changes differ.
func (s *Server) now() time.Time {
	s.lastChange = s.lastChange.Add(time.Microsecond)
	if t := time.Now().UTC(); t.After(s.lastChange) {
		s.lastChange = t
	}
	return s.lastChange
}

func (s *Server) newID() int64 { s.nextID++; return s.nextID }

// setAddress sets an address's fields from a request, and checks it as a whole.
func (s *Server) setAddress(i *ipAddress, body map[string]any) *reply {
	if value, isSet := body["address"]; isSet {
		text, _ := value.(string)
		address, err := parseAddress(text)
		if err != nil {
			return invalid("address", "Invalid IP address format: %v", value)
		}
		i.address = address
	} else if !i.address.IsValid() {
		return invalid("address", "This field is required.")
	}
	if refusal := s.setCommon(&i.common, body, addressStatuses); refusal != nil {
		return refusal
	}
	if value, isSet := body["role"]; isSet {
		text, _ := value.(string)
		if text != "" && !slices.Contains(addressRoles, text) {
			return invalid("role", "%v is not a valid choice.", value)
		}
		i.ipRole = text
	}
	if value, isSet := body["dns_name"]; isSet {
		text, _ := value.(string)
		if text != "" && !dnsPattern.MatchString(text) {
			return invalid(
				"dns_name", "Only alphanumeric characters, asterisks, hyphens, periods, and underscores are allowed in DNS names",
			)
		}
		i.dnsName = strings.ToLower(text)
	}
	return s.checkAddress(i)
}

func parseAddress(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

func (s *Server) checkAddress(i *ipAddress) *reply {
	if i.vrf == nil || i.vrf.isUnique {
		for _, other := range s.ips {
			if other.id == i.id || other.vrf != i.vrf || other.address.Addr() != i.address.Addr() {
				continue
			}
			if !slices.Contains(rolesNotUnique, i.ipRole) || !slices.Contains(rolesNotUnique, other.ipRole) {
				table := "global table"
				if i.vrf != nil {
					table = "VRF " + i.vrf.name
				}
				return invalid("address", "Duplicate IP address found in %s: %s", table, other.address)
			}
		}
	}
	if i.id == 0 {
		for _, g := range s.ranges {
			if g.isPopulated && g.vrf == i.vrf && g.contains(i.address.Addr()) {
				return invalid("address", "Cannot create IP address %s inside range %s-%s.", i.address, g.first.Addr(), g.last)
			}
		}
	}
	if i.status == "slaac" && i.address.Addr().Is4() {
		return invalid("status", "Only IPv6 addresses can be assigned SLAAC status")
	}
	return nil
}

func (g *ipRange) contains(a netip.Addr) bool {
	return a.BitLen() == g.first.Addr().BitLen() && !a.Less(g.first.Addr()) && !g.last.Addr().Less(a)
}

// addAddress stores a new address.
func (s *Server) addAddress(body map[string]any) (*ipAddress, *reply) {
	i := &ipAddress{common: common{status: "active"}}
	if refusal := s.setAddress(i, body); refusal != nil {
		return nil, refusal
	}
	i.id = s.newID()
	s.ips = append(s.ips, i)
	return i, nil
}

// notFound is the answer where there is no such object.
func notFound(model string) *reply {
	return detail(http.StatusNotFound, "No %s matches the given query.", model)
}
