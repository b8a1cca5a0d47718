// Package plan decides what the node agent does to the kernel and what it
// reports. It is pure: no client, no netlink, no clock.
//
// Diff compares what the node is to announce (its Announcements, merged) with
// what the kernel holds, and returns operations in the order in which they are
// to be applied:
//
//  1. Remove every address tagged as ours that is not desired where it is.
//  2. Renew what is in place and runs out, or whose settings changed.
//  3. Add what is missing; an add may have to be preceded by a probe, and may
//     have to be announced to the link afterwards.
//
// Nothing is remembered from one Diff to the next: an address that the kernel
// holds, tagged, in the right place, is ours and announced, whoever put it
// there and when. Only addresses tagged as ours are ever removed, and only from
// the interface on which they are tagged.
//
// A node without any Announcement is not a node with an empty one: the second
// withdraws everything, the first nothing. For the first the caller calls Keep,
// not Diff, which only renews.
//
// What Diff says is amended by what else is known: Repair puts back at once what
// was held a moment ago, Yield leaves alone what was given up, Retain withdraws
// nothing while only the checkpoint is known, and Hold nothing that an Announcement
// asked for which was deleted.
//
// Withhold is for what Diff withdraws although no status has ever said that the
// node has it: it is reported first, and withdrawn a little later.
//
// Diff also returns a Result for every desired address. The caller replaces
// those of addresses that it probed for, added, or failed to; Status turns them
// into the status of an Announcement.
//
// Interfaces picks the interfaces that can hold Local addresses, the facts from
// which the manager places addresses.
package plan
