package controllers

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// StrandedAddresses returns the addresses of Services that a node could announce under the
// LBNodeAgents before a change, and that no node could announce under those after it.
func StrandedAddresses(
	ctx context.Context, c client.Reader, namespace string, isDefaultLoadBalancer bool, before, after []v1.LBNodeAgent,
) ([]placement.Address, error) {
	cluster, err := gatherExceptEndpoints(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	// Neither Leases nor times count: a replica that has just started knows nothing of them.
	livenessOf := func(string) placement.Liveness { return placement.Expired }
	inputs := cluster.placementInputs(livenessOf, time.Time{}, isDefaultLoadBalancer)
	return placement.Stranded(cluster.withLBNodeAgents(inputs, before), cluster.withLBNodeAgents(inputs, after)), nil
}

// withLBNodeAgents returns the inputs as they are once each node runs the agent that the given
// LBNodeAgents assign to it.
func (c *cluster) withLBNodeAgents(inputs placement.Inputs, all []v1.LBNodeAgent) placement.Inputs {
	inputs.Nodes = slices.Clone(inputs.Nodes)
	for i := range c.nodes { // with which inputs.Nodes begins
		n := &inputs.Nodes[i]
		n.LBNodeAgent, n.IsLeaving, n.AllowedSubnets = agents.LBNodeAgentFor(all, c.nodes[i].Labels), false, nil
		n.AreFactsAwaited = false
		if k := slices.IndexFunc(all, func(a v1.LBNodeAgent) bool { return a.Name == n.LBNodeAgent }); k >= 0 {
			n.AllowedSubnets = allowedSubnets(&all[k])
		}
	}
	return inputs
}
