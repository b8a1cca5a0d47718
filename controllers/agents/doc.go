// Package agents decides which LBNodeAgent's agent runs on a node, and renders the
// DaemonSet that runs it. It is pure.
//
//   - LBNodeAgentFor picks, of the LBNodeAgents that select a node, the one that applies.
//   - LabelActionOf decides when the node's label follows: the DaemonSet controller ends
//     the old agent as soon as the label changes, so the agent withdraws first.
//   - DaemonSet renders the DaemonSet of an LBNodeAgent, which selects on that label.
//   - Validate and SelectionWarnings are for admission and for the LBNodeAgent's status,
//     AdmitWithdrawal for admission alone.
package agents
