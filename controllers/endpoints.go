package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch

// indexEndpoints makes a manager's cache find the EndpointSlices of a Service.
func indexEndpoints(ctx context.Context, cluster ComponentManager) error {
	err := cluster.GetFieldIndexer().
		IndexField(ctx, &discoveryv1.EndpointSlice{}, byService, func(obj client.Object) []string {
			return []string{obj.GetNamespace() + "/" + obj.GetLabels()[discoveryv1.LabelServiceName]}
		})
	if err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	return nil
}

// endpointNodes says, of each Service whose traffic stays on the node, as namespace/name,
// where its endpoints are.
type endpointNodes map[string]serviceEndpoints

// serviceEndpoints says which nodes have endpoints of a Service.
type serviceEndpoints struct {
	byFamily map[discoveryv1.AddressType]*servingNodes
	// areOnEveryNode is true where endpoints serve, and none of them says on which node it is: they
	// stand for something that is on every node, as the proxies of some implementations of the
	// Gateway API are.
	areOnEveryNode bool
}

// servingNodes are the nodes with ready endpoints of a Service, and those whose endpoints
// still serve but terminate.
type servingNodes struct{ ready, terminating map[string]bool }

// listEndpointNodes gathers the endpoints of those of the Services for which they matter.
func listEndpointNodes(ctx context.Context, c client.Reader, services []corev1.Service) (endpointNodes, error) {
	all := endpointNodes{}
	for i := range services {
		svc := &services[i]
		if !allocation.HasPolicyLocal(svc) || !hasAddressesToAnnounce(svc) {
			continue
		}
		var slices discoveryv1.EndpointSliceList
		if err := c.List(
			ctx, &slices, client.InNamespace(svc.Namespace), client.MatchingFields{byService: KeyOf(svc)},
			client.UnsafeDisableDeepCopy,
		); err != nil {
			return nil, fmt.Errorf("list EndpointSlices of %s: %w", KeyOf(svc), err)
		}
		all[KeyOf(svc)] = endpointsOf(slices.Items)
	}
	return all, nil
}

// endpointsOf returns where the endpoints of one Service's EndpointSlices are. Where no
// endpoint of a family is ready, those that still serve while they terminate count as ready,
// as they do for kube-proxy (KEP-1669).
func endpointsOf(slices []discoveryv1.EndpointSlice) serviceEndpoints {
	all, isOneOnNode, isOneAnywhere := map[discoveryv1.AddressType]*servingNodes{}, false, false
	for i := range slices {
		s := all[slices[i].AddressType]
		if s == nil {
			s = &servingNodes{ready: map[string]bool{}, terminating: map[string]bool{}}
			all[slices[i].AddressType] = s
		}
		for _, e := range slices[i].Endpoints {
			isReady := ptr.Deref(e.Conditions.Ready, true)
			switch {
			case !ptr.Deref(e.Conditions.Serving, isReady):
				continue
			case e.NodeName == nil:
				isOneAnywhere = true
				continue
			case isReady:
				s.ready[*e.NodeName] = true
			default:
				s.terminating[*e.NodeName] = true
			}
			isOneOnNode = true
		}
	}
	for _, s := range all {
		if len(s.ready) == 0 {
			s.ready, s.terminating = s.terminating, nil
		}
	}
	return serviceEndpoints{byFamily: all, areOnEveryNode: isOneAnywhere && !isOneOnNode}
}

// keepsTraffic reports whether what a node gets for a Service may go to endpoints on that node
// only, so that it matters which nodes have some.
func (e endpointNodes) keepsTraffic(svc *corev1.Service) bool {
	return allocation.HasPolicyLocal(svc) && !e[KeyOf(svc)].areOnEveryNode
}

// restrictAddress says of an address, which the given Services share, to which nodes its
// traffic may go. Policy Local is for Virtual addresses that are not shared, or for Services
// that insist on it, as insists reports. Of several Services that insist, a node has to serve all
// or, where no node serves all, any. A Service whose endpoints are anywhere restricts nothing. A
// Service that insists and that no node serves gets no traffic wherever the address is, so the
// address is withdrawn only when there is no other Service that it would serve. Where Services of
// several namespaces share, they restrict the address only if one of each namespace insists: no user
// moves the address of another namespace's Service.
func (e endpointNodes) restrictAddress(
	a *placement.Address, sharers []*corev1.Service, insists func(*corev1.Service) bool,
) {
	family := discoveryv1.AddressTypeIPv4
	if a.Addr.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var insisting []*corev1.Service
	for _, svc := range sharers {
		if e.keepsTraffic(svc) && insists(svc) {
			insisting = append(insisting, svc)
		}
	}
	if len(insisting) == 0 {
		if len(sharers) > 1 || !e.keepsTraffic(sharers[0]) {
			return
		}
		insisting, a.IsUnrestrictedIfLocal = sharers, true
	}
	if !slices.Equal(namespacesOf(insisting), namespacesOf(sharers)) {
		return
	}
	served := e.servedServices(insisting, family)
	switch {
	case len(served) > 0:
	case len(insisting) < len(sharers):
		return // the others are served from any node
	default:
		served = insisting
	}
	if len(served) == 1 {
		a.HealthPort = served[0].Spec.HealthCheckNodePort
	}
	a.ServingNodes, a.TerminatingNodes = e.nodesServingAll(served, family)
}

// namespacesOf returns the namespaces of Services, sorted, each once.
func namespacesOf(services []*corev1.Service) []string {
	var names []string
	for _, svc := range services {
		names = append(names, svc.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// servedServices returns those of the Services that some node serves in a family.
func (e endpointNodes) servedServices(services []*corev1.Service, family discoveryv1.AddressType) []*corev1.Service {
	var served []*corev1.Service
	for _, svc := range services {
		if s := e[KeyOf(svc)].byFamily[family]; s != nil && len(s.ready) > 0 {
			served = append(served, svc)
		}
	}
	return served
}

// nodesServingAll returns the nodes that serve all of the Services in a family or, where
// there is none, any of them; and the nodes whose endpoints terminate.
func (e endpointNodes) nodesServingAll(
	services []*corev1.Service, family discoveryv1.AddressType,
) (serving, terminating map[string]bool) {
	serving, terminating = map[string]bool{}, map[string]bool{}
	servingAny, servedBy := map[string]bool{}, map[string]int{}
	for _, svc := range services {
		s := e[KeyOf(svc)].byFamily[family]
		if s == nil {
			continue
		}
		maps.Copy(servingAny, s.ready)
		maps.Copy(terminating, s.terminating)
		for node := range s.ready {
			servedBy[node]++
		}
	}
	for node, count := range servedBy {
		if count == len(services) {
			serving[node] = true
		}
	}
	if len(serving) == 0 {
		serving = servingAny
	}
	return serving, terminating
}

// insistsOnLocal reports whether policy Local of a Service is to stay, on whatever address.
func (c *cluster) insistsOnLocal(svc *corev1.Service) bool {
	return c.catalog.PolicyLocalFor(svc) != v1.PolicyLocalOverride || announced.IsOverrideRejected(svc)
}

// insistenceChanged reports whether two versions of a Service differ in what decides
// whether policy Local stays, apart from their spec.
func insistenceChanged(before, after *corev1.Service) bool {
	return before.Annotations[v1.AnnotationAllowLocal] != after.Annotations[v1.AnnotationAllowLocal] ||
		announced.IsOverrideRejected(before) != announced.IsOverrideRejected(after) ||
		allocation.RecordOf(before).Group != allocation.RecordOf(after).Group
}

// requestIfEndpointsMatter maps an EndpointSlice to the cluster if placement depends on it.
func (r *PlacementReconciler) requestIfEndpointsMatter(ctx context.Context, slice client.Object) []reconcile.Request {
	svc := &corev1.Service{}
	key := client.ObjectKey{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
	if err := r.Client.Get(ctx, key, svc); err != nil || !allocation.HasPolicyLocal(svc) ||
		!IsOurs(svc, r.IsDefaultLoadBalancer) {
		return nil
	}
	return []reconcile.Request{wholeCluster}
}
