// Package bfd is Bidirectional Forwarding Detection (RFC 5880) in asynchronous mode, over one hop
// (RFC 5881): the format of its packets, and the state of one session as a function of the packets that
// come and of the time. Package udp has the sockets.
//
// A session sends packets all the time, and is Up once each side has heard that the other hears it. Each
// side says how often it wants to send and can receive; of its own wish and the other's ability the slower
// counts, for each direction by itself. When nothing has come for as many of the other side's intervals as
// that side says, the session is Down. Below, what the RFC leaves open, or says and other programs do not do:
//
//   - A session that is not Up takes any discriminator that the neighbour says it has now: routers make
//     their session anew when BGP comes up, for example.
//   - A session that is Up fails when its time is over, or when the neighbour says that it hears nothing.
//     It goes Down without having failed when the neighbour is AdminDown (RFC 5882, section 4.2.2), has made
//     its session anew, or says Down because this side had said so, which it had not: FRR ends a session so,
//     when BGP comes up. That says nothing of the path, on which the packet just came.
//   - A neighbour that says that it sends faster is expected to do so from its next regular packet on: FRR
//     says so in the answer to a poll, and goes on slowly until its own poll is answered.
//   - A neighbour that is silent is forgotten, with its limits: one that comes back and only answers is
//     asked again.
//   - There is no echo, no demand mode of the node's own, and no authentication.
package bfd
