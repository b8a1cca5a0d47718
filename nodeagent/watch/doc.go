// Package watch decides whether a node that another one watches is dead, and which of its
// Local addresses this node, the watcher, is then to claim. It is pure: no socket, no clock.
//
// Watchers judge kernels, not agents: the kernel of a living node answers although its agent
// crashes, restarts or gets no processor time. A Watcher is for one watched node on one link.
// Its caller ends a round each Settings.Interval by AdvanceRound, sends the questions which that
// returns, and passes on all answers by Hear. What a Watcher says follows from a few rules:
//
//  1. An answer of the watched node's kernel to a question of the last rounds is a sign of
//     life. The question is an ICMP(v6) echo. As long as the node has answered none, as a
//     firewall may drop them, the answer to an ARP request or neighbour solicitation for an
//     address of the node's own counts as well, and again from when it answers in the silence of its echoes until it
//     answers these steadily. No round counts before the first sign of life.
//  2. A round without a sign of life is a miss, from the second one in a row on only if
//     witnesses answered questions sent in the same round: at least half of those that answered
//     before the silence. Without them the count starts again: this node may be cut off itself,
//     alone or together with some of them. Witnesses are other nodes; those that answer no
//     echo any more are asked as the watched node is. Where no other node can be one, or each was
//     silent when the watched node answered, the default gateways on the link are, asked by ARP or
//     neighbour discovery.
//  3. A round that is late makes the count start again, as does one in which the interface had
//     no carrier, or answers were lost: this node may be too busy to read answers. Too many late
//     rounds end the watch for a while.
//  4. When only two misses are left the link is asked for each address by ARP or neighbour
//     discovery, and the node for its own for as long as it is silent. An address is not claimed while another station
//     answers for it, other than a default gateway, which may answer for all. An answer in the
//     name of the watched node is a sign of life, unless Settings.TrustsEchoOnly says that the
//     fabric answers for the dead.
//  5. An address is armed once the watched node was seen to answer for it since the Watcher
//     began. Only armed addresses are claimed. While the agent is not fresh the link is asked
//     again and again, and an address for which a living node does not answer is disarmed: its
//     Service may be gone.
//  6. After Settings.Misses misses the first successor claims its addresses, and the second
//     one secondRankDelay later those for which still nobody answers.
//  7. When the watched node answers again, this node repeats its claims.
//  8. Another successor that answers for an address while the watched node does not has claimed
//     it: from then on that successor is judged as the watched node is, by a Watcher of its own.
//     An address is armed with the node that answered for it last, and claimed when that node is
//     silent, under the same epoch and no sooner than this node's rank allows. The successor's
//     Watcher lasts until the watched node holds none of its addresses under the same epoch any
//     more. A node that has claimed an address watches the other successor, too: it may have
//     claimed the address on the other side of a broken link.
//
// Watcher.isSilent says when a node counts as dead here. That is with the feature gate WireFailover alone, and for
// successors; the manager goes by Leases, always: see LivenessTracker of package controllers.
package watch
