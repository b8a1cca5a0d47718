package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// routingInputs is what routing.Render decides from, and what its decision is written with.
type routingInputs struct {
	routing.Inputs
	lbNodeAgents map[string]*v1.LBNodeAgent
	// groups are the ServiceGroups of the manager's namespace. They are the cache's own.
	groups   []v1.ServiceGroup
	nodeUIDs map[string]types.UID
	// announcements and commons are none if nothing is advertised. They are the cache's own.
	announcements []v1.Announcement
	commons       []v1.CommonAnnouncement
	// secrets are the data of the Secrets in the manager's namespace, by name, and
	// speakerSecrets are those that the reconciler has made.
	secrets        map[string]map[string][]byte
	speakerSecrets []*corev1.Secret
}

// gather reads everything that the NodeRoutings depend on from the cache. BGPPeers and NodeRoutings are the cache's
// own: they must not be changed.
func (r *RoutingReconciler) gather(ctx context.Context) (*routingInputs, error) {
	g := &routingInputs{lbNodeAgents: map[string]*v1.LBNodeAgent{}, secrets: map[string]map[string][]byte{}}
	g.Now = r.Now()
	var err error
	if g.Peers, err = ListBGPPeers(ctx, r.Client, r.Namespace); err != nil {
		return nil, err
	}
	if g.Routings, err = listRoutings(ctx, r.Client, r.Namespace); err != nil {
		return nil, err
	}
	var agents v1.LBNodeAgentList
	if err := r.Client.List(ctx, &agents, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	for i := range agents.Items {
		g.lbNodeAgents[agents.Items[i].Name] = &agents.Items[i]
	}
	if err := r.gatherGroups(ctx, g); err != nil {
		return nil, err
	}
	if err := r.gatherSecrets(ctx, g); err != nil {
		return nil, err
	}
	return g, r.gatherNodes(ctx, g)
}

// gatherSecrets reads the Secrets of the manager's namespace, for passwords.
func (r *RoutingReconciler) gatherSecrets(ctx context.Context, g *routingInputs) error {
	var secrets corev1.SecretList
	if err := r.Client.List(ctx, &secrets, client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Secrets: %w", err)
	}
	for i := range secrets.Items {
		s := &secrets.Items[i]
		g.secrets[s.Name] = s.Data
		if isOfSpeakers(s) {
			g.speakerSecrets = append(g.speakerSecrets, s.DeepCopy())
		}
	}
	g.Password = func(ref v1.SecretKeyRef) ([]byte, bool) {
		password, exists := g.secrets[ref.Name][ref.Key]
		return password, exists
	}
	return nil
}

// gatherNodes reads the nodes that run an agent, and the facts that their agents report.
func (r *RoutingReconciler) gatherNodes(ctx context.Context, g *routingInputs) error {
	nodes, uids, err := RoutingNodes(ctx, r.Client, r.Namespace)
	if err != nil {
		return err
	}
	g.Nodes, g.nodeUIDs = nodes, uids
	g.Ignored = routing.IgnoredAddresses(nodes, g.announcements, g.commons, r.state.lingeringSince, g.Now)
	return nil
}

// ListBGPPeers reads the BGPPeers in the manager's namespace. They are the cache's own: they
// must not be changed.
func ListBGPPeers(ctx context.Context, c client.Reader, namespace string) ([]v1.BGPPeer, error) {
	var list v1.BGPPeerList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list BGPPeers: %w", err)
	}
	return list.Items, nil
}

// RoutingNodes reads the nodes that run an agent, with the facts that their agents report, and
// the UIDs of the nodes.
func RoutingNodes(
	ctx context.Context, c client.Reader, namespace string,
) ([]routing.Node, map[string]types.UID, error) {
	var list corev1.NodeList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list Nodes: %w", err)
	}
	var lbNodeAgents v1.LBNodeAgentList
	if err := c.List(ctx, &lbNodeAgents, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	announcements, err := listAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, nil, err
	}
	facts := map[string]*v1.AnnouncementStatus{}
	for i := range announcements {
		if a := &announcements[i]; a.Name == a.Spec.NodeName && a.Status.ObservedGeneration > 0 {
			facts[a.Name] = &a.Status
		}
	}
	shared := &cluster{lbNodeAgents: lbNodeAgents.Items}
	var nodes []routing.Node
	uids := map[string]types.UID{}
	var allPlaced []placement.Node
	for i := range list.Items {
		n := &list.Items[i]
		if n.Labels[v1.LabelAgent] == "" {
			continue
		}
		placed := shared.placementNode(n, nil, placement.Fresh, n.CreationTimestamp.Time)
		placed.IsLeaving = agents.IsOfAnother(shared.lbNodeAgents, n.Labels) // whether now or when it is its turn
		node := routing.Node{
			Name: n.Name, Labels: n.Labels, LBNodeAgent: placed.LBNodeAgent, VirtualInterface: placed.VirtualInterface,
			IsDraining: placed.IsExcluded || placed.IsOutOfService || placed.IsShuttingDown,
		}
		if reported := facts[n.Name]; reported != nil {
			node.HasReportedFacts, node.Interfaces, node.Gateways = true, reported.Interfaces, reported.Gateways
		}
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				node.Addresses = append(node.Addresses, addr.Unmap())
			}
		}
		uids[n.Name] = n.UID
		nodes, allPlaced = append(nodes, node), append(allPlaced, placed)
	}
	markDrainingCordoned(nodes, allPlaced, announcements)
	for i := range nodes {
		nodes[i].IsStaying = !nodes[i].IsDraining && !allPlaced[i].IsLeaving && !allPlaced[i].IsNotReady
	}
	slices.SortFunc(nodes, func(a, b routing.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, uids, nil
}
