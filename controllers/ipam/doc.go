// Package ipam allocates addresses from external systems of IP address management, such
// as NetBox.
//
// A System is one of them, as one ServiceGroup uses it. It records for each address whose
// it is: the owner's Mark, which names the cluster and the Service. All three methods of
// a System are idempotent, so that a request may be repeated whenever it is unknown what
// became of it: in particular by a new leader, if the last one ended between a request
// and the write of its result to the Service.
//
// A Broker stands between the allocator, which never waits, and the systems. The allocator
// says which claims each Service has (Want), and finds the answers that have come so far
// (Offers). Each system has one queue, for claims and releases, and one back-off: a system
// that is slow or away delays nothing of any other group.
//
// What Services hold is the truth. From time to time the Broker compares the records of a
// system with it (Compare): what is missing there is recorded again, what nobody holds is
// released after a grace period, and what differs otherwise is reported. Nothing that a
// system says ever takes an address from a Service.
package ipam
