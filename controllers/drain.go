package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// listRoutings returns the NodeRoutings, by node.
func listRoutings(ctx context.Context, c client.Reader, namespace string) (map[string]*v1.NodeRouting, error) {
	var list v1.NodeRoutingList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NodeRoutings: %w", err)
	}
	routings := map[string]*v1.NodeRouting{}
	for i := range list.Items {
		routings[list.Items[i].Spec.NodeName] = &list.Items[i]
	}
	return routings, nil
}

// untilRoutesWithdrawn is for how long at most an excluded or cordoned node keeps its Virtual addresses: 0 if
// it has no neighbours, or its speaker reports that all routes are withdrawn.
func untilRoutesWithdrawn(routing *v1.NodeRouting, now time.Time) time.Duration {
	switch {
	case routing == nil || len(routing.Spec.Peers) == 0:
		return 0
	case routing.Spec.DrainSince == nil:
		return drainTimeout // the drain is about to begin
	case routing.Status.Drained && routing.Status.ObservedGeneration >= routing.Generation:
		return 0
	}
	return min(max(routing.Spec.DrainSince.Add(drainTimeout).Sub(now), 0), drainTimeout) // clocks differ
}

// markDrainingCordoned has the routes of those cordoned nodes withdrawn of which no address is without a route then.
// placed says of the same nodes, in the same order, what placement knows of them.
func markDrainingCordoned(nodes []routing.Node, placed []placement.Node, announcements []v1.Announcement) {
	isStaying := map[string]bool{}
	for i := range placed {
		n := &placed[i]
		isStaying[n.Name] = !n.HandsOverAsCordoned && !nodes[i].IsDraining && !n.IsLeaving && !n.IsNotReady
	}
	for i := range placed {
		if placed[i].HandsOverAsCordoned && areVirtualElsewhere(placed[i].Name, isStaying, announcements) {
			nodes[i].IsDraining = true
		}
	}
}

// areVirtualElsewhere reports whether some node that stays is to announce each Virtual address that another
// node is to announce: a node that is cordoned, and not known to go, withdraws no route that is the last one.
func areVirtualElsewhere(node string, isStaying map[string]bool, announcements []v1.Announcement) bool {
	const shared = "" // stands for the addresses that all nodes announce
	isElsewhere := map[string]bool{}
	var own []string
	for i := range announcements {
		spec := &announcements[i].Spec
		var addresses []string
		if spec.IncludeCommonAnnouncements {
			addresses = append(addresses, shared)
		}
		for j := range spec.Addresses {
			if e := &spec.Addresses[j]; e.Type == v1.AnnounceVirtual {
				addresses = append(addresses, e.Address)
			}
		}
		switch {
		case spec.NodeName == node:
			own = append(own, addresses...)
		case isStaying[spec.NodeName]:
			for _, a := range addresses {
				isElsewhere[a] = true
			}
		}
	}
	return !slices.ContainsFunc(own, func(a string) bool { return !isElsewhere[a] })
}

// untilNextDrainTimeout is in how long the first drain that is under way times out; 0 if none is.
func (c *cluster) untilNextDrainTimeout(now time.Time) time.Duration {
	wait := time.Duration(0)
	for _, routing := range c.routings {
		if routing.Spec.DrainSince != nil {
			wait = shortestWait(wait, untilRoutesWithdrawn(routing, now))
		}
	}
	return wait
}

// routingSpecOrDrainedChanged lets through the changes of NodeRoutings that placement depends on.
var routingSpecOrDrainedChanged = changed(func(before, after *v1.NodeRouting) bool {
	return before.Generation != after.Generation || before.Status.Drained != after.Status.Drained
})
