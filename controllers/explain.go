package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/purelb/purelb-operator/controllers/placement"
)

// PlacementInputs reads what placement decides from, for programs that explain or predict what
// the manager decides. namespace is the manager's, and isDefault whether it serves Services
// without a loadBalancerClass. livenessOf says what the Lease of a node's agent means.
func PlacementInputs(ctx context.Context, c client.Reader, namespace string, isDefault bool, livenessOf func(node string) placement.Liveness, now time.Time) (placement.Inputs, error) {
	cluster, err := gatherCluster(ctx, c, namespace)
	if err != nil {
		return placement.Inputs{}, err
	}
	return cluster.placementInputs(livenessOf, now, isDefault), nil
}
