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
}

type ipAddress struct {
	ID          int64         `json:"id"`
	Address     lenientPrefix `json:"address"`
	VRF         *object       `json:"vrf"`
	Tenant      *object       `json:"tenant"`
	Status      *choice       `json:"status"`
	Role        *choice       `json:"role"`
	DNSName     string        `json:"dns_name"`
	Description string        `json:"description"`
	Comments    string        `json:"comments"`
	Tags        []object      `json:"tags"`
}

type prefixObject struct {
	ID     int64         `json:"id"`
	Prefix lenientPrefix `json:"prefix"`
	VRF    *object       `json:"vrf"`
}

type rangeObject struct {
	ID           int64         `json:"id"`
	StartAddress lenientPrefix `json:"start_address"`
	EndAddress   lenientPrefix `json:"end_address"`
	VRF          *object       `json:"vrf"`
}

// lenientPrefix is an address with its mask, or a network. It is not valid where NetBox has another text: what cannot
// be read holds up no other object.
type lenientPrefix struct{ netip.Prefix }

// UnmarshalText reads a prefix.
func (p *lenientPrefix) UnmarshalText(text []byte) error {
	p.Prefix, _ = netip.ParsePrefix(string(text))
	return nil
}

// addr returns the address without its mask; not valid if it cannot be read.
func (a *ipAddress) addr() netip.Addr { return a.Address.Addr() }

// subnet returns the network that the address is in by its mask.
func (a *ipAddress) subnet() netip.Prefix { return a.Address.Masked() }

func (a *ipAddress) vrfID() int64 { return idOf(a.VRF) }

// idOf returns the id of an object, or 0 for none.
func idOf(o *object) int64 {
	if o == nil {
		return 0
	}
	return o.ID
}

func (a *ipAddress) hasTag(slug string) bool {
	return slices.ContainsFunc(a.Tags, func(t object) bool { return t.Slug == slug })
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
