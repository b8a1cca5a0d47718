package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
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

// AdmissionOfGroups is AdmissionOf with InUse and the labels of all namespaces, by which a ServiceGroup is
// checked that is the first one to select namespaces.
func AdmissionOfGroups(
	ctx context.Context, c client.Reader, namespace string, isDefaultLoadBalancer bool,
) (*allocation.Admission, error) {
	a, err := AdmissionOf(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	if a.NamespaceLabels == nil {
		if a.NamespaceLabels, err = namespaceLabels(ctx, c); err != nil {
			return nil, err
		}
	}
	a.InUse, err = GatherInUse(ctx, c, isDefaultLoadBalancer)
	return a, err
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
	var lbNodeAgents v1.LBNodeAgentList
	if err := c.List(ctx, &lbNodeAgents, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	inputs := &allocation.Inputs{
		Catalog:          allocation.NewCatalog(groups.Items, namespace),
		AnnounceType:     announceTypeBy(nodes.Items, lbNodeAgents.Items, announcements),
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

// announceTypeBy returns a function that says how nodes announce addresses of a range of a local group, as placement
// decides it of addresses that none announces yet, and by the interfaces that agents have reported: on one node's
// interface if some node has one in the range's subnet that counts, else on virtual interfaces. The function returns an
// empty type while no node has reported its interfaces.
func announceTypeBy(
	nodes []corev1.Node, lbNodeAgents []v1.LBNodeAgent, announcements []v1.Announcement,
) func(allocation.Range) v1.AnnounceType {
	typeOf := sync.OnceValue(func() func(netip.Addr, netip.Prefix) v1.AnnounceType {
		return placement.AnnounceTypeBy(nodesWithReports(nodes, lbNodeAgents, announcements))
	})
	return func(r allocation.Range) v1.AnnounceType { return typeOf()(r.Addrs.From(), r.Subnet) }
}

// nodesWithReports returns the nodes, with what decides whether they may have Local addresses: what their agents
// report, and what that is held against.
func nodesWithReports(
	nodes []corev1.Node, lbNodeAgents []v1.LBNodeAgent, announcements []v1.Announcement,
) []placement.Node {
	subnets := map[string][]netip.Prefix{}
	for i := range lbNodeAgents {
		subnets[lbNodeAgents[i].Name] = allowedSubnets(&lbNodeAgents[i])
	}
	byName := make(map[string]*placement.Node, len(nodes))
	for i := range nodes {
		byName[nodes[i].Name] = &placement.Node{Name: nodes[i].Name, Addresses: addressesOfNode(&nodes[i])}
	}
	for i := range announcements {
		a := &announcements[i]
		if !hasReportedFacts(a) {
			continue
		}
		if byName[a.Name] == nil { // its Node is gone
			byName[a.Name] = &placement.Node{Name: a.Name}
		}
		addReportedFacts(byName[a.Name], []*v1.Announcement{a})
		byName[a.Name].AllowedSubnets = subnets[a.Spec.LBNodeAgent]
	}
	all := make([]placement.Node, 0, len(byName))
	for _, n := range byName {
		all = append(all, *n)
	}
	return all
}

// allowedSubnetsChanged lets through that an LBNodeAgent names other subnets in which its nodes may have Local
// addresses.
var allowedSubnetsChanged = changed(func(before, after *v1.LBNodeAgent) bool {
	return !slices.Equal(allowedSubnets(before), allowedSubnets(after))
})

// localSubnetsChanged lets through the changes of an Announcement that decide in which subnets its node may have
// Local addresses.
var localSubnetsChanged = predicate.Or[client.Object](
	factsChanged,
	changed(func(before, after *v1.Announcement) bool { return before.Spec.LBNodeAgent != after.Spec.LBNodeAgent }),
)
