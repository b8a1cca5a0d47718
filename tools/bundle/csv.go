package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/api/pkg/lib/version"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// csvFile is the name of the ClusterServiceVersion's file.
const csvFile = packageName + ".clusterserviceversion.yaml"

// csvName returns the name of the ClusterServiceVersion of a version.
func csvName(version string) string { return packageName + ".v" + version }

// buildServiceVersion builds the ClusterServiceVersion from the base in config/manifests and
// from the other parts.
func (p *parts) buildServiceVersion(o options, icon []byte) ([]byte, error) {
	v, err := semver.Parse(o.version)
	if err != nil {
		return nil, fmt.Errorf("version %q: %w", o.version, err)
	}
	csv := p.base.DeepCopy()
	if csv.Name != packageName || p.namespace.Name == "" {
		return nil, errors.New(
			"there must be a ClusterServiceVersion to start from, named " + packageName + ", and a Namespace",
		)
	}
	csv.Name = csvName(o.version)
	csv.Spec.Version = version.OperatorVersion{Version: v}
	csv.Spec.Icon = []v1alpha1.Icon{{Data: base64.StdEncoding.EncodeToString(icon), MediaType: "image/svg+xml"}}
	csv.Spec.InstallStrategy, err = p.installation(o.image)
	if err != nil {
		return nil, err
	}
	csv.Spec.RelatedImages = relatedImages(csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs)
	csv.Spec.CustomResourceDefinitions.Owned, err = p.ownedKinds()
	if err != nil {
		return nil, err
	}
	csv.Spec.WebhookDefinitions, err = p.webhookDefinitions()
	if err != nil {
		return nil, err
	}
	texts, err := p.annotations(csv)
	if err != nil {
		return nil, err
	}
	for name, value := range texts {
		csv.Annotations[name] = value
	}
	return marshal(csv)
}

// marshal writes the ClusterServiceVersion without its status, which OLM writes.
func marshal(csv *v1alpha1.ClusterServiceVersion) ([]byte, error) {
	data, err := json.Marshal(csv)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		return nil, err
	}
	delete(u.Object, "status")
	return yaml.Marshal(u.Object)
}

// annotations returns the annotations that catalogues and consoles show.
func (p *parts) annotations(csv *v1alpha1.ClusterServiceVersion) (map[string]string, error) {
	namespace := map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": p.namespace.Name, "labels": p.namespace.Labels},
	}
	examples, err := p.examplesFor(csv.Spec.CustomResourceDefinitions.Owned)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{
		"operatorframework.io/suggested-namespace": p.namespace.Name,
	}
	if images := csv.Spec.RelatedImages; len(images) > 0 {
		texts["containerImage"] = images[0].Image
	}
	for name, value := range map[string]any{
		"alm-examples": examples,
		"operatorframework.io/suggested-namespace-template": namespace,
		"operatorframework.io/initialization-resource":      firstOfKind(examples, "LBNodeAgent"),
	} {
		data, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", name, err)
		}
		texts[name] = string(data)
	}
	return texts, nil
}

// examplesFor returns the examples of the kinds, in the kinds' order. It fails if a kind has
// none.
func (p *parts) examplesFor(kinds []v1alpha1.CRDDescription) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, k := range kinds {
		if firstOfKind(p.examples, k.Kind) == nil {
			return nil, fmt.Errorf("there is no example of a %s in config/samples or config/manifests/examples", k.Kind)
		}
		for _, e := range p.examples {
			same := func(f *unstructured.Unstructured) bool {
				return f.GetKind() == e.GetKind() && f.GetName() == e.GetName()
			}
			if e.GetKind() == k.Kind && !slices.ContainsFunc(found, same) {
				found = append(found, e)
			}
		}
	}
	return found, nil
}

// firstOfKind returns the first object of a kind, or nil.
func firstOfKind(objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	for _, u := range objects {
		if u.GetKind() == kind {
			return u
		}
	}
	return nil
}

// installation returns the Deployments, and the rights of service accounts in the whole
// cluster. OLM creates the service accounts that are named there.
func (p *parts) installation(image string) (v1alpha1.NamedInstallStrategy, error) {
	strategy := v1alpha1.NamedInstallStrategy{StrategyName: v1alpha1.InstallStrategyNameDeployment}
	for _, d := range p.deployments {
		d = *d.DeepCopy()
		if image != "" {
			for i := range d.Spec.Template.Spec.Containers {
				d.Spec.Template.Spec.Containers[i].Image = image
			}
		}
		strategy.StrategySpec.DeploymentSpecs = append(strategy.StrategySpec.DeploymentSpecs,
			v1alpha1.StrategyDeploymentSpec{Name: d.Name, Label: d.Labels, Spec: d.Spec})
	}
	if err := p.checkBindings(); err != nil {
		return strategy, err
	}
	for _, account := range p.accounts {
		rules, err := p.clusterRules(account)
		if err != nil {
			return strategy, err
		}
		strategy.StrategySpec.ClusterPermissions = append(strategy.StrategySpec.ClusterPermissions,
			v1alpha1.StrategyDeploymentPermissions{ServiceAccountName: account.Name, Rules: rules})
	}
	return strategy, nil
}

// checkBindings refuses ClusterRoleBindings for subjects other than PureLB's service accounts,
// because a ClusterServiceVersion cannot describe them.
func (p *parts) checkBindings() error {
	for _, b := range p.clusterBindings {
		for _, s := range b.Subjects {
			isSubject := func(a corev1.ServiceAccount) bool { return a.Name == s.Name && a.Namespace == s.Namespace }
			if s.Kind != rbacv1.ServiceAccountKind || !slices.ContainsFunc(p.accounts, isSubject) {
				return fmt.Errorf(
					"ClusterRoleBinding %s is for %s %s, which is not a service account of PureLB", b.Name, s.Kind, s.Name,
				)
			}
		}
	}
	return nil
}

// clusterRules returns the rights that ClusterRoleBindings give a service account. It fails if
// there are none, because OLM would not create the service account then.
func (p *parts) clusterRules(account corev1.ServiceAccount) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for _, b := range p.clusterBindings {
		is := func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Name == account.Name && s.Namespace == account.Namespace
		}
		if !slices.ContainsFunc(b.Subjects, is) {
			continue
		}
		i := slices.IndexFunc(p.clusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == b.RoleRef.Name })
		if i < 0 {
			return nil, fmt.Errorf("ClusterRoleBinding %s: there is no ClusterRole %s", b.Name, b.RoleRef.Name)
		}
		rules = append(rules, p.clusterRoles[i].Rules...)
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("ServiceAccount %s is bound to no ClusterRole: OLM would not create it", account.Name)
	}
	return rules, nil
}

// relatedImages returns all images that a cluster without access to the internet needs. Agents
// run the manager's image.
func relatedImages(deployments []v1alpha1.StrategyDeploymentSpec) []v1alpha1.RelatedImage {
	var images []v1alpha1.RelatedImage
	for _, d := range deployments {
		for _, c := range d.Spec.Template.Spec.Containers {
			images = append(images, v1alpha1.RelatedImage{Name: c.Name, Image: c.Image})
		}
	}
	return images
}

// webhookDefinitions returns the webhooks without their match conditions, which a
// ClusterServiceVersion cannot contain. So the API server calls the handlers for more requests,
// and the handlers allow those that the conditions would have left out.
func (p *parts) webhookDefinitions() ([]v1alpha1.WebhookDescription, error) {
	var all []v1alpha1.WebhookDescription
	for _, w := range p.webhooks {
		if w.NamespaceSelector != nil || w.ClientConfig.Service == nil {
			return nil, fmt.Errorf("webhook %s: a bundle supports no namespace selector, and only webhooks of a Service", w.Name)
		}
		d, port, err := p.webhookServer(*w.ClientConfig.Service)
		if err != nil {
			return nil, fmt.Errorf("webhook %s: %w", w.Name, err)
		}
		all = append(all, v1alpha1.WebhookDescription{
			GenerateName: w.Name, Type: v1alpha1.ValidatingAdmissionWebhook,
			DeploymentName: d, ContainerPort: port.Port, TargetPort: &port.TargetPort,
			Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy, ObjectSelector: w.ObjectSelector,
			SideEffects: w.SideEffects, TimeoutSeconds: w.TimeoutSeconds,
			AdmissionReviewVersions: w.AdmissionReviewVersions, WebhookPath: w.ClientConfig.Service.Path,
		})
	}
	return all, nil
}

// webhookServer returns the Deployment behind a Service, and the port to call.
func (p *parts) webhookServer(called admissionv1.ServiceReference) (string, corev1.ServicePort, error) {
	for _, s := range p.services {
		if s.Name != called.Name {
			continue
		}
		i := slices.IndexFunc(
			s.Spec.Ports, func(port corev1.ServicePort) bool { return port.Port == ptr.Deref(called.Port, 443) },
		)
		if i < 0 {
			return "", corev1.ServicePort{}, fmt.Errorf("the Service %s has no such port", s.Name)
		}
		for _, d := range p.deployments {
			if selects(s.Spec.Selector, d.Spec.Template.Labels) {
				return d.Name, s.Spec.Ports[i], nil
			}
		}
		return "", corev1.ServicePort{}, fmt.Errorf("the Service %s selects no Deployment", s.Name)
	}
	return "", corev1.ServicePort{}, fmt.Errorf("there is no Service %s", called.Name)
}

// selects reports whether a selector that is not empty matches labels.
func selects(selector, labels map[string]string) bool {
	for name, value := range selector {
		if labels[name] != value {
			return false
		}
	}
	return len(selector) > 0
}
