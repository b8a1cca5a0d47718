// Package ipam allocates addresses from external systems of IP address management, such
// as NetBox.
//
// A System is one of them, as one ServiceGroup uses it. It records for each address whose
// it is: the owner's Mark, which names the cluster and the Service. All methods of a System
// are idempotent, so that a request may be repeated whenever it is unknown what became of
// it: in particular by a new leader, if the last one ended between a request and the write
// of its result to the Service.
//
// A Broker stands between the allocator, which never waits, and the systems. The allocator
// says which requests each Service has (SetRequests), and finds the answers that have come so far
// (Offers). An endpoint is a system as it is reached with one token. Each has one queue and
// is asked one thing at a time: one that is slow or away delays nothing of any other.
//
// The jobs of a queue are to learn what a group has, to meet a request, to release an address,
// to repair a record, and to compare. Each job has an age, a due time and a back-off of its
// own. One that fails is due later, and meanwhile others are done. The kinds of jobs take
// turns, and among requests their namespaces; of the rest the one comes next that has waited
// longest since it came or was tried. To learn and to compare take many requests: each turn does
// a part of them. What the requests of one family have in common, no free address or no
// permission, is asked for by one of them at a time.
//
// How an endpoint is, is another question than what becomes of a job. An Error says what it
// concerns (Scope). Without a connection or a token the endpoint is away at once. If a
// request goes unanswered, or a group is refused, the Broker asks for the system's status:
// the endpoint is away if that fails, too, or if several jobs have gone unanswered since the
// last answer, a comparison among them. Then only its status is asked for, often if a
// Service waits, and the jobs stay as they are until it is back. In the same way no endpoint is
// asked for anything while the cluster is of another installation than the manager, as a copy of
// a cluster is whose manager has an id of its own.
//
// When a record is released is decided in jobs.go (runRelease: unless a Service needs the address) and,
// for records that nobody holds, in comparison_job.go (releaseUnused: after a grace period, and not if
// they are suspiciously many). The methods of the Broker in broker.go only note that a release is due.
//
// There is no second list of this work: each look for the next job goes through the requests,
// releases, repairs and groups that the Broker has anyway, which is cheaper than any request.
// The work queues of client-go fit less well. What waits there for its back-off can be
// neither withdrawn nor hastened, as a return of the system asks for, and the turns, the
// pauses and the state of the endpoint would have to stand beside them all the same.
//
// What Services hold is the truth. From time to time the Broker compares the records of a
// system with it (CompareRecords): what is missing there is recorded again, what nobody holds is
// released after a grace period, and what differs otherwise is reported. Nothing that a
// system says ever takes an address from a Service.
package ipam
