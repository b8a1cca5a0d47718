// Package announced derives what a Service says of its addresses from what the nodes
// report in the status of their Announcements. It is pure.
//
//  1. PlacesOf joins the entries for a Service, of each node's own Announcements and of
//     the shared entries (CommonAnnouncements), with what the nodes report of them: one
//     Place for each address on each node.
//  2. Summarise turns the places into the annotations and the condition of the Service.
//  3. NewEvents compares the places with what earlier events have said, and returns what
//     is new: an address that a node announces or cannot announce, or a conflict that a node meets.
//     RestoreEventMemory derives what they have said from the Service, after a restart.
//  4. AdvertisedCondition says by how many of these nodes, and in how many BGP sessions, the Virtual
//     addresses are advertised. PendingChange.Decide decides when that is written.
//  5. ReachVerdicts says of each Local address whether other nodes get answers from the node that
//     announces it, and ReachableCondition of the Service.
//  6. DecideOverride decides what becomes of externalTrafficPolicy Local.
//
// Other functions read what a NodeRouting says of an address, and say for which Services the
// result may differ after a change of an Announcement, a CommonAnnouncement or a NodeRouting.
package announced
