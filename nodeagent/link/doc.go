// Package link reads and changes the network interfaces of the kernel. It is the only
// package that speaks netlink.
//
// Observe returns links, addresses and routes. It lists them, unless it has done so in the last two seconds and Watch
// has heard of no change by others since: it knows what the agent has changed. Add, Renew, Replace and Remove change
// one address; Remove makes sure that the kernel removes no other address with it. EnsureVirtual and RemoveVirtual make
// and remove the virtual interface. Watch and WatchLinks call a function when the kernel reports changes.
//
// Add tags each address with Protocol (IFA_PROTO). By this tag the agent recognises its
// own addresses after a restart, and "ip address" shows it. Kernels from 5.18 on keep
// the tag; older ones ignore it. On an older kernel the agent records its own addresses
// in an OwnershipFile; without one Add removes the address again, because a later run of
// the agent could neither renew nor withdraw it.
//
// The package reads that file when it opens it, and never writes it: a change of the record
// changes memory only, so that a disk that hangs or is full stops neither Add nor Remove.
// The agent's saver writes the record when it has changed.
package link
