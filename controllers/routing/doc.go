// Package routing decides to which neighbours each node advertises its Virtual addresses by
// BGP. It is pure.
//
//   - Render resolves BGPPeers and ServiceGroups into the NodeRouting of each node, says which
//     LBNodeAgents need speakers and which passwords those need.
//   - IgnoredAddresses says which addresses speakers leave out that agents have yet to withdraw, and do not.
//   - PeerStatus says how a BGPPeer's sessions are, from what speakers report.
//   - SpeakerDaemonSet renders the DaemonSet of the speakers of an LBNodeAgent.
//   - Validate, PeerWarnings and AdmitGroup are for admission. Render judges by Validate, too.
package routing
