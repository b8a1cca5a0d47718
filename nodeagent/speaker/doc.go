// Package speaker advertises the Virtual addresses of its node by BGP.
//
// A Speaker has one loop: gather what the kernel has on the virtual interface and what the
// node's NodeRouting says, decide (package routes), change what the BGP library holds (package
// gobgp), report. Until the API server answers, the NodeRouting is the one of the checkpoint.
//
// The order keeps traffic flowing. A new process waits until the old one is gone (lock), so that
// two never speak for one node. All routes are there before the first session. At the end of the
// process neighbours keep the routes for the restart time, unless traffic is to leave the node.
//
// A router learns that the node is back by the packets of the session. For a family that goes by a session of the other
// one the speaker sends it some (sayHello).
//
// Everything that ends a BGP session is listed in the doc.go of package gobgp.
package speaker
