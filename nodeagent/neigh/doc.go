// Package neigh speaks to the neighbours on a link about addresses: it asks
// whether somebody has one (Probe), and tells them that this node has (Announce).
//
// For IPv4 these are the ARP probe and the ARP announcement of RFC 5227, for
// IPv6 the neighbour solicitation of duplicate address detection (RFC 4862
// section 5.4) and the unsolicited neighbour advertisement (RFC 4861 section
// 7.2.6). Neither asks anybody to change what they know before it is true: a
// probe has no sender address, so it leaves no trace in neighbours' caches.
//
// Building and parsing frames is pure; io.go alone touches sockets, of the
// AF_PACKET family, since the node's own IP stack would not send these.
package neigh
