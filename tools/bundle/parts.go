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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// place is where an object of config/ goes.
type place int

const (
	// unknown objects stop the generator: whoever adds one says what OLM is to do
	// with it.
	unknown place = iota
	// inVersion is what the ClusterServiceVersion says, for OLM to make.
	inVersion
	// asIs is a manifest of the bundle.
	asIs
	// example is an instance of one of our kinds, for users to start from.
	example
	// leftOut is what OLM takes in no form. Users or the manager make it: see
	// docs/operatorhub.md.
	leftOut
)

// uses is what objects are used for by others, which decides where they go.
type uses struct {
	bound  map[string]bool // ClusterRoles that a ClusterRoleBinding is about
	called map[string]bool // Services that the API server calls webhooks by
}

// placeOf says where an object goes.
func (n uses) placeOf(u *unstructured.Unstructured) place {
	switch u.GetKind() {
	case "ClusterServiceVersion", "Deployment", "ServiceAccount", "ClusterRoleBinding", "ValidatingWebhookConfiguration", "Namespace":
		return inVersion
	case "ClusterRole":
		if n.bound[u.GetName()] {
			return inVersion
		}
		return asIs
	case "Service": // OLM makes those of webhooks
		if n.called[u.GetName()] {
			return inVersion
		}
		return asIs
	// Roles are not among the permissions of the ClusterServiceVersion: for an
	// operator that serves all namespaces OLM makes ClusterRoles of those, and an
	// agent could then write the Leases of the whole cluster, and the manager read
	// its Secrets.
	case "CustomResourceDefinition", "Role", "RoleBinding", "PodDisruptionBudget", "PriorityClass", "ConfigMap":
		return asIs
	case "ServiceGroup", "LBNodeAgent", "Announcement", "CommonAnnouncement":
		return example
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "PriorityLevelConfiguration", "DaemonSet":
		return leftOut
	}
	return unknown
}

// parts is the objects of config/, by what becomes of them.
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
	asTheyAre       []*unstructured.Unstructured
}

// sortOut puts each object in its place.
func sortOut(objects []*unstructured.Unstructured) (*parts, error) {
	p := &parts{}
	var errs []error
	add := func(u *unstructured.Unstructured, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err))
		}
	}
	for _, u := range objects {
		add(u, p.note(u))
	}
	used := p.uses()
	for _, u := range objects {
		switch used.placeOf(u) {
		case unknown:
			add(u, errors.New("nobody has said in tools/bundle/parts.go what OLM is to do with this kind"))
		case asIs:
			add(u, p.keep(u))
		case example:
			p.examples = append(p.examples, u)
		}
	}
	return p, errors.Join(errs...)
}

// note reads an object of a kind that the ClusterServiceVersion is made from.
func (p *parts) note(u *unstructured.Unstructured) error {
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

func (p *parts) uses() uses {
	u := uses{bound: map[string]bool{}, called: map[string]bool{}}
	for _, b := range p.clusterBindings {
		u.bound[b.RoleRef.Name] = true
	}
	for _, w := range p.webhooks {
		if w.ClientConfig.Service != nil {
			u.called[w.ClientConfig.Service.Name] = true
		}
	}
	return u
}

// keep notes an object that is a manifest of the bundle. OLM puts it in the
// namespace that PureLB is installed in; a subject of a RoleBinding that names no
// namespace is of the binding's own.
func (p *parts) keep(u *unstructured.Unstructured) error {
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
	p.asTheyAre = append(p.asTheyAre, u)
	return nil
}

func read(u *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true)
}

func readInto[T any](u *unstructured.Unstructured, into *[]T) error {
	var t T
	if err := read(u, &t); err != nil {
		return err
	}
	*into = append(*into, t)
	return nil
}
