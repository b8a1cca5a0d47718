package controllers

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
	"github.com/purelb/purelb-operator/controllers/placement"
)

// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch

// byService indexes EndpointSlices by their Service, as namespace/name.
const byService = "service"

// indexEndpoints makes a manager's cache find the EndpointSlices of a Service.
func indexEndpoints(ctx context.Context, mgr manager.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &discoveryv1.EndpointSlice{}, byService, func(obj client.Object) []string {
		return []string{obj.GetNamespace() + "/" + obj.GetLabels()[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	return nil
}

// endpoints is, of each Service whose traffic stays on the node, where it has
// some, by family; as namespace/name.
type endpoints map[string]map[discoveryv1.AddressType]*serving

// serving is the nodes that serve a Service, and those whose endpoints still do
// but are about to end.
type serving struct{ nodes, ending map[string]bool }

// staysLocal reports whether traffic that a node gets for a Service does not
// leave the node.
func staysLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// endpointsOf gathers the endpoints of those of the Services for which they
// matter.
func endpointsOf(ctx context.Context, c client.Reader, services []corev1.Service) (endpoints, error) {
	all := endpoints{}
	for i := range services {
		svc := &services[i]
		if !staysLocal(svc) || !isBranded(svc) {
			continue
		}
		var slices discoveryv1.EndpointSliceList
		if err := c.List(ctx, &slices, client.InNamespace(svc.Namespace), client.MatchingFields{byService: keyOf(svc)}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list EndpointSlices of %s: %w", keyOf(svc), err)
		}
		all[keyOf(svc)] = nodesServing(slices.Items)
	}
	return all, nil
}

// nodesServing is the nodes with ready endpoints, by family. Where there are
// none in a family, it is those that still serve while they terminate: what
// kube-proxy does, too (KEP-1669).
func nodesServing(slices []discoveryv1.EndpointSlice) map[discoveryv1.AddressType]*serving {
	all := map[discoveryv1.AddressType]*serving{}
	for i := range slices {
		s := all[slices[i].AddressType]
		if s == nil {
			s = &serving{nodes: map[string]bool{}, ending: map[string]bool{}}
			all[slices[i].AddressType] = s
		}
		for _, e := range slices[i].Endpoints {
			ready := ptr.Deref(e.Conditions.Ready, true)
			switch {
			case e.NodeName == nil || !ptr.Deref(e.Conditions.Serving, ready):
			case ready:
				s.nodes[*e.NodeName] = true
			default:
				s.ending[*e.NodeName] = true
			}
		}
	}
	for _, s := range all {
		if len(s.nodes) == 0 {
			s.nodes, s.ending = s.ending, nil
		}
	}
	return all
}

// restrict says of an address, which Services share, to which nodes its traffic
// may go. Policy Local is for Virtual addresses that are not shared, or for
// whoever insists. Of several Services that insist, all are to be served or,
// where no node serves all, any.
func (e endpoints) restrict(a *placement.Address, sharers []*corev1.Service) {
	family := discoveryv1.AddressTypeIPv4
	if a.Addr.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var insisting []*corev1.Service
	for _, svc := range sharers {
		if staysLocal(svc) && insists(svc) {
			insisting = append(insisting, svc)
		}
	}
	if len(insisting) == 0 {
		if len(sharers) > 1 || !staysLocal(sharers[0]) {
			return
		}
		insisting, a.OnlyVirtual = sharers, true
	}
	if len(insisting) == 1 {
		a.HealthPort = insisting[0].Spec.HealthCheckNodePort
	}
	union, count := map[string]bool{}, map[string]int{}
	a.Ending = map[string]bool{}
	for _, svc := range insisting {
		s := e[keyOf(svc)][family]
		if s == nil {
			continue
		}
		maps.Copy(union, s.nodes)
		maps.Copy(a.Ending, s.ending)
		for node := range s.nodes {
			count[node]++
		}
	}
	a.Only = map[string]bool{}
	for node, n := range count {
		if n == len(insisting) {
			a.Only[node] = true
		}
	}
	if len(a.Only) == 0 {
		a.Only = union
	}
}

// insists reports whether policy Local is to stay, on whatever address.
func insists(svc *corev1.Service) bool {
	return svc.Annotations[v1.AnnotationAllowLocal] == "true" || announced.OverrideRejected(svc)
}

// endpointsMatter maps an EndpointSlice to the cluster if placement depends on
// it.
func (r *PlacementReconciler) endpointsMatter(ctx context.Context, slice client.Object) []reconcile.Request {
	svc := &corev1.Service{}
	key := client.ObjectKey{Namespace: slice.GetNamespace(), Name: slice.GetLabels()[discoveryv1.LabelServiceName]}
	if err := r.Client.Get(ctx, key, svc); err != nil || !staysLocal(svc) || !isOurs(svc, r.IsDefault) {
		return nil
	}
	return []reconcile.Request{wholeCluster}
}
