// Package placement decides which node announces which address. It is pure: the same
// inputs give the same result, in whatever order they come.
//
// A Virtual address goes to every node that runs an agent and is not excluded. Where it is
// the same on all nodes of an LBNodeAgent it is a shared entry, written once in a
// CommonAnnouncement; else each node has an entry of its own.
//
// A Local address has one holder: the node with the highest epoch that reports the address
// Announced. The holder keeps the address for as long as the holder passes the checks; a
// node that comes back pulls nothing back. Otherwise a candidate is elected by rendezvous
// hashing of (node, address) among the nodes that pass the checks for taking the address,
// bounded so that no choice puts a node above its share, and given an entry with the next
// epoch:
//
//   - No node holds the address: the candidate claims it if no device answers for it.
//   - The holder's Lease has expired (failover), or its Node object is deleted: the same,
//     beside the holder's entry. If the holder's kernel still answers, the candidate
//     stands by. Once the holder's Node is NotReady for long, or deleted, the candidate
//     takes over.
//   - The holder's agent is alive but the node no longer passes the checks (handover): the
//     holder's entry is marked as handed over first. When its agent has observed that, the
//     candidate takes over. An agent that does not observe it in time is treated as in a
//     failover.
//
// An elected node whose agent does not report in time has failed: its entry is marked as handed over,
// and another candidate is elected. What one node reports counts for that node alone: it
// delays an address that the node was not given for a while (a lingering report), and
// moves it to no other node than it would have gone to.
//
// With successors named, a node that finds the holder dead may claim the address by an epoch
// that the holder's entry reserves for it, and reports that. The manager challenges the holder:
// one that does not renew its Lease, or does not have the address any more, loses the address to
// the claimer; one that renews is asked to ask the claimer, and then yields, or gets an epoch
// above that of the claim. While a claim counts nobody is elected.
//
// When the candidate reports Announced it has the highest epoch, is thereby the holder,
// and all other entries go. Whatever is in the middle of a change is read from the
// Announcements. Only for how long it has been so is remembered, in Clocks.
//
// So each Local address is in one of the following phases. phaseOf finds the phase, from how far
// each agent has come with its entry (entryStep), and placeLocal decides by it. TestPhaseTransitions
// plays each of these transitions:
//
//	WaitingForFacts: no node has it, and a node whose agent has yet to report may hold it
//	    the agent has reported, or is not waited for any longer
//	        -> Unheld
//	    the agent reports that it announces the address
//	        -> WaitingForWithdrawal
//	WaitingForWithdrawal: no node is to have it, and a node that announces it has yet to withdraw it
//	    the node has withdrawn the address, or 10 s have passed
//	        -> Unheld
//	Unheld: no node announces it or probes for it, and one is elected if any may take it
//	    a node is elected
//	        -> Probing
//	    a node whose entry was revoked announces the address
//	        -> Announced
//	Probing: a node was given it, and has not announced it yet
//	    the node announces the address
//	        -> Announced
//	    the node fails, does not report within 5 s and its probes, or may not have the address
//	        -> Unheld
//	Announced: its holder announces it, and keeps it
//	    the node is not to keep the address
//	        -> HandingOver
//	    the holder's Lease expires, or its Node is deleted
//	        -> FailingOver
//	    a successor reports a claim
//	        -> Contested
//	    the holder reports that another station has the address
//	        -> Probing
//	    the holder reports that it has failed
//	        -> Unheld
//	HandingOver: its holder's agent renews its Lease, and is to hand it over to another node
//	    the next node announces the address
//	        -> Announced
//	    the holder may keep the address, and no node was told to take it over
//	        -> Announced
//	    the holder yields before the next node announces the address
//	        -> Probing
//	    the holder's Lease expires
//	        -> FailingOver
//	FailingOver: its holder's Lease has expired, and a node that may take it probes for it
//	    the next node announces the address
//	        -> Announced
//	    the holder's agent is back, and no node was told to take the address over
//	        -> Announced
//	    the holder's agent is back, and its node is not to keep the address
//	        -> HandingOver
//	    the holder's agent is back, and a node was told to take the address over
//	        -> HandingOver
//	    a successor reports a claim
//	        -> Contested
//	Contested: a successor has claimed it, and its holder has yet to confirm or to refute that
//	    the holder has yielded the address, or has not renewed its Lease within 3 s
//	        -> TakenOver
//	    the holder was asked, and announces the address still: it gets an epoch above the claim's
//	        -> Announced
//	    the node is not to keep the address
//	        -> HandingOver
//	TakenOver: a successor has claimed it, and its last holder does not have it, or is dead
//	    the claimer has its entry
//	        -> Announced
//
// So which phase an address is in, and whether the address moves back, is decided in phase.go (phaseOf), by
// the holder that entries.go finds (holderOf); which node is elected, in elect.go.
//
// What a phase waits for has a deadline where hasLasted compares how long it has lasted, or noteDeadlinesOf notes
// what Clocks has compared: the soonest of all is the result's NextDeadline. Facts that are awaited have none, as
// the manager looks again and again at addresses without a node.
//
// No epoch is given twice while an address has entries: those of other nodes note the
// highest epoch that was given, and are written before the entry that has it, each only if
// it is still as it was read.
package placement
