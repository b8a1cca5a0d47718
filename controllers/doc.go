// Package controllers holds the manager's reconcilers. Each gathers, lets a
// pure package decide, applies the difference and writes status once.
//
//   - ServiceReconciler gives Services their addresses.
//   - ServiceGroupReconciler reports on pools.
//   - LBNodeAgentReconciler runs agents on nodes.
//   - PlacementReconciler writes what each node is to announce.
//   - AnnouncedReconciler tells Services what is announced.
//   - PolicyReconciler keeps in place what limits who may write what.
//
// Liveness, which every replica runs, tells placement which agents are alive.
package controllers
