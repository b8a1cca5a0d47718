package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	for i := range inputs.Nodes {
		n := &inputs.Nodes[i]
		n.IsNotReadyForLong = n.IsNotReadyForLong ||
			n.IsNotReady && now.Sub(readinessChangedAt(cluster.nodes, n.Name)) >= placement.NotReadyPatience
	}
	return inputs, nil
}

// readinessChangedAt is since when a node is as its condition Ready says, by the clock of whoever
// wrote that. A program that looks once has no other.
func readinessChangedAt(nodes []corev1.Node, name string) time.Time {
	for i := range nodes {
		if nodes[i].Name == name {
			return readyOf(&nodes[i]).LastTransitionTime.Time
		}
	}
	return time.Time{}
}
