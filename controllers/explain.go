package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// PlacementInputs reads what placement decides from, for programs that explain or predict what
// the manager decides. namespace is the manager's, and isDefaultLoadBalancer whether it serves Services
// without a loadBalancerClass. livenessOf says what the Lease of a node's agent means.
func PlacementInputs(
	ctx context.Context, c client.Reader, namespace string, isDefaultLoadBalancer bool,
	livenessOf func(node string) placement.Liveness, now time.Time,
) (placement.Inputs, error) {
	cluster, err := gatherCluster(ctx, c, namespace)
	if err != nil {
		return placement.Inputs{}, err
	}
	inputs := cluster.placementInputs(livenessOf, now, isDefaultLoadBalancer)
	for i := range cluster.nodes { // with which inputs.Nodes begins; those that are deleted are not Ready for long anyway
		n := &inputs.Nodes[i]
		// Since when is by the clock of whoever wrote that. A program that looks once has no other.
		n.IsNotReadyForLong = n.IsNotReadyForLong ||
			n.IsNotReady && now.Sub(readyOf(&cluster.nodes[i]).LastTransitionTime.Time) >= placement.NotReadyPatience
	}
	return inputs, nil
}
