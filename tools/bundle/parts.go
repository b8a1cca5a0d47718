package main

import (
	"errors"
	"fmt"

	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// destination is what becomes of an object of config/.
type destination int

const (
	// undecided makes the generator fail: whoever adds an object of a new kind has to decide
	// what OLM does with it.
	undecided destination = iota
	// inServiceVersion: the ClusterServiceVersion describes the object, and OLM creates it.
	inServiceVersion
	// asManifest: the object is a manifest of the bundle.
	asManifest
	// asExample: the object is an instance of one of PureLB's kinds, for users to start from.
	asExample
	// leftOut: a bundle cannot contain the object. Users or the manager create it: see
	// docs/how-to/olm.md.
	leftOut
)

// references are the names by which objects refer to others. They decide the destination of
// ClusterRoles and Services.
type references struct {
	boundClusterRoles map[string]bool // a ClusterRoleBinding binds them
	webhookServices   map[string]bool // the API server calls webhooks through them
}

// destinationOf returns what becomes of an object.
func (r references) destinationOf(u *unstructured.Unstructured) destination {
	switch u.GetKind() {
	case "ClusterServiceVersion", "Deployment", "ServiceAccount", "ClusterRoleBinding", "ValidatingWebhookConfiguration",
		"Namespace":
		return inServiceVersion
	case "ClusterRole":
		if r.boundClusterRoles[u.GetName()] {
			return inServiceVersion
		}
		return asManifest
	case "Service": // OLM creates the Services of webhooks itself
		if r.webhookServices[u.GetName()] {
			return inServiceVersion
		}
		return asManifest
	// Roles must not be among the permissions of the ClusterServiceVersion: for an operator
	// that serves all namespaces OLM makes ClusterRoles of these permissions. An agent could
	// then write the Leases of the whole cluster, and the manager read all its Secrets.
	case "CustomResourceDefinition", "Role", "RoleBinding", "PodDisruptionBudget", "PriorityClass", "ConfigMap":
		return asManifest
	case "ServiceGroup", "LBNodeAgent", "Announcement", "CommonAnnouncement", "BGPPeer", "NodeRouting":
		return asExample
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "PriorityLevelConfiguration",
		"DaemonSet":
		return leftOut
	}
	return undecided
}

// parts are the objects of config/, by kind, and by what becomes of them.
type parts struct {
	base            v1alpha1.ClusterServiceVersion
	namespace       corev1.Namespace
	deployments     []appsv1.Deployment
	accounts        []corev1.ServiceAccount
	clusterRoles    []rbacv1.ClusterRole
	clusterBindings []rbacv1.ClusterRoleBinding
	webhooks        []admissionv1.ValidatingWebhook
	services        []corev1.Service
	definitions     []apiextensionsv1.CustomResourceDefinition
	examples        []*unstructured.Unstructured
	bundleManifests []*unstructured.Unstructured
}

// sortObjects sorts the objects of config/ into parts.
func sortObjects(objects []*unstructured.Unstructured) (*parts, error) {
	p := &parts{}
	var errs []error
	add := func(u *unstructured.Unstructured, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err))
		}
	}
	for _, u := range objects {
		add(u, p.readSource(u))
	}
	references := p.references()
	for _, u := range objects {
		switch references.destinationOf(u) {
		case undecided:
			add(u, errors.New("tools/bundle/parts.go does not decide what OLM does with this kind"))
		case asManifest:
			add(u, p.addManifest(u))
		case asExample:
			p.examples = append(p.examples, u)
		}
	}
	return p, errors.Join(errs...)
}

// readSource reads an object if the ClusterServiceVersion is built from objects of its kind.
func (p *parts) readSource(u *unstructured.Unstructured) error {
	switch u.GetKind() {
	case "ClusterServiceVersion":
		return read(u, &p.base)
	case "Namespace":
		return read(u, &p.namespace)
	case "Deployment":
		return readInto(u, &p.deployments)
	case "ServiceAccount":
		return readInto(u, &p.accounts)
	case "ClusterRole":
		return readInto(u, &p.clusterRoles)
	case "ClusterRoleBinding":
		return readInto(u, &p.clusterBindings)
	case "Service":
		return readInto(u, &p.services)
	case "CustomResourceDefinition":
		return readInto(u, &p.definitions)
	case "ValidatingWebhookConfiguration":
		var c admissionv1.ValidatingWebhookConfiguration
		err := read(u, &c)
		p.webhooks = append(p.webhooks, c.Webhooks...)
		return err
	}
	return nil
}

// references collects the names by which the objects refer to others.
func (p *parts) references() references {
	r := references{boundClusterRoles: map[string]bool{}, webhookServices: map[string]bool{}}
	for _, b := range p.clusterBindings {
		r.boundClusterRoles[b.RoleRef.Name] = true
	}
	for _, w := range p.webhooks {
		if w.ClientConfig.Service != nil {
			r.webhookServices[w.ClientConfig.Service.Name] = true
		}
	}
	return r
}

// addManifest adds an object to the bundle's manifests, without namespaces: OLM creates the
// object in the namespace in which PureLB is installed, and a subject of a RoleBinding that
// names no namespace belongs to that of the RoleBinding.
func (p *parts) addManifest(u *unstructured.Unstructured) error {
	if in := u.GetNamespace(); in != "" && in != p.namespace.Name {
		return fmt.Errorf("is in namespace %s, and OLM would put it in %s", in, p.namespace.Name)
	}
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "metadata", "namespace")
	if u.GetKind() == "RoleBinding" {
		subjects, _, err := unstructured.NestedSlice(u.Object, "subjects")
		if err != nil {
			return err
		}
		for _, s := range subjects {
			subject, ok := s.(map[string]any)
			if !ok || subject["namespace"] != p.namespace.Name {
				return fmt.Errorf("subject %v is not of namespace %s", s, p.namespace.Name)
			}
			delete(subject, "namespace")
		}
		if err := unstructured.SetNestedSlice(u.Object, subjects, "subjects"); err != nil {
			return err
		}
	}
	p.bundleManifests = append(p.bundleManifests, u)
	return nil
}

// setOwner marks a manifest that gives rights as one of the ClusterServiceVersion, so that the
// rights go when OLM deletes that; otherwise OLM would leave them behind. OLM fills in the UID
// of an owner, and deletes objects of the whole cluster by their labels, which name the
// namespace in which PureLB is to be installed.
func setOwner(u *unstructured.Unstructured, csv, namespace string) {
	switch u.GetKind() {
	case "Role", "RoleBinding":
		u.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: v1alpha1.ClusterServiceVersionAPIVersion, Kind: v1alpha1.ClusterServiceVersionKind, Name: csv,
		}})
	case "ClusterRole":
		labels := u.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels["olm.owner"], labels["olm.owner.namespace"] = csv, namespace
		labels["olm.owner.kind"] = v1alpha1.ClusterServiceVersionKind
		u.SetLabels(labels)
	}
}

// read converts an object to a typed one, and refuses unknown fields.
func read(u *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true)
}

// readInto converts an object and appends it to a list.
func readInto[T any](u *unstructured.Unstructured, into *[]T) error {
	var t T
	if err := read(u, &t); err != nil {
		return err
	}
	*into = append(*into, t)
	return nil
}
