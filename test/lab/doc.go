// Package lab is a real Kubernetes cluster of three nodes on one Linux machine,
// with a real layer 2 between them, a client on it, a router, and a client
// behind the router. Everything is in network namespaces; see README.md.
//
// Tests attach to a lab that is up with [Open], and then look at and disturb
// its network: run programs on any host ([Lab.Exec]), send requests
// ([Lab.HTTPClient]), read neighbour tables ([Lab.Neighbour]), capture packets
// ([Lab.StartCapture]), cut links ([Lab.CutLink]) or stop the control plane
// ([Lab.StopControlPlane]). All of it needs root.
//
// A lab keeps nothing in memory, but in its state folder and in the kernel. So any number
// of processes can use one lab.
package lab
