// Package nodeagent makes one node announce what its Announcements ask.
//
// There is one work item, the node, and one goroutine that works it: the worker, in worker.go,
// which reads from top to bottom. Whatever wakes it (an Announcement or the LBNodeAgent
// changes, the kernel's links, addresses or routes change, a link has answered, a lifetime runs
// down), it does the same: it gathers all inputs, lets the pure package plan decide, applies the
// decision (packages link and neigh), and reports the statuses that differ. What it remembers
// between two syncs is in one struct, workerState, which no other goroutine uses. Lists at the API server
// run beside the worker, one at a time, and wake it when they have ended.
//
// Beside the worker there also run: the heartbeat, which renews the node's Lease; the reporter, which
// writes statuses; the savers, which write the checkpoint and, where the kernel does not mark the
// agent's addresses, the record of them; the announcer, which sends gratuitous ARP and unsolicited
// neighbour advertisements; the prober, which asks links for addresses before they are added; the defender,
// which listens to other stations and defends or yields Local addresses within milliseconds; watching, which
// watches other nodes on each link; and reachability, which asks links for addresses of other nodes. None
// waits for another, but the heartbeat for a sync, and only savers wait for a disk.
//
// An agent is fresh while its last successful renewal of the Lease started no more than a period and a second ago, or
// two seconds ago if a renewal has failed since or the node was suspended, which counts. One that is not fresh may
// have missed a decision of the manager, so the heartbeat has the worker list and apply its
// Announcements before it renews; and for as long as the cache may still be behind that list, the
// worker goes on reading from the API server. Until the cache has been filled the heartbeat does so
// before each renewal, and without an answer the worker does what the checkpoint says.
//
// While the API server is away the agent goes on by the objects that it read last: the worker keeps them in
// state.objects (worker.go; by which objects it syncs is decided in sources.go), and a process that starts meanwhile
// has them from the checkpoint (checkpoint.go). It withdraws nothing for that, and renews the lifetimes of its
// addresses. As its Lease is not renewed it is fresh no more. Then it takes no address over without asking (Diff in
// plan/difference.go), defends none, and yields to a station that it asks by itself and that answers
// (plan/wire_rules.go), and it asks links for its own addresses (keepAskingHeld in defender_asking.go).
//
// Stopping the agent withdraws nothing: the kernel goes on answering for its addresses, and the
// next process adopts them.
package nodeagent
