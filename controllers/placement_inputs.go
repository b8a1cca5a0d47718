package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
	"github.com/purelb/purelb-operator/controllers/routing"
)

// cluster is what the cache holds of everything that placement depends on.
type cluster struct {
	nodes         []corev1.Node
	services      []corev1.Service
	lbNodeAgents  []v1.LBNodeAgent
	endpoints     endpointNodes
	announcements []v1.Announcement
	standbys      []v1.Announcement // those that say what to do when another node dies
	askings       []v1.Announcement // those that say what to find out about another node's addresses
	commons       []v1.CommonAnnouncement
	routings      map[string]*v1.NodeRouting // by node
	groups        []v1.ServiceGroup
	catalog       allocation.Catalog
	// ruled says which addresses speakers know how to advertise; nil is all.
	ruled *routing.RuledAddresses
}

// gatherCluster reads the cluster from the cache. Objects are the cache's own: they must
// not be changed.
func gatherCluster(ctx context.Context, c client.Reader, namespace string) (*cluster, error) {
	cluster, err := gatherExceptEndpoints(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	cluster.endpoints, err = listEndpointNodes(ctx, c, cluster.services)
	return cluster, err
}

// gatherExceptEndpoints is gatherCluster for what does not depend on endpoints.
func gatherExceptEndpoints(ctx context.Context, c client.Reader, namespace string) (*cluster, error) {
	cluster := &cluster{}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	cluster.nodes = nodes.Items
	var lbNodeAgents v1.LBNodeAgentList
	if err := c.List(ctx, &lbNodeAgents, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	cluster.lbNodeAgents = lbNodeAgents.Items
	var groups v1.ServiceGroupList
	if err := c.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	cluster.groups, cluster.catalog = groups.Items, allocation.NewCatalog(groups.Items, namespace)
	all, err := listAllAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	for i := range all {
		switch {
		case all[i].Spec.Standby != nil:
			cluster.standbys = append(cluster.standbys, all[i])
		case all[i].Spec.Asking != nil:
			cluster.askings = append(cluster.askings, all[i])
		default:
			cluster.announcements = append(cluster.announcements, all[i])
		}
	}
	if cluster.commons, err = listCommons(ctx, c, namespace); err != nil {
		return nil, err
	}
	if cluster.routings, err = listRoutings(ctx, c, namespace); err != nil {
		return nil, err
	}
	cluster.services, err = listServices(ctx, c)
	return cluster, err
}

// listAnnouncements lists the Announcements by which nodes announce addresses.
func listAnnouncements(ctx context.Context, c client.Reader, namespace string) ([]v1.Announcement, error) {
	all, err := listAllAnnouncements(ctx, c, namespace)
	return slices.DeleteFunc(all, func(a v1.Announcement) bool { return !a.IsForAnnouncing() }), err
}

// listAllAnnouncements lists all Announcements, those with standby or asking included.
func listAllAnnouncements(ctx context.Context, c client.Reader, namespace string) ([]v1.Announcement, error) {
	var list v1.AnnouncementList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Announcements: %w", err)
	}
	return list.Items, nil
}

func listCommons(ctx context.Context, c client.Reader, namespace string) ([]v1.CommonAnnouncement, error) {
	var list v1.CommonAnnouncementList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list CommonAnnouncements: %w", err)
	}
	return list.Items, nil
}

// placementInputs turns the cluster into what placement decides from.
func (c *cluster) placementInputs(
	livenessOf func(node string) placement.Liveness, now time.Time, isDefaultLoadBalancer bool,
) placement.Inputs {
	inputs := placement.Inputs{
		LingeringReports: map[netip.Addr][]placement.LingeringReport{},
		SharedExceptions: map[netip.Addr]map[string]v1.AddressState{},
	}
	entries, sharedEntries := 0, 0
	for i := range c.announcements {
		entries += len(c.announcements[i].Spec.Addresses)
	}
	for i := range c.commons {
		sharedEntries += len(c.commons[i].Spec.Addresses)
	}
	inputs.Entries = slices.Grow(inputs.Entries, entries)
	inputs.SharedEntries = slices.Grow(inputs.SharedEntries, sharedEntries)
	announcementsByNode := c.announcementsByNode()
	for i := range c.announcements {
		addEntries(&inputs, &c.announcements[i])
	}
	inputs.AddClaims(c.successorClaims())
	for i := range c.commons {
		spec := &c.commons[i].Spec
		for _, e := range spec.Addresses {
			if addr, err := netip.ParseAddr(e.Address); err == nil {
				inputs.SharedEntries = append(
					inputs.SharedEntries, placement.SharedEntry{LBNodeAgent: spec.LBNodeAgent, Addr: addr, Spec: e},
				)
			}
		}
	}
	leaving := agents.TurnsOf(c.lbNodeAgents, c.members(announcementsByNode, livenessOf)).Leaving
	for i := range c.nodes {
		n := &c.nodes[i]
		node := c.placementNode(n, announcementsByNode[n.Name], livenessOf(n.Name), now)
		node.IsLeaving = leaving[n.Name]
		inputs.Nodes = append(inputs.Nodes, node)
		delete(announcementsByNode, n.Name)
	}
	for name, announcements := range announcementsByNode {
		node := placement.Node{Name: name, IsDeleted: true, IsNotReady: true, IsNotReadyForLong: true}
		node.IsLeaving = !c.staysLBNodeAgent(announcements[0].Spec.LBNodeAgent)
		addReportedFacts(&node, announcements)
		inputs.Nodes = append(inputs.Nodes, node)
	}
	inputs.Addresses = c.placementAddresses(isDefaultLoadBalancer)
	c.setAwaitsRule(&inputs)
	for _, a := range inputs.Addresses {
		if a.PoolType != v1.PoolTypeRemote { // its group may be gone
			inputs.LocalSubnets = append(inputs.LocalSubnets, netip.PrefixFrom(a.Addr, a.Addr.BitLen()))
		}
	}
	for _, verdict := range c.catalog {
		if verdict.IsReady() && verdict.Group.Type != v1.PoolTypeRemote {
			for _, r := range verdict.Group.Ranges {
				inputs.LocalSubnets = append(inputs.LocalSubnets, r.Subnet)
			}
		}
	}
	return inputs
}

// announcementsByNode are the Announcements of each node.
func (c *cluster) announcementsByNode() map[string][]*v1.Announcement {
	byNode := map[string][]*v1.Announcement{}
	for i := range c.announcements {
		a := &c.announcements[i]
		byNode[a.Spec.NodeName] = append(byNode[a.Spec.NodeName], a)
	}
	return byNode
}

// members are the nodes, as their turns depend on them when they go from one LBNodeAgent to another.
func (c *cluster) members(
	announcements map[string][]*v1.Announcement, livenessOf func(node string) placement.Liveness,
) []agents.Member {
	members := make([]agents.Member, 0, len(c.nodes))
	for i := range c.nodes {
		n := &c.nodes[i]
		m := agents.Member{
			Name: n.Name, Labels: n.Labels, IsReady: readyOf(n).Status == corev1.ConditionTrue,
			IsAlive: livenessOf(n.Name) != placement.Expired,
		}
		for _, a := range announcements[n.Name] {
			if a.Name == n.Name {
				m.Announcement = a
			}
		}
		members = append(members, m)
	}
	return members
}

// staysLBNodeAgent reports whether there is an LBNodeAgent of that name that is not being deleted.
func (c *cluster) staysLBNodeAgent(name string) bool {
	return slices.ContainsFunc(c.lbNodeAgents, func(a v1.LBNodeAgent) bool {
		return a.Name == name && a.DeletionTimestamp.IsZero()
	})
}

// placementNode describes one node, except IsLeaving, which depends on the others.
func (c *cluster) placementNode(
	n *corev1.Node, announcements []*v1.Announcement, liveness placement.Liveness, now time.Time,
) placement.Node {
	_, isExcluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	node := placement.Node{
		Name:              n.Name,
		Labels:            n.Labels,
		LBNodeAgent:       n.Labels[v1.LabelAgent],
		VirtualInterface:  v1.DefaultDummyInterface,
		Addresses:         addressesOfNode(n),
		IsExcluded:        isExcluded,
		AddressToHandOver: addressToHandOver(n),
		Liveness:          liveness,
		MayHaveRoutes:     untilRoutesWithdrawn(c.routings[n.Name], now) > 0,
		IsOutOfService: slices.ContainsFunc(
			n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService },
		),
	}
	ready := readyOf(n)
	node.IsNotReady = ready.Status != corev1.ConditionTrue
	// The kubelet has no other way to say so (KEP-2000).
	node.IsShuttingDown = ready.Status == corev1.ConditionFalse && strings.Contains(ready.Message, "node is shutting down")
	for i := range c.lbNodeAgents {
		agent := &c.lbNodeAgents[i]
		if agent.Name != node.LBNodeAgent {
			continue
		}
		node.HandsOverAsCordoned = agent.Spec.OnUnschedulable == v1.UnschedulableHandOver && isUnschedulable(n)
		if agent.Spec.Local != nil {
			node.VirtualInterface = agents.VirtualInterface(agent)
			node.ProbeTime = probeTime(agent.Spec.Local.ProbeConfig)
			node.AllowedSubnets = allowedSubnets(agent)
			failover := agent.Spec.Local.Failover
			node.AsksOthers = agent.AsksForAddresses()
			node.IsFailoverDisabled = failover != nil && failover.Enabled != nil && !*failover.Enabled
		}
	}
	addReportedFacts(&node, announcements)
	node.LacksAnnouncement = true
	for _, a := range announcements {
		if a.Name == n.Name {
			node.LacksAnnouncement, node.HeartbeatSeconds = false, a.Spec.HeartbeatSeconds
		}
		node.AnnouncesShared = node.AnnouncesShared || a.Spec.IncludeCommonAnnouncements
		if revision := a.Status.CommonAnnouncementsRevision; revision != nil {
			node.SharedRevision = *revision
		}
		node.AreFactsAwaited = node.AreFactsAwaited ||
			(!node.HasReportedFacts && !node.IsNotReady && now.Sub(a.CreationTimestamp.Time) < placement.FactsPatience)
	}
	return node
}

// taintToBeDeleted is what the Cluster Autoscaler taints a node with that it is about to drain and
// to delete. kube-proxy fails the health check of such a node, too.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// isUnschedulable reports whether a node takes no new pods, as one that is cordoned or drained. Whether
// the pods that are there are to go, no object of the API says.
func isUnschedulable(n *corev1.Node) bool {
	return n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeUnschedulable || t.Key == taintToBeDeleted
	})
}

// addressToHandOver is the address that a Node is asked to hand over, or zero. What is no address asks
// for nothing.
func addressToHandOver(n *corev1.Node) netip.Addr {
	a, err := netip.ParseAddr(n.Annotations[v1.AnnotationHandover])
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}

// allowedSubnets are the subnets in which the nodes of an LBNodeAgent may have Local
// addresses, or none if the LBNodeAgent does not say.
func allowedSubnets(a *v1.LBNodeAgent) []netip.Prefix {
	if a.Spec.Local == nil {
		return nil
	}
	return parseSubnets(a.Spec.Local.Subnets)
}

// probeTime is how long a probe takes; 0 if the configuration does not say.
func probeTime(c *v1.ProbeConfig) time.Duration {
	if c == nil || c.Count == nil || c.Interval == nil {
		return 0
	}
	return time.Duration(*c.Count) * c.Interval.Duration
}

// addReportedFacts adds the facts that a node's agent reports: they are in the Announcement that
// has the node's name.
func addReportedFacts(node *placement.Node, announcements []*v1.Announcement) {
	for _, a := range announcements {
		if a.Spec.NodeName == node.Name && hasReportedFacts(a) {
			node.Interfaces, node.MACs, node.HasReportedFacts = placementInterfaces(a), a.Status.MACs, true
		}
	}
}

// hasReportedFacts reports whether an Announcement is the one of its node that has facts, and the agent has reported
// them. They may be that it selects no interface.
func hasReportedFacts(a *v1.Announcement) bool {
	return a.Name == a.Spec.NodeName && a.Status.ObservedGeneration > 0
}

// heartbeatPeriods is how often the agent of each node is to renew its Lease.
func (c *cluster) heartbeatPeriods() map[string]time.Duration {
	heartbeats := make(map[string]time.Duration, len(c.nodes))
	for i := range c.announcements {
		if a := &c.announcements[i]; a.Name == a.Spec.NodeName {
			heartbeats[a.Name] = time.Duration(a.Spec.HeartbeatSeconds) * time.Second
		}
	}
	return heartbeats
}

// placementInterfaces are the interfaces that a node's agent reports.
func placementInterfaces(a *v1.Announcement) []placement.Interface {
	var interfaces []placement.Interface
	for _, i := range a.Status.Interfaces {
		out := placement.Interface{Name: string(i.Name), MAC: i.MAC, IsDown: i.Down}
		out.Subnets = parseSubnets(i.Subnets)
		interfaces = append(interfaces, out)
	}
	return interfaces
}

// parseSubnets parses subnets in CIDR form. The CRDs let no others through.
func parseSubnets(texts []string) []netip.Prefix {
	var subnets []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			subnets = append(subnets, p)
		}
	}
	return subnets
}

// addEntries adds the entries of one Announcement, with what its agent reports of them, and
// the addresses that the agent reports without an entry.
func addEntries(inputs *placement.Inputs, a *v1.Announcement) {
	reported := make(map[string]*v1.AddressStatus, len(a.Status.Addresses))
	for i := range a.Status.Addresses {
		reported[a.Status.Addresses[i].Address] = &a.Status.Addresses[i]
	}
	for _, spec := range a.Spec.Addresses {
		addr, err := netip.ParseAddr(spec.Address)
		if err != nil {
			continue // the CRD lets none through
		}
		e := placement.Entry{
			Node: a.Spec.NodeName, Addr: addr, Spec: spec, IsObserved: a.Status.ObservedGeneration >= a.Generation,
		}
		if s := reported[spec.Address]; s != nil && s.Epoch == spec.Epoch {
			e.ReportedState = s.State
		}
		delete(reported, spec.Address)
		inputs.Entries = append(inputs.Entries, e)
	}
	for _, s := range reported {
		addr, err := netip.ParseAddr(s.Address)
		switch {
		case err != nil:
			continue
		case s.State == v1.StateAnnounced:
			inputs.LingeringReports[addr] = append(
				inputs.LingeringReports[addr], placement.LingeringReport{Node: a.Spec.NodeName},
			)
		case inputs.SharedExceptions[addr] == nil:
			inputs.SharedExceptions[addr] = map[string]v1.AddressState{a.Spec.NodeName: s.State}
		default:
			inputs.SharedExceptions[addr][a.Spec.NodeName] = s.State
		}
	}
}

// successorClaims are the Local addresses that successors report to have claimed.
func (c *cluster) successorClaims() []placement.SuccessorClaim {
	var claims []placement.SuccessorClaim
	for i := range c.standbys {
		for _, s := range c.standbys[i].Status.Addresses {
			if addr, err := netip.ParseAddr(s.Address); err == nil && s.State == v1.StateAnnounced {
				claims = append(
					claims,
					placement.SuccessorClaim{Node: c.standbys[i].Spec.NodeName, Addr: addr, Epoch: s.Epoch, Message: s.Message},
				)
			}
		}
	}
	return claims
}

// isWatching reports whether the node of an Announcement with standby says that it would claim all its addresses: it
// has seen the Announcement as it stands, and sees no reason why not.
func isWatching(a *v1.Announcement) bool {
	return a.Status.ObservedGeneration >= a.Generation &&
		meta.IsStatusConditionTrue(a.Status.Conditions, v1.ConditionReady)
}

// watches are which nodes watch which holders of Local addresses now, as they report.
func (c *cluster) watches() map[placement.Watch]bool {
	watches := map[placement.Watch]bool{}
	for i := range c.standbys {
		a := &c.standbys[i]
		if !isWatching(a) {
			continue
		}
		for _, s := range a.Spec.Standby.Addresses {
			if addr, err := netip.ParseAddr(s.Address); err == nil {
				watches[placement.Watch{
					Watcher: a.Spec.NodeName, Holder: a.Spec.Standby.Watched.NodeName, Addr: addr, Epoch: s.Epoch,
				}] = true
			}
		}
	}
	return watches
}

// placementAddresses are the addresses that our Services have, with the Services that
// share each.
func (c *cluster) placementAddresses(isDefaultLoadBalancer bool) []placement.Address {
	sharers := make(map[netip.Addr][]*corev1.Service, len(c.services))
	order := make([]netip.Addr, 0, len(c.services))
	for i := range c.services {
		svc := &c.services[i]
		if !IsOurs(svc, isDefaultLoadBalancer) {
			continue
		}
		for _, a := range allocation.AddressesToAnnounce(svc) {
			if sharers[a] == nil {
				order = append(order, a)
			}
			sharers[a] = append(sharers[a], svc)
		}
	}
	addresses := make([]placement.Address, 0, len(order))
	for _, a := range order {
		slices.SortFunc(sharers[a], func(x, y *corev1.Service) int {
			return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
		})
		out := c.placementAddress(sharers[a][0], a)
		for _, svc := range sharers[a] {
			out.Services = append(out.Services, KeyOf(svc))
		}
		c.endpoints.restrictAddress(&out, sharers[a], c.insistsOnLocal)
		addresses = append(addresses, out)
	}
	return addresses
}

// setAwaitsRule sets which addresses, of those that no node announces yet, have to wait until a speaker is told how to
// advertise them.
func (c *cluster) setAwaitsRule(inputs *placement.Inputs) {
	if c.ruled == nil {
		return
	}
	isAnnounced := map[netip.Addr]bool{}
	for i := range inputs.Entries {
		isAnnounced[inputs.Entries[i].Addr] = true
	}
	for i := range inputs.SharedEntries {
		isAnnounced[inputs.SharedEntries[i].Addr] = true
	}
	for i := range inputs.Addresses {
		if a := &inputs.Addresses[i]; !isAnnounced[a.Addr] {
			a.AwaitsRuleOn = c.ruled.NodeWithoutRule(a.Group, a.Addr)
		}
	}
}

// placementAddress describes one address. Where its group is gone or has changed, the
// record of the Service still says what the group was, and the address stays announced.
func (c *cluster) placementAddress(svc *corev1.Service, a netip.Addr) placement.Address {
	group, r, ok := c.catalog.GroupContaining(a)
	if ok && group.IsExternal() { // several such groups may contain it
		group, r, ok = c.catalog.GroupContainingPreferring(allocation.RecordOf(svc).Group, a)
	}
	if ok {
		return placement.Address{
			Addr: a, Group: group.Name, PoolType: group.Type, Mask: r.Mask, Subnet: r.Subnet, SkipsProbe: group.SkipIPv6DAD,
			Preference: group.Preference,
		}
	}
	record := allocation.RecordOf(svc)
	return placement.Address{Addr: a, Group: record.Group, PoolType: record.Type}
}
