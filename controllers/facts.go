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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/agents"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// factsPatience is how long after its Announcement was made an agent that has
// not reported its interfaces is waited for.
const factsPatience = 30 * time.Second

// readyPatience is how long a Node has to be not ready before addresses that it
// still answers for are taken over. Nothing is lost meanwhile, and it may only have
// been cut off the API server, and be back in a moment.
const readyPatience = 10 * time.Second

// cluster is what the cache holds of everything that placement depends on.
type cluster struct {
	nodes         []corev1.Node
	services      []corev1.Service
	agents        []v1.LBNodeAgent
	endpoints     endpoints
	announcements []v1.Announcement
	commons       []v1.CommonAnnouncement
	catalog       allocation.Catalog
}

// gather reads the cluster from the cache. Objects are the cache's own: they
// must not be changed.
func gather(ctx context.Context, c client.Reader, namespace string) (*cluster, error) {
	in := &cluster{}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	in.nodes = nodes.Items
	var list v1.LBNodeAgentList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list LBNodeAgents: %w", err)
	}
	in.agents = list.Items
	var groups v1.ServiceGroupList
	if err := c.List(ctx, &groups, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ServiceGroups: %w", err)
	}
	in.catalog = allocation.NewCatalog(groups.Items, namespace)
	var err error
	if in.announcements, err = listAnnouncements(ctx, c, namespace); err != nil {
		return nil, err
	}
	if in.commons, err = listCommons(ctx, c, namespace); err != nil {
		return nil, err
	}
	if in.services, err = listServices(ctx, c); err != nil {
		return nil, err
	}
	in.endpoints, err = endpointsOf(ctx, c, in.services)
	return in, err
}

func listAnnouncements(ctx context.Context, c client.Reader, namespace string) ([]v1.Announcement, error) {
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

// facts turns the cluster into what placement decides from.
func (in *cluster) facts(alive func(node string) placement.Liveness, now time.Time, isDefault bool) placement.Facts {
	facts := placement.Facts{Lingering: map[netip.Addr][]string{}}
	byNode := map[string][]*v1.Announcement{}
	for i := range in.announcements {
		a := &in.announcements[i]
		byNode[a.Spec.NodeName] = append(byNode[a.Spec.NodeName], a)
		entriesOf(a, &facts)
	}
	for i := range in.commons {
		spec := &in.commons[i].Spec
		for _, e := range spec.Addresses {
			if addr, err := netip.ParseAddr(e.Address); err == nil {
				facts.Common = append(facts.Common, placement.CommonEntry{Agent: spec.LBNodeAgent, Addr: addr, Spec: e})
			}
		}
	}
	for i := range in.nodes {
		n := &in.nodes[i]
		facts.Nodes = append(facts.Nodes, in.node(n, byNode[n.Name], alive(n.Name), now))
	}
	facts.Addresses = in.addresses(isDefault)
	for _, a := range facts.Addresses {
		if a.PoolType == v1.PoolTypeLocal { // its group may be gone
			facts.LocalSubnets = append(facts.LocalSubnets, netip.PrefixFrom(a.Addr, a.Addr.BitLen()))
		}
	}
	for _, verdict := range in.catalog {
		if verdict.Ready() && verdict.Group.Type == v1.PoolTypeLocal {
			for _, r := range verdict.Group.Ranges {
				facts.LocalSubnets = append(facts.LocalSubnets, r.Subnet)
			}
		}
	}
	return facts
}

func (in *cluster) node(n *corev1.Node, announcements []*v1.Announcement, alive placement.Liveness, now time.Time) placement.Node {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	node := placement.Node{
		Name:             n.Name,
		Agent:            n.Labels[v1.LabelAgent],
		Leaving:          agents.IsLeaving(in.agents, n.Labels),
		VirtualInterface: v1.DefaultDummyInterface,
		Excluded:         excluded,
		Liveness:         alive,
		OutOfService:     slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }),
	}
	isReady := false
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			isReady = c.Status == corev1.ConditionTrue
			node.Sick = !isReady && now.Sub(c.LastTransitionTime.Time) >= readyPatience
			// The kubelet has no other way to say so (KEP-2000).
			node.ShuttingDown = c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "node is shutting down")
		}
	}
	for i := range in.agents {
		if agent := &in.agents[i]; agent.Name == node.Agent && agent.Spec.Local != nil && agent.Spec.Local.DummyInterface != "" {
			node.VirtualInterface = string(agent.Spec.Local.DummyInterface)
		}
	}
	for _, a := range announcements {
		node.Reported = node.Reported || a.Status.ObservedGeneration > 0
		if len(node.Interfaces) == 0 {
			node.Interfaces = interfacesOf(a)
		}
		switch made := a.Status.CommonRevision; {
		case made != nil:
			node.CommonRevision = *made
		case a.Spec.Common && a.Status.ObservedGeneration >= a.Generation:
			node.Apart = true
		}
	}
	for _, a := range announcements {
		node.Awaited = node.Awaited || (!node.Reported && isReady && now.Sub(a.CreationTimestamp.Time) < factsPatience)
	}
	return node
}

// untilSick is when the first of the nodes that have just ceased to be ready counts
// as sick, 0 if there are none.
func (in *cluster) untilSick(now time.Time) time.Duration {
	wait := time.Duration(0)
	for i := range in.nodes {
		for _, c := range in.nodes[i].Status.Conditions {
			left := c.LastTransitionTime.Add(readyPatience).Sub(now)
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && left > 0 && (wait == 0 || left < wait) {
				wait = left
			}
		}
	}
	return wait
}

func interfacesOf(a *v1.Announcement) []placement.Interface {
	var interfaces []placement.Interface
	for _, i := range a.Status.Interfaces {
		out := placement.Interface{Name: string(i.Name), MAC: i.MAC, Down: i.Down}
		for _, s := range i.Subnets {
			if p, err := netip.ParsePrefix(s); err == nil {
				out.Subnets = append(out.Subnets, p)
			}
		}
		interfaces = append(interfaces, out)
	}
	return interfaces
}

// entriesOf adds what one Announcement asks for and what its agent reports.
func entriesOf(a *v1.Announcement, facts *placement.Facts) {
	reported := map[string]*v1.AddressStatus{}
	for i := range a.Status.Addresses {
		reported[a.Status.Addresses[i].Address] = &a.Status.Addresses[i]
	}
	for _, spec := range a.Spec.Addresses {
		addr, err := netip.ParseAddr(spec.Address)
		if err != nil {
			continue // the CRD lets none through
		}
		e := placement.Entry{Node: a.Spec.NodeName, Addr: addr, Spec: spec, Observed: a.Status.ObservedGeneration >= a.Generation}
		if s := reported[spec.Address]; s != nil && s.Epoch == spec.Epoch {
			e.State = s.State
		}
		delete(reported, spec.Address)
		facts.Entries = append(facts.Entries, e)
	}
	for _, s := range reported {
		if addr, err := netip.ParseAddr(s.Address); err == nil && s.State == v1.StateAnnounced {
			facts.Lingering[addr] = append(facts.Lingering[addr], a.Spec.NodeName)
		}
	}
}

// addresses is the addresses that our Services have, with who shares them.
func (in *cluster) addresses(isDefault bool) []placement.Address {
	sharers := map[netip.Addr][]*corev1.Service{}
	var order []netip.Addr
	for i := range in.services {
		svc := &in.services[i]
		if !isOurs(svc, isDefault) || !isBranded(svc) {
			continue
		}
		for _, a := range ingressOf(svc) {
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
		out := in.address(sharers[a][0], a)
		for _, svc := range sharers[a] {
			out.Services = append(out.Services, keyOf(svc))
		}
		in.endpoints.restrict(&out, sharers[a])
		addresses = append(addresses, out)
	}
	return addresses
}

// address describes one address. Where its group is gone or has changed, the
// Service's own annotations still say what it was, and it stays announced.
func (in *cluster) address(svc *corev1.Service, a netip.Addr) placement.Address {
	out := placement.Address{
		Addr:     a,
		Group:    svc.Annotations[v1.AnnotationAllocatedFrom],
		PoolType: v1.PoolType(svc.Annotations[v1.AnnotationPoolType]),
	}
	if group, r, ok := in.catalog.GroupOf(a); ok {
		out.Group, out.PoolType, out.Mask, out.SkipProbe = group.Name, group.Type, r.Mask, group.SkipIPv6DAD
	}
	return out
}

// reservedAddresses is the addresses of nodes and of their gateways, which are
// never handed out, with what they are.
func reservedAddresses(ctx context.Context, c client.Reader, namespace string) (map[netip.Addr]string, error) {
	reserved := map[netip.Addr]string{}
	add := func(s, what string) {
		if a, err := netip.ParseAddr(s); err == nil {
			reserved[a] = what
		}
	}
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			add(a.Address, "an address of node "+nodes.Items[i].Name)
		}
	}
	announcements, err := listAnnouncements(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	for i := range announcements {
		for _, iface := range announcements[i].Status.Interfaces {
			for _, s := range iface.Subnets {
				// An on-link route has no host bits; the shortest subnets have none
				// to tell it by.
				if p, err := netip.ParsePrefix(s); err == nil && (p != p.Masked() || p.Bits() >= p.Addr().BitLen()-1) {
					add(p.Addr().String(), "an address of node "+announcements[i].Spec.NodeName)
				}
			}
			for _, g := range iface.Gateways {
				add(g, "a gateway of node "+announcements[i].Spec.NodeName)
			}
		}
	}
	return reserved, nil
}

// ownerOf makes a Node the owner of an object, so that it goes with the node.
func ownerOf(n *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}
