// Package netbox allocates addresses from NetBox, through its REST API. It works with
// NetBox 4.4 and later, with both versions of its tokens.
//
// NetBox gives an address by a POST to the available-ips of a prefix or range, one request
// at a time. The description of an address holds the mark of its owner. A role such as vip
// makes NetBox take the same address twice: so after each creation the address is looked
// up, and of several records the one with the lowest id counts.
//
// With a tenant alone, addresses are not created: those that NetBox has for the tenant
// with status reserved become active, and reserved again on release. A description that
// such an address has is kept behind the mark.
package netbox
