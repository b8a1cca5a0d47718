// Package nodeagent makes one node announce what its Announcements ask.
//
// There is one work item: the node. Whatever happens (an Announcement or the
// LBNodeAgent changes, the kernel's links, addresses or routes change, a
// lifetime runs down), the Agent lists what the kernel holds, compares it with
// what is desired (package plan), applies the difference (package link),
// probing first where it must (package neigh), and writes the status of each
// Announcement once, if it differs. Nothing else is remembered than the queue
// of announcements to repeat, and when the Lease was last renewed.
//
// The Heartbeat renews the node's Lease, by which the manager knows that the
// agent lives. An agent is fresh while its last successful renewal started no
// more than two periods ago. One that is not may have missed a decision, so it
// lists and applies its Announcements before it renews; and for as long as the
// cache may still be behind that list, it goes on reading from the API server.
//
// Stopping the agent withdraws nothing: the kernel goes on answering for its
// addresses, and the next start adopts them.
package nodeagent
