// Package udp has the sockets and the thread of the node's BFD sessions (RFC 5881): it receives, asks
// package bfd, and sends.
//
// One goroutine owns all sessions and all sockets. It waits for packets and for the next deadline in one
// system call. Then it looks at the time, takes all packets that have come, and only then judges who is late at that
// time: a process that was held up for a while takes no neighbour for dead whose packets are waiting in the socket.
//
// The goroutine has a thread of its own, whose nice value it lowers where it may, with CAP_SYS_NICE: the
// kernel then prefers it to the threads of the BGP library, which may be busy for seconds. The DaemonSet of
// speakers does not have the capability, by which a pod that is in the node's network could slow down others;
// there the thread has the same part as each other one. The share of the processor that the pod has against
// other pods is the container's CPU request, in either case.
//
// The sockets listen on UDP port 3784 only while there are sessions of their family, and what did not come
// with TTL 255 from a neighbour with a session is dropped. No capability is needed.
package udp
