// Package netbox allocates addresses from NetBox, through its REST API. It works with
// NetBox 4.4 and later, with both versions of its tokens.
//
// NetBox gives an address by a POST to the available-ips of a prefix or range, one request
// at a time. The description of an address holds the mark of its owner, with the address, so
// that a copy of the record is not taken for another one of the owner's.
//
// NetBox keeps addresses unique where it is set to, but for those with a role such as vip. So
// a record is created without its role, which is added when NetBox has taken the record. Where
// NetBox takes an address twice, the record with the lowest id counts: the address is looked
// up after each creation, and once more by the next request if the manager has died meanwhile.
//
// With a tenant alone, addresses are not created: those that NetBox has for the tenant
// with status reserved become active, and reserved again on release. A description that
// such an address has is kept behind the mark.
package netbox
