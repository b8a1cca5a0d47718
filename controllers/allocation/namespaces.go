package allocation

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// parseAllowedNamespaces returns what selects the namespaces whose Services may use a
// group, or nil for all namespaces.
func parseAllowedNamespaces(spec *v1.AllowedNamespaces, path *field.Path) (labels.Selector, field.ErrorList) {
	switch {
	case spec == nil:
		return nil, nil
	case spec.From != v1.NamespacesFromSelector && spec.Selector != nil:
		err := field.Invalid(path.Child("from"), string(spec.From), "selector counts only with from: Selector")
		return nil, field.ErrorList{err}
	case spec.From != v1.NamespacesFromSelector:
		return nil, nil
	case spec.Selector == nil:
		err := field.Required(path.Child("selector"), "from: Selector needs a selector; {} selects all namespaces")
		return nil, field.ErrorList{err}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path.Child("selector"), field.OmitValueType{}, err.Error())}
	}
	return selector, nil
}

// SelectsNamespaces reports whether a group is not for all namespaces, so that allocations
// depend on Inputs.NamespaceLabels.
func (c Catalog) SelectsNamespaces() bool {
	for _, v := range c {
		if v.Group.NamespaceSelector != nil {
			return true
		}
	}
	return false
}

// mayUse reports whether the Services of a namespace may use a group. Those of a namespace
// that is not known may not.
func (in *Inputs) mayUse(group *Group, namespace string) bool {
	if group.NamespaceSelector == nil {
		return true
	}
	set, isKnown := in.NamespaceLabels[namespace]
	return isKnown && group.NamespaceSelector.Matches(labels.Set(set))
}

// namespaceRefusal says that the Service's namespace may not use a group.
func (d *decision) namespaceRefusal(group string) *refusal {
	return refuse(v1.ReasonNotAllowed, "ServiceGroup %s is not for namespace %s: ask for another one, "+
		"or have its administrator select the namespace in spec.allowedNamespaces", group, d.Namespace)
}

// hasAddressesOf reports whether the Service keeps addresses that it was allocated from a
// group.
func (d *decision) hasAddressesOf(group string) bool {
	return d.Allocated.Group == group && slices.ContainsFunc(d.ownAddresses, d.hasAllocated)
}

// namespaceWarnings names the Services that have addresses of a group that their namespaces
// may not use any more.
func (in *Inputs) namespaceWarnings(group *Group) []string {
	if group.NamespaceSelector == nil {
		return nil
	}
	held := in.InUse.countAllocatedWhere(func(s *Service, _ netip.Addr) bool {
		return s.Allocated.Group == group.Name && !in.mayUse(group, s.Namespace)
	})
	if held.addressCount == 0 {
		return nil
	}
	return []string{fmt.Sprintf("spec.allowedNamespaces: leaves out namespaces with %s: "+
		"they stay until their Services go or ask for another group", held)}
}
