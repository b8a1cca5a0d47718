// Package neigh exchanges ARP and neighbour discovery messages with the stations on a
// link: Probe finds out which station has an address, Announce says that this node has
// one, Ask and AskStation send a question once, and Listen receives what other stations
// say.
//
// For IPv4 these are the ARP probe and the ARP announcement of RFC 5227, for IPv6 the
// neighbour solicitation of duplicate address detection (RFC 4862 section 5.4) and the
// unsolicited neighbour advertisement (RFC 4861 section 7.2.6). A question changes no
// neighbour's cache wrongly: its sender address is unspecified, or one of the node's own
// addresses, which the node really has.
//
// Silence is an answer, too: nobody has the address. So Probe does not mistake for
// silence that the kernel dropped answers, that a question could not be sent, or that
// answers were not read in time.
//
// Building and parsing frames and socket filters is pure. The rest uses sockets of the
// AF_PACKET family, because the node's own IP stack would not send these frames.
package neigh
