package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers"
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
	Namespaces     []metav1.PartialObjectMetadata
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	Deployments    []appsv1.Deployment    // in the manager's namespace
	Pods           []corev1.Pod           // in the manager's namespace
	Leases         []coordinationv1.Lease // in the manager's namespace
	ServiceGroups  []v1.ServiceGroup
	LBNodeAgents   []v1.LBNodeAgent
	Announcements  []v1.Announcement // by which nodes announce addresses
	Askings        []v1.Announcement // by which nodes ask for addresses of others
	Standbys       []v1.Announcement // by which nodes claim addresses of others that die
	Commons        []v1.CommonAnnouncement
	BGPPeers       []v1.BGPPeer
	NodeRoutings   []v1.NodeRouting
	// Webhooks are all configurations of the cluster, of which some may be PureLB's.
	Webhooks []admissionv1.ValidatingWebhookConfiguration
	// NotRenewing are the nodes whose agents were seen not to renew their Leases.
	NotRenewing map[string]bool
	// Unread are the kinds that could not be listed, each with the reason, in the order
	// in which they were tried.
	Unread []Unread
}

// The kinds that the plugin reads.
const (
	kindServiceGroups  = "ServiceGroups"
	kindLBNodeAgents   = "LBNodeAgents"
	kindAnnouncements  = "Announcements"
	kindCommons        = "CommonAnnouncements"
	kindBGPPeers       = "BGPPeers"
	kindNodeRoutings   = "NodeRoutings"
	kindServices       = "Services"
	kindNodes          = "Nodes"
	kindNamespaces     = "Namespaces"
	kindEndpointSlices = "EndpointSlices"
	kindDeployments    = "Deployments"
	kindPods           = "Pods"
	kindLeases         = "Leases"
	kindWebhooks       = "ValidatingWebhookConfigurations"
)

// purelbKinds are PureLB's own that each release has, and newKinds those that an older release does not have.
var (
	purelbKinds = []string{kindServiceGroups, kindLBNodeAgents, kindAnnouncements, kindCommons}
	newKinds    = []string{kindBGPPeers, kindNodeRoutings}
)

// What answers are made from: those about pools and addresses in use, and those about the nodes that
// have or would get them. The manager's Deployment says which Services are PureLB's.
var (
	allocationKinds = []string{
		kindServiceGroups, kindServices, kindNodes, kindNamespaces, kindAnnouncements, kindDeployments,
	}
	placementKinds = append([]string{kindLBNodeAgents, kindCommons, kindEndpointSlices, kindLeases}, allocationKinds...)
)

// Unread is a kind that could not be listed.
type Unread struct {
	Kind string `json:"kind"`
	// Reason as the API server says it.
	Reason string `json:"reason"`
}

// unreadOf returns which of the kinds could not be read.
func (o *Objects) unreadOf(kinds ...string) []Unread {
	return slices.DeleteFunc(slices.Clone(o.Unread), func(u Unread) bool { return !slices.Contains(kinds, u.Kind) })
}

func (o *Objects) isUnread(kind string) bool { return len(o.unreadOf(kind)) > 0 }

// kindReader reads the objects of a kind into a list, and takes them from it.
type kindReader struct {
	kind    string
	list    client.ObjectList
	take    func()
	options []client.ListOption
}

// readerOf returns what reads the objects of a kind into a new list, of which take gets them.
func readerOf[L any, P interface {
	*L
	client.ObjectList
}](kind string, take func(P), options ...client.ListOption) kindReader {
	list := P(new(L))
	return kindReader{kind: kind, list: list, take: func() { take(list) }, options: options}
}

// ErrNotInstalled is that the API server knows none of PureLB's kinds.
var ErrNotInstalled = fmt.Errorf("PureLB is not installed in this cluster: its API server does not know the kinds "+
	"of %s; is it the right one? (--context)", v1.GroupVersion)

// ReadObjects lists the objects of a cluster. namespace is the manager's, and own the one of which the user
// may be able to list the Services, who may not list all. A kind that the user may not list, or that the API
// server does not know, is in Unread; any other error ends the reading, as does that it knows none of PureLB's
// kinds. A release of PureLB that has no BGP yet has no objects of it: these kinds may be unknown.
func ReadObjects(ctx context.Context, c client.Reader, namespace, own string) (*Objects, error) {
	o, namespaces, knowsPureLB := &Objects{}, controllers.NamespaceMetadataList(), false
	in := client.InNamespace(namespace)
	for _, read := range []kindReader{
		readerOf(kindServiceGroups, func(l *v1.ServiceGroupList) { o.ServiceGroups = l.Items }),
		readerOf(kindLBNodeAgents, func(l *v1.LBNodeAgentList) { o.LBNodeAgents = l.Items }),
		readerOf(kindAnnouncements, func(l *v1.AnnouncementList) {
			for _, a := range l.Items {
				switch {
				case a.IsForAnnouncing():
					o.Announcements = append(o.Announcements, a)
				case a.Spec.Asking != nil:
					o.Askings = append(o.Askings, a)
				default:
					o.Standbys = append(o.Standbys, a)
				}
			}
		}, in),
		readerOf(kindCommons, func(l *v1.CommonAnnouncementList) { o.Commons = l.Items }, in),
		readerOf(kindBGPPeers, func(l *v1.BGPPeerList) { o.BGPPeers = l.Items }, in),
		readerOf(kindNodeRoutings, func(l *v1.NodeRoutingList) { o.NodeRoutings = l.Items }, in),
		readerOf(kindServices, func(l *corev1.ServiceList) { o.Services = l.Items }),
		readerOf(kindNodes, func(l *corev1.NodeList) { o.Nodes = l.Items }),
		{kind: kindNamespaces, list: namespaces, take: func() { o.Namespaces = namespaces.Items }},
		readerOf(kindEndpointSlices, func(l *discoveryv1.EndpointSliceList) { o.EndpointSlices = l.Items }),
		readerOf(kindDeployments, func(l *appsv1.DeploymentList) { o.Deployments = l.Items }, in),
		readerOf(kindPods, func(l *corev1.PodList) { o.Pods = l.Items }, in),
		readerOf(kindLeases, func(l *coordinationv1.LeaseList) { o.Leases = l.Items }, in),
		readerOf(kindWebhooks, func(l *admissionv1.ValidatingWebhookConfigurationList) { o.Webhooks = l.Items }),
	} {
		err := c.List(ctx, read.list, read.options...)
		knowsPureLB = knowsPureLB || slices.Contains(purelbKinds, read.kind) && !isUnknownKind(err)
		switch {
		case err == nil:
			read.take()
		case slices.Contains(newKinds, read.kind) && isUnknownKind(err):
		case isUnknownKind(err):
			o.Unread = append(o.Unread, Unread{read.kind, "the API server does not know this kind"})
		case apierrors.IsForbidden(err):
			o.Unread = append(o.Unread, Unread{read.kind, err.Error()})
			if read.kind == kindServices && own != "" && c.List(ctx, read.list, client.InNamespace(own)) == nil {
				read.take()
			}
		default:
			return nil, fmt.Errorf("list %s: %w", read.kind, err)
		}
	}
	if !knowsPureLB {
		return nil, ErrNotInstalled
	}
	return o, nil
}

// managerDeployment returns the manager's Deployment, or nil.
func (o *Objects) managerDeployment() *appsv1.Deployment {
	i := slices.IndexFunc(o.Deployments, func(d appsv1.Deployment) bool { return d.Name == managerName })
	if i < 0 {
		return nil
	}
	return &o.Deployments[i]
}

// put adds an object, or replaces the one of its kind and name; if that is one of the kinds that can
// be in files besides Services.
func (o *Objects) put(object client.Object) {
	switch x := object.(type) {
	case *v1.ServiceGroup:
		o.ServiceGroups = with(o.ServiceGroups, *x)
	case *v1.LBNodeAgent:
		o.LBNodeAgents = with(o.LBNodeAgents, *x)
	case *v1.BGPPeer:
		o.BGPPeers = with(o.BGPPeers, *x)
	}
}

// storedNamesake returns the object that has the kind and name of another one, or nil.
func (o *Objects) storedNamesake(object client.Object) client.Object {
	switch object.(type) {
	case *v1.ServiceGroup:
		return find(o.ServiceGroups, object)
	case *v1.LBNodeAgent:
		return find(o.LBNodeAgents, object)
	case *v1.BGPPeer:
		return find(o.BGPPeers, object)
	}
	return nil
}

// with returns a copy of all with one more object, or with that in the place of its namesake.
func with[T any, P interface {
	*T
	client.Object
}](all []T, object T) []T {
	all = slices.Clone(all)
	if i := indexOf[T, P](all, P(&object)); i >= 0 {
		all[i] = object
		return all
	}
	return append(all, object)
}

func find[T any, P interface {
	*T
	client.Object
}](all []T, object client.Object) client.Object {
	if i := indexOf[T, P](all, object); i >= 0 {
		return P(&all[i])
	}
	return nil
}

func indexOf[T any, P interface {
	*T
	client.Object
}](all []T, object client.Object) int {
	return slices.IndexFunc(all, func(o T) bool {
		return P(&o).GetName() == object.GetName() && P(&o).GetNamespace() == object.GetNamespace()
	})
}

// isUnknownKind reports whether a list failed because the API server does not have the kind.
func isUnknownKind(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

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
	case *metav1.PartialObjectMetadataList: // of Namespaces, as of no other kind
		l.Items = o.Namespaces
	case *corev1.ServiceList:
		l.Items = inNamespace(o.Services, wanted.Namespace)
	case *discoveryv1.EndpointSliceList:
		l.Items = byServiceField(inNamespace(o.EndpointSlices, wanted.Namespace), wanted)
	case *v1.ServiceGroupList:
		l.Items = inNamespace(o.ServiceGroups, wanted.Namespace)
	case *v1.LBNodeAgentList:
		l.Items = inNamespace(o.LBNodeAgents, wanted.Namespace)
	case *v1.AnnouncementList:
		l.Items = inNamespace(slices.Concat(o.Announcements, o.Askings, o.Standbys), wanted.Namespace)
	case *v1.CommonAnnouncementList:
		l.Items = inNamespace(o.Commons, wanted.Namespace)
	case *v1.BGPPeerList:
		l.Items = inNamespace(o.BGPPeers, wanted.Namespace)
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

// byServiceField returns the EndpointSlices of the Service that a field selector names, or all.
func byServiceField(all []discoveryv1.EndpointSlice, wanted client.ListOptions) []discoveryv1.EndpointSlice {
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
