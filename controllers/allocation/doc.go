// Package allocation decides which addresses a Service gets. It is pure: it
// knows no client, clock or logger.
//
// A ServiceGroup is parsed into a Group of ranges (ParseGroup); all groups
// together make a Catalog, which also holds the verdict on each: of two groups
// that overlap, the older is used. What is in use is derived from Services: an
// InUse is an index of who has which address, and by which sharing key; finding
// the first free address in it takes as long in a full pool as in an empty one.
//
// Allocate first finds the group: that of the addresses asked for by name, else
// the one asked for, else that of what the Service has. Then it fills slots, one
// for each family (or range, with multiPool). An address that the Service has is
// kept if it is good for the slot; else it gets what it names, else what its
// sharing key stands for, else the first free address in the order in which the
// ranges are written, or in the emptiest range if the group balances.
//
// Of two Services with one address that they were not given by the same sharing
// key, the older keeps it. Those that were given it together keep it whatever
// becomes of their ports and annotations, and the clash is reported.
package allocation
