// Package placement decides which node announces which address. It is pure:
// the same facts give the same answer, in whatever order they come.
//
// A Virtual address goes to every node that runs an agent and is not excluded.
//
// A Local address has one holder: the node with the highest epoch that reports
// it Announced. The holder keeps it for as long as it is eligible; a node that
// comes back pulls nothing back. Otherwise a node is elected by rendezvous
// hashing of (node, address) among the eligible nodes, bounded so that no
// choice puts a node above its share, and given an entry with the next epoch:
//
//   - nobody held the address: the node claims it if nobody answers for it;
//   - the holder's Lease has expired (failover): the same, beside the holder's
//     entry. If the holder's kernel still answers, the new node stands by; once
//     the holder's Node is sick, too, it takes over;
//   - the holder is alive but no longer eligible (handover): the holder's entry
//     is marked leaving first; when its agent has seen that, the new node takes
//     over.
//
// When the new node reports Announced it has the highest epoch, is thereby the
// holder, and all other entries go. Whatever is in the middle of a change is
// read from the Announcements: nothing is remembered.
package placement
