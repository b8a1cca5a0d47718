// Package reach decides when a node, the asker, asks for Local addresses that other nodes, their
// holders, announce, and what it makes of answers and of silence. It is pure: who calls it asks the
// links, and passes the answers on.
//
// An address is asked for as soon as the asker is told of it, or of another epoch of it. Once its
// holder has answered, the address is asked for once a minute: its askers take turns, and each
// address has its own second of the minute, by a hash. The turns follow the nodes' clocks. Where
// these differ an address is asked for less evenly, and as often. A node whose clock is set back asks no
// later for that.
//
// Silence is not believed at once. The question is repeated, and with it the asker asks for an
// address of the holder's own and for one of each other asker. A silent round counts if the holder
// answered for its own address in that round; or if another asker did, and the holder had answered
// this node before. So a node that is cut off itself, and one that could never hear the holder,
// because the network keeps the two apart or answers no such questions, find out nothing: they say
// Unknown. It takes roundsUntilUnreachable silent rounds in a row that count until the address is
// unreachable, and one answer until it is reachable again.
//
// Any station may answer by the MAC address of another one, so an answer proves nothing against
// one that means to deceive.
package reach
