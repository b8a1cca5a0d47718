// Package sim runs a cluster in one process, in which one seed decides everything: what happens when, what
// is lost and what fails. The same seed tells the same story, byte for byte.
//
// What decides is the product's own code: the components of the manager, and the whole agent. Kernels, links,
// disks and the API server are simulated.
//
// A World is used by one goroutine, in a bubble of testing/synctest: time.Now is the simulated time, and
// passes only in World.Run. Everything is a Happening of it. What the product does side by side are tasks
// (package tasks), which are coroutines here: one runs until it waits, and nothing else runs meanwhile. So are
// the reconciles of a manager, of which as many run side by side as in the product. Requests take time.
//
// Two managers elect their leader by client-go's own code. They end and start as Kubernetes lets them.
//
// A node has an interface on one link or on each of two. What the laws say of a Local address is about its link.
//
// Each machine has a clock, by which its programs measure time: it may be fast or slow, stands still while the
// machine sleeps, and may say that it is another time of day. What client-go measures for the election, and the
// timeouts of requests, are by the right time.
//
// A cluster may have routers, to whose sessions the speakers of the nodes bring their routes: the manager's
// component of BGP and the whole speaker are the product's, and the BGP library, BFD and the routers are in memory.
//
// A cluster may have a NetBox, which is the fake of test/netbox, in memory: the manager asks it by the product's own
// Broker. A request is under way whatever becomes of the manager that has made it, and its answer may come too late
// or never.
//
// README.md says which law fails without which rule of the product.
//
// A History is what users, machines, a link and the control plane do, at random. The laws, in laws.go,
// claim_laws.go and, of routers and of NetBox, in routing_laws.go and netbox_laws.go, are checked after each happening.
package sim
