package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// NewScheme returns the kinds that the plugin reads.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds: %w", err)
	}
	return scheme, nil
}

// Objects are the objects of a cluster as they were read. They are a client.Reader, so that the
// manager's own code can decide from them.
type Objects struct {
	Nodes          []corev1.Node
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	Deployments    []appsv1.Deployment    // in the manager's namespace
	Pods           []corev1.Pod           // in the manager's namespace
	Leases         []coordinationv1.Lease // in the manager's namespace
	ServiceGroups  []v1.ServiceGroup
	LBNodeAgents   []v1.LBNodeAgent
	Announcements  []v1.Announcement
	Commons        []v1.CommonAnnouncement
	BGPPeers       []v1.BGPPeer
	NodeRoutings   []v1.NodeRouting
	// Unread are the kinds that could not be listed, each with the reason, in the order
	// in which they were tried.
	Unread []Unread
}

// Unread is a kind that could not be listed.
type Unread struct {
	Kind string `json:"kind"`
	// Reason as the API server says it.
	Reason string `json:"reason"`
}

// ReadObjects lists the objects of a cluster. namespace is the manager's. A kind that the user may
// not list, or that the API server does not know, is in Unread; any other error ends the reading.
func ReadObjects(ctx context.Context, c client.Reader, namespace string) (*Objects, error) {
	o := &Objects{}
	in := client.InNamespace(namespace)
	for _, read := range []struct {
		kind    string
		list    client.ObjectList
		take    func(client.ObjectList)
		options []client.ListOption
	}{
		{"ServiceGroups", &v1.ServiceGroupList{}, func(l client.ObjectList) { o.ServiceGroups = l.(*v1.ServiceGroupList).Items }, nil},
		{"LBNodeAgents", &v1.LBNodeAgentList{}, func(l client.ObjectList) { o.LBNodeAgents = l.(*v1.LBNodeAgentList).Items }, nil},
		{"Announcements", &v1.AnnouncementList{}, func(l client.ObjectList) {
			o.Announcements = slices.DeleteFunc(l.(*v1.AnnouncementList).Items, func(a v1.Announcement) bool { return a.Spec.Standby != nil })
		}, []client.ListOption{in}},
		{"CommonAnnouncements", &v1.CommonAnnouncementList{}, func(l client.ObjectList) { o.Commons = l.(*v1.CommonAnnouncementList).Items }, []client.ListOption{in}},
		{"BGPPeers", &v1.BGPPeerList{}, func(l client.ObjectList) { o.BGPPeers = l.(*v1.BGPPeerList).Items }, []client.ListOption{in}},
		{"NodeRoutings", &v1.NodeRoutingList{}, func(l client.ObjectList) { o.NodeRoutings = l.(*v1.NodeRoutingList).Items }, []client.ListOption{in}},
		{"Services", &corev1.ServiceList{}, func(l client.ObjectList) { o.Services = l.(*corev1.ServiceList).Items }, nil},
		{"Nodes", &corev1.NodeList{}, func(l client.ObjectList) { o.Nodes = l.(*corev1.NodeList).Items }, nil},
		{"EndpointSlices", &discoveryv1.EndpointSliceList{}, func(l client.ObjectList) { o.EndpointSlices = l.(*discoveryv1.EndpointSliceList).Items }, nil},
		{"Deployments", &appsv1.DeploymentList{}, func(l client.ObjectList) { o.Deployments = l.(*appsv1.DeploymentList).Items }, []client.ListOption{in}},
		{"Pods", &corev1.PodList{}, func(l client.ObjectList) { o.Pods = l.(*corev1.PodList).Items }, []client.ListOption{in}},
		{"Leases", &coordinationv1.LeaseList{}, func(l client.ObjectList) { o.Leases = l.(*coordinationv1.LeaseList).Items }, []client.ListOption{in}},
	} {
		err := c.List(ctx, read.list, read.options...)
		switch {
		case err == nil:
			read.take(read.list)
		case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
			o.Unread = append(o.Unread, Unread{read.kind, err.Error()})
		default:
			return nil, fmt.Errorf("list %s: %w", read.kind, err)
		}
	}
	return o, nil
}

var errNotHere = errors.New("the plugin does not read this")

// Get is not needed by what decides from lists.
func (o *Objects) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	return fmt.Errorf("get %T: %w", obj, errNotHere)
}

// List lists objects, of one namespace or of one field: EndpointSlices have that of their
// Service, as namespace/name.
func (o *Objects) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var wanted client.ListOptions
	wanted.ApplyOptions(options)
	switch l := list.(type) {
	case *corev1.NodeList:
		l.Items = o.Nodes
	case *corev1.ServiceList:
		l.Items = inNamespace(o.Services, wanted.Namespace)
	case *discoveryv1.EndpointSliceList:
		l.Items = ofService(inNamespace(o.EndpointSlices, wanted.Namespace), wanted)
	case *v1.ServiceGroupList:
		l.Items = inNamespace(o.ServiceGroups, wanted.Namespace)
	case *v1.LBNodeAgentList:
		l.Items = inNamespace(o.LBNodeAgents, wanted.Namespace)
	case *v1.AnnouncementList:
		l.Items = inNamespace(o.Announcements, wanted.Namespace)
	case *v1.CommonAnnouncementList:
		l.Items = inNamespace(o.Commons, wanted.Namespace)
	case *v1.NodeRoutingList:
		l.Items = inNamespace(o.NodeRoutings, wanted.Namespace)
	default:
		return fmt.Errorf("list %T: %w", list, errNotHere)
	}
	return nil
}

// inNamespace returns the objects of a namespace, or all if it is empty.
func inNamespace[T any, P interface {
	*T
	client.Object
}](all []T, namespace string) []T {
	if namespace == "" {
		return all
	}
	var found []T
	for i := range all {
		if P(&all[i]).GetNamespace() == namespace {
			found = append(found, all[i])
		}
	}
	return found
}

// ofService returns the EndpointSlices of the Service that a field selector names, or all.
func ofService(all []discoveryv1.EndpointSlice, wanted client.ListOptions) []discoveryv1.EndpointSlice {
	if wanted.FieldSelector == nil {
		return all
	}
	var found []discoveryv1.EndpointSlice
	for _, requirement := range wanted.FieldSelector.Requirements() {
		for i := range all {
			if s := &all[i]; s.Namespace+"/"+s.Labels[discoveryv1.LabelServiceName] == requirement.Value {
				found = append(found, *s)
			}
		}
	}
	return found
}
