package netbox

import (
	"net/netip"
	"slices"
)

// Address is one address that the fake has recorded.
type Address struct {
	ID          int64
	Address     netip.Prefix
	VRF, Tenant string
	Status      string
	Role        string
	DNSName     string
	Description string
	Tags        []string
}

// Addresses returns all recorded addresses, in the order of their creation.
func (s *Server) Addresses() []Address {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Address, 0, len(s.ips))
	for _, i := range s.ips {
		a := Address{
			ID: i.id, Address: i.address, Status: i.status, Role: i.ipRole, DNSName: i.dnsName, Description: i.description,
		}
		if i.vrf != nil {
			a.VRF = i.vrf.name
		}
		if i.tenant != nil {
			a.Tenant = i.tenant.slug
		}
		for _, t := range i.tags {
			a.Tags = append(a.Tags, t.slug)
		}
		out = append(out, a)
	}
	return out
}

// Create stores an object as its creation by the API does, and returns its id, or 0 if it
// is refused.
func (s *Server) Create(kind string, fields map[string]any) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.create(kind, fields)
	view, _ := out.body.(map[string]any)
	id, _ := view["id"].(int64)
	return id
}

// Edit changes an address as its change by the API does. It reports whether that was
// accepted.
func (s *Server) Edit(id int64, fields map[string]any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.ips {
		if i.id == id {
			changed := *i
			if s.setAddress(&changed, fields) != nil {
				return false
			}
			*i = changed
			return true
		}
	}
	return false
}

// Delete removes the object with an id.
func (s *Server) Delete(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ips = slices.DeleteFunc(s.ips, func(i *ipAddress) bool { return i.id == id })
	s.prefixes = slices.DeleteFunc(s.prefixes, func(p *prefix) bool { return p.id == id })
	s.ranges = slices.DeleteFunc(s.ranges, func(g *ipRange) bool { return g.id == id })
}
