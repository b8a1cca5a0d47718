package controllers

import (
	"maps"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
	"github.com/purelb/purelb-operator/controllers/announced"
)

// The manager caches every Service and EndpointSlice of the cluster. Their authors can make
// each of them as large as the API server takes, without a quota that counts Services of
// type LoadBalancer, so the functions below keep of an object what the manager reads, and
// only so much of that as can mean something.
//
// The manager must never write what it reads from the cache back as a whole. Its writes of
// Services are server-side applies of its own fields, or patches of single fields against
// an object that the API server has just returned.

// Bounds of what the cache keeps of a Service of type LoadBalancer. Nothing that the manager
// writes itself is as long.
const (
	// maxCachedText is for annotations and texts of the spec. A text that was cut is still
	// longer than what it could mean.
	maxCachedText = allocation.MaxRequestText + 1
	// maxCachedReport is for the annotations in which the manager lists Local addresses with
	// node and interface: a Service has one of each of the 64 ranges of a family at most.
	maxCachedReport = 40 << 10
	// maxCachedList is for lists and maps of the spec that the manager only compares.
	maxCachedList = 100
	// Of a Service with more than maxDescribedPorts ports the cache keeps the numbers of the
	// first maxCachedPorts. Services of several namespaces that share an address have fewer.
	maxDescribedPorts = allocation.MaxRecordedPorts
	maxCachedPorts    = 1000
	// maxCachedIngress is for status.loadBalancer.ingress.
	maxCachedIngress = 1000
)

// slimMeta keeps what identifies an object and its version.
func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// SlimService makes the cache keep of a Service what the manager reads. Of a Service that
// PureLB never serves that is its type, its addresses, and what a manager has written there
// while PureLB served the Service.
func SlimService(obj any) (any, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	slim := &corev1.Service{ObjectMeta: slimMeta(&svc.ObjectMeta)}
	isCandidate := IsOurs(svc, true)
	names := allocation.ManagerAnnotations
	if isCandidate {
		names = slices.Concat(names, allocation.UserAnnotations)
		slim.Spec = slimServiceSpec(&svc.Spec)
	} else {
		slim.Spec.Type, slim.Spec.LoadBalancerClass = svc.Spec.Type, svc.Spec.LoadBalancerClass
	}
	for _, name := range names {
		value, exists := svc.Annotations[name]
		if !exists {
			continue
		}
		most := maxCachedText
		if isCandidate && slices.Contains(announced.AnnotationNames, name) {
			most = maxCachedReport
		}
		metav1.SetMetaDataAnnotation(&slim.ObjectMeta, name, cutText(value, most))
	}
	for _, c := range svc.Status.Conditions {
		switch c.Type {
		case v1.ConditionAllocated, v1.ConditionAllocationRecord, v1.ConditionAnnounced, v1.ConditionAdvertised,
			v1.ConditionServiceReachable:
			c.Message = cutText(c.Message, maxServiceMessage)
			slim.Status.Conditions = append(slim.Status.Conditions, c)
		}
	}
	for _, in := range firstOf(svc.Status.LoadBalancer.Ingress, maxCachedIngress) {
		slim.Status.LoadBalancer.Ingress = append(slim.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP: in.IP, Hostname: cutText(in.Hostname, maxCachedText), IPMode: in.IPMode,
		})
	}
	return slim, nil
}

// slimServiceSpec keeps the whole of a spec of the usual size, because the manager tells
// specs apart that users have written (announced.DecideOverride). What it cuts of others does
// not count there.
func slimServiceSpec(spec *corev1.ServiceSpec) corev1.ServiceSpec {
	slim := *spec
	slim.LoadBalancerIP, slim.ExternalName = cutText(spec.LoadBalancerIP, maxCachedText),
		cutText(spec.ExternalName, maxCachedText)
	slim.ExternalIPs = slices.Clone(firstOf(spec.ExternalIPs, maxCachedList))
	slim.LoadBalancerSourceRanges = slices.Clone(firstOf(spec.LoadBalancerSourceRanges, maxCachedList))
	if len(spec.Selector) > maxCachedList {
		slim.Selector = map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(spec.Selector))[:maxCachedList] {
			slim.Selector[key] = spec.Selector[key]
		}
	}
	if len(spec.Ports) > maxDescribedPorts {
		slim.Ports = nil
		for _, p := range firstOf(spec.Ports, maxCachedPorts) {
			slim.Ports = append(slim.Ports, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port})
		}
	}
	return slim
}

// SlimEndpointSlice makes the cache keep of an EndpointSlice which nodes have endpoints that
// serve, and which of these are ready: one endpoint for each node and readiness (see servingNodes). Its labels
// are copies of those of the Service.
func SlimEndpointSlice(obj any) (any, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return obj, nil
	}
	slim := &discoveryv1.EndpointSlice{ObjectMeta: slimMeta(&slice.ObjectMeta), AddressType: slice.AddressType}
	if service, exists := slice.Labels[discoveryv1.LabelServiceName]; exists {
		slim.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	}
	type place struct {
		node    string
		isReady bool
	}
	isKept, serves := map[place]bool{}, ptr.To(true)
	for _, e := range slice.Endpoints {
		isReady := ptr.Deref(e.Conditions.Ready, true)
		at := place{ptr.Deref(e.NodeName, ""), isReady}
		if !ptr.Deref(e.Conditions.Serving, isReady) || isKept[at] {
			continue
		}
		isKept[at] = true
		slim.Endpoints = append(slim.Endpoints, discoveryv1.Endpoint{
			NodeName: e.NodeName, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(isReady), Serving: serves},
		})
	}
	return slim, nil
}

// SlimNode makes the cache keep of a Node its labels, taints and addresses, which address it is
// asked to hand over, and whether it is unschedulable and Ready.
func SlimNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	slim := &corev1.Node{ObjectMeta: slimMeta(&n.ObjectMeta)}
	slim.Labels, slim.Spec.Taints, slim.Status.Addresses = n.Labels, n.Spec.Taints, n.Status.Addresses
	slim.Spec.Unschedulable = n.Spec.Unschedulable
	if value, isAsked := n.Annotations[v1.AnnotationHandover]; isAsked {
		slim.Annotations = map[string]string{v1.AnnotationHandover: cutText(value, maxAddressText)}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.Status.Conditions = append(slim.Status.Conditions, c)
		}
	}
	return slim, nil
}

// SlimLease makes the cache keep of a Lease when it was renewed, and for how long.
func SlimLease(obj any) (any, error) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok {
		return obj, nil
	}
	return &coordinationv1.Lease{
		ObjectMeta: slimMeta(&lease.ObjectMeta),
		Spec: coordinationv1.LeaseSpec{
			RenewTime: lease.Spec.RenewTime, LeaseDurationSeconds: lease.Spec.LeaseDurationSeconds,
		},
	}, nil
}

// maxAddressText is longer than the text of any address, zone included.
const maxAddressText = 64

// cutText returns the first bytes of a text, without keeping the memory of the rest.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.Clone(s[:most])
}

// firstOf returns the first elements of a list.
func firstOf[T any](list []T, most int) []T { return list[:min(len(list), most)] }
