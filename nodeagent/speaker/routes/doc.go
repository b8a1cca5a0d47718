// Package routes decides which routes a node advertises by BGP, and to whom. It is pure.
//
// What a node advertises is what its kernel has: the networks of the addresses on the virtual
// interface that the agent has put there (Networks). How a network is advertised is what the
// NodeRouting says of the ServiceGroup that its lowest address is of, and whether single addresses
// of the network get routes of their own (routesOf). Decide makes of both what the BGP library is to
// hold, and Diff what to change for that.
//
// Neighbours that get only some of the routes, prepended ones, or ones with another next hop
// are Rules, which the BGP library applies as it sends a route.
package routes
