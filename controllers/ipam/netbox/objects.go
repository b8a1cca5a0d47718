package netbox

import (
	"net/netip"
	"slices"
)

// Paths of NetBox's REST API.
const (
	pathAddresses = "/api/ipam/ip-addresses/"
	pathPrefixes  = "/api/ipam/prefixes/"
	pathRanges    = "/api/ipam/ip-ranges/"
	pathVRFs      = "/api/ipam/vrfs/"
	pathStatus    = "/api/status/"
)

// The objects of NetBox, with the fields that are read here.

type choice struct {
	Value string `json:"value"`
}

type object struct {
	ID   int64  `json:"id"`
	Slug string `json:"slug"`
	Name string `json:"name"`
	RD   string `json:"rd"`
}

type ipAddress struct {
	ID          int64    `json:"id"`
	Address     string   `json:"address"`
	VRF         *object  `json:"vrf"`
	Tenant      *object  `json:"tenant"`
	Status      *choice  `json:"status"`
	Role        *choice  `json:"role"`
	DNSName     string   `json:"dns_name"`
	Description string   `json:"description"`
	Comments    string   `json:"comments"`
	Tags        []object `json:"tags"`
}

type prefixObject struct {
	ID     int64   `json:"id"`
	Prefix string  `json:"prefix"`
	VRF    *object `json:"vrf"`
}

type rangeObject struct {
	ID           int64   `json:"id"`
	StartAddress string  `json:"start_address"`
	EndAddress   string  `json:"end_address"`
	VRF          *object `json:"vrf"`
}

// addr returns the address without its mask; not valid if it cannot be read.
func (o *ipAddress) addr() netip.Addr {
	p, err := netip.ParsePrefix(o.Address)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr()
}

// subnet returns the network that the address is in by its mask.
func (o *ipAddress) subnet() netip.Prefix {
	p, err := netip.ParsePrefix(o.Address)
	if err != nil {
		return netip.Prefix{}
	}
	return p.Masked()
}

func (o *ipAddress) vrfID() int64 { return idOf(o.VRF) }

// idOf returns the id of an object, or 0 for none.
func idOf(o *object) int64 {
	if o == nil {
		return 0
	}
	return o.ID
}

func (o *ipAddress) hasTag(slug string) bool {
	return slices.ContainsFunc(o.Tags, func(t object) bool { return t.Slug == slug })
}

// lowestID returns the object with the lowest id, which was created first.
func lowestID(objects []ipAddress) *ipAddress {
	var lowest *ipAddress
	for i := range objects {
		if lowest == nil || objects[i].ID < lowest.ID {
			lowest = &objects[i]
		}
	}
	return lowest
}
