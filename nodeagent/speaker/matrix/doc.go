// Package matrix measures what happens to the traffic from behind a router while something happens to speakers, agents,
// nodes, routers or objects: each row of Rows in each of Columns. `make proof-routers` runs it.
//
// PureLB's programs are real: one manager, and an agent and a speaker for each of two nodes, with a real API server.
// The routers are FRR and BIRD. Nodes, routers and the client are network namespaces on one switch:
//
//	client ── router ──┐
//	       reflector ──┤ switch ── node1, node2
//	      API server ──┘
//
// Nobody plays the kubelet but the test, which starts the programs and mounts passwords, and there are no pods: on each
// node answers a server that stands for all endpoints. The client has 64 flows to one address of each family, and sends
// a datagram each 10 ms, by one flow after the other. The kernel of the router is asked each 10 ms for its routes.
//
// This file's neighbour matrix.go is pure: it says which cells there are, and why a cell has no value.
package matrix
