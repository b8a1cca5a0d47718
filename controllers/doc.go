// Package controllers holds the manager's reconcilers. Each of them gathers its inputs from
// the cache, lets a pure package decide, applies the difference and writes the status once.
//
//   - ServiceReconciler allocates addresses to Services.
//   - ServiceGroupReconciler reports on pools.
//   - LBNodeAgentReconciler runs agents on nodes.
//   - PlacementReconciler writes what each node is to announce.
//   - AnnouncedReconciler reports on each Service what nodes announce for it, what speakers
//     advertise, and what other nodes get answers for.
//   - RoutingReconciler writes to which neighbours each node advertises what, runs speakers, and
//     reports on BGPPeers.
//   - PolicyReconciler keeps the policies in place that limit who may write what.
//
// Every replica runs LivenessTracker, which tells placement which agents renew their Leases: livenessBy decides after
// how long without a renewal an agent counts as dead, and its addresses go to other nodes.
package controllers
