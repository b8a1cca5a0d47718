// Package allocation decides which addresses a Service gets. It is pure: it
// knows no client, clock or logger.
//
// ParseGroup parses a ServiceGroup into a Group of ranges. All groups together make a
// Catalog, which holds the verdict on each: of two groups that overlap, the older one is
// used (acceptedGroups.judge in catalog.go, also at admission). InUse indexes which Services
// have which addresses in use; finding the first free address takes as long in a full pool as
// in an empty one.
//
// Allocate decides for one Service. First it chooses the group: that of the requested
// addresses, else the requested group, else the group of what the Service has or, if that has
// been deleted, the one that contains all of it now, else the one that keeps an address for it,
// else one for Services that name none (autoAssign). Then it
// fills slots, one for each family or, with multiPool, one for each range. The Service
// keeps an address that fits the slot. Otherwise the slot gets the requested address,
// else the one that the sharing key stands for, else one that is kept for the Service, else one
// that an earlier attempt has set aside for it, else one that a deleted Service of its name had
// (former_owners.go), else the first free one: in the order in which the ranges are written or,
// with balancePools, in the emptiest range.
//
// Allocate knows no queue: a Service that gets nothing waits until the manager looks at it again.
// When addresses of a group are released, or were set aside for a Service and never written, the
// manager queues the Services that wait for such in the order of namespace and name, not of age,
// and looks at several at a time: the one that is looked at first gets the address
// (servicesWaitingFor in controllers/service_index.go). An address
// that no Service has may all the same be none to give: firstFree (allocate_family.go) leaves out
// those of nodes, those that the group keeps for other Services, the first one of a subnet and, of
// IPv4, its last one, and takes one that is left to a deleted Service only if there is no other.
// An address that the manager is about to write to a Service counts as in use already.
//
// A Service of a namespace that may not use the group gets nothing new of it, and is told
// nothing of it (namespaces.go). An address that the group keeps for one Service
// (reservations.go) is allocated to no other one, and shared with none. Neither takes an
// address away that a Service has: what is allocated stays until its Service asks for
// something else, or goes.
//
// The record (RecordOf) says what the manager has allocated to a Service. It is a
// condition in the Service's status, which users cannot write. Other controllers
// have written everything else that the Service shows. A Service without a record
// adopts those shown addresses that could have been allocated to it.
//
// Of two Services that have one address without sharing it, the older keeps it. Services
// that were given an address by the same sharing key both keep it, whatever becomes of
// their ports and annotations, and a condition reports the clash; of two in different
// namespaces the one that departs from its terms, or else the younger, loses it (sharing.go).
//
// Before objects are stored, Admission asks the same functions: it parses and compares a
// ServiceGroup as the Catalog does, and its advice on a Service is a dry run of Allocate.
package allocation
