// Package gobgp holds the routes and neighbours of a node in the BGP library GoBGP. It is the
// only importer of that library, and decides nothing but how the library is told.
//
// What the library does not do as a node needs it:
//   - It waits 360 s by default for neighbours to send all of their routes before it sends its
//     own after a restart: one second is enough, because the node takes no routes.
//   - It keeps what neighbours send even if its policy rejects all of it: above a neighbour's
//     share of maxReceivedPrefixes it ends the session, and begins it again after a while.
//   - It waits for ever for a neighbour that sends keepalives and reads nothing, and keeps what
//     changes meanwhile: a session in which nothing could be sent for twice the hold time is reset.
//   - It answers each request for all routes at once, and keeps the answers for a neighbour that does not read them: a
//     session in which more than maxUnread routes may wait is ended, by closing its connection.
//   - Its BFD binds a session to the first discriminator that it hears, does not look at the TTL, and takes a
//     session that has never been up for one that failed: package bfd is there instead.
//   - It says why it cannot connect in its debug log only: logHandler takes it from there.
//   - It looks up the link-local address of an interface once, as it is given a neighbour there, and goes on to connect
//     from that: noteConnectError has it given the neighbour anew when the node does not have the address any more.
//
// What ends a session, and what is then its lastError in the status of the NodeRouting, whence it gets into
// the event SessionDown and kubectl purelb explain:
//   - Server.ResetSession (server.go), as BFD is down: errorOfBFD.
//   - TendSessions (sessions.go), as the neighbour is in the node's own autonomous system, or takes nothing:
//     errorOfOwnAS, errorOfStalled. These, the one before and the next one note their reason by endSession before the
//     library ends the session.
//   - boundRefreshes (refreshes.go), as the neighbour asks for all routes faster than it reads them: errorOfRefreshes.
//   - The library, as its hold time passed: errorOfSilence, which noteSilence (sessions.go) notes by the library's log.
//   - The library, as the neighbour ended it, or the connection broke: what explainDisconnect makes of the
//     library's reason, in onPeerUpdate (sessions.go).
//   - The library, as the neighbour sent too many routes: onPeerUpdate says of how many.
//   - Apply (server.go), as the neighbour is not wanted any more, or has settings that need a new session: none, since
//     the edit of the BGPPeer is the cause, and what was known of the session is forgotten.
//   - Server.Stop (server.go), as the speaker ends: none, since nobody reads it any more.
package gobgp
