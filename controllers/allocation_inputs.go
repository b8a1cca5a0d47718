package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// AdmissionOf reads, from the cache, what ServiceGroups and Services are checked against
// before they are stored, without InUse. namespace is the manager's. The result may share
// memory with the cache: the caller must not change it.
func AdmissionOf(ctx context.Context, c client.Reader, namespace string) (*allocation.Admission, error) {
	inputs, groups, err := allocationInputs(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	return &allocation.Admission{Inputs: *inputs, Namespace: namespace, Groups: groups}, nil
}

// GatherInUse reads, from the cache, which Services have which addresses in use.
func GatherInUse(ctx context.Context, c client.Reader, isDefaultLoadBalancer bool) (*allocation.InUse, error) {
	services, err := listServices(ctx, c)
	if err != nil {
		return nil, err
	}
	return indexInUse(services, isDefaultLoadBalancer), nil
}

// allocationInputs gathers, from the cache, what allocations depend on apart from the
// Services, and the ServiceGroups of the manager's namespace.
func allocationInputs(
	ctx context.Context, c client.Reader, namespace string,
) (*allocation.Inputs, []v1.ServiceGroup, error) {
	var groups v1.ServiceGroupList
	if err := c.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list Nodes: %w", err)
	}
	announcements, err := listAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, nil, err
	}
	inputs := &allocation.Inputs{
		Catalog:          allocation.NewCatalog(groups.Items, namespace),
		AnnounceType:     announceTypeBy(announcements),
		AreFactsComplete: func() bool { return areFactsComplete(nodes.Items, announcements) },
	}
	if inputs.Catalog.SelectsNamespaces() {
		if inputs.NamespaceLabels, err = namespaceLabels(ctx, c); err != nil {
			return nil, nil, err
		}
	}
	inputs.NodeAddresses, inputs.ExcessNodeAddresses = allocation.AcceptNodeAddresses(
		nodeAddresses(nodes.Items, announcements), inputs.Catalog.PoolRanges(),
	)
	return inputs, groups.Items, nil
}

// areFactsComplete reports whether no agent of a node that is Ready has yet to report the node's
// interfaces.
func areFactsComplete(nodes []corev1.Node, announcements []v1.Announcement) bool {
	isReady := map[string]bool{}
	for i := range nodes {
		isReady[nodes[i].Name] = readinessOf(&nodes[i]).Status == corev1.ConditionTrue
	}
	return !slices.ContainsFunc(announcements, func(a v1.Announcement) bool {
		return a.Name == a.Spec.NodeName && isReady[a.Name] && !hasReportedFacts(&a)
	})
}

// announceTypeBy returns a function that says how nodes announce addresses of a range of a
// local group, by the interfaces that their agents report: on one node's interface if
// some node has one in the range's subnet, else on virtual interfaces. The function
// returns an empty type while no node has reported its interfaces.
func announceTypeBy(announcements []v1.Announcement) func(allocation.Range) v1.AnnounceType {
	isReported := false
	var subnets []netip.Prefix
	for i := range announcements {
		isReported = isReported || hasReportedFacts(&announcements[i])
		for _, iface := range placementInterfaces(&announcements[i]) {
			for _, s := range iface.Subnets {
				if s.Bits() < s.Addr().BitLen() {
					subnets = append(subnets, s)
				}
			}
		}
	}
	return func(r allocation.Range) v1.AnnounceType {
		if !isReported {
			return ""
		}
		for _, s := range subnets {
			if s.Contains(r.Addrs.From()) {
				return v1.AnnounceLocal
			}
		}
		return v1.AnnounceVirtual
	}
}
