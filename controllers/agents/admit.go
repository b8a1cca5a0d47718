package agents

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/internal/textlimit"
)

// OutOfScopeError is the error of an LBNodeAgent in another namespace than the manager's, or
// nil.
func OutOfScopeError(a *v1.LBNodeAgent, namespace string) *field.Error {
	if a.Namespace == namespace {
		return nil
	}
	return field.Invalid(field.NewPath("metadata", "namespace"), a.Namespace,
		fmt.Sprintf("only LBNodeAgents in namespace %s count: move it there", namespace))
}

// Validate finds settings by which no agent could work. Bounds of numbers and durations are
// left to the CRD.
func Validate(a *v1.LBNodeAgent) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateSelector(a.Spec.NodeSelector, spec.Child("nodeSelector"))
	local := a.Spec.Local
	if local == nil {
		return errs
	}
	path := spec.Child("local")
	if err := checkLocalInterface(local.LocalInterface); err != nil {
		errs = append(errs, field.Invalid(path.Child("localInterface"), local.LocalInterface, err.Error()))
	}
	for i, name := range local.Interfaces {
		errs = append(errs, validateInterface(name, path.Child("interfaces").Index(i))...)
	}
	if local.DummyInterface != "" {
		errs = append(errs, validateInterface(local.DummyInterface, path.Child("dummyInterface"))...)
		if strings.Contains(string(local.DummyInterface), "%") {
			errs = append(errs, field.Invalid(path.Child("dummyInterface"), string(local.DummyInterface),
				"must not have a %: Linux makes an interface of another name from it"))
		}
	}
	if c := local.AddressConfig; c != nil {
		path := path.Child("addressConfig")
		errs = append(errs, validateLifetimes(c.LocalInterface, 300, path.Child("localInterface"))...)
		errs = append(errs, validateLifetimes(c.DummyInterface, 0, path.Child("dummyInterface"))...)
	}
	return errs
}

func validateSelector(selector map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if key == v1.LabelAgent {
			errs = append(errs, field.Invalid(path, key,
				"the manager gives nodes this label, by the nodeSelectors of LBNodeAgents: select other labels"))
		}
		for _, reason := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(path, key, "no node can have this label: "+reason))
		}
		for _, reason := range validation.IsValidLabelValue(selector[key]) {
			errs = append(errs, field.Invalid(path.Key(key), selector[key], "no node can have this value: "+reason))
		}
	}
	return errs
}

// checkLocalInterface reports why a localInterface cannot select interfaces.
func checkLocalInterface(localInterface string) error {
	if localInterface == v1.InterfaceDefault || localInterface == "" {
		return nil
	}
	if _, err := regexp.Compile(localInterface); err != nil {
		return fmt.Errorf("must be \"default\" or a regular expression (RE2) for the whole name, such as en.*|eth0: %s",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return nil
}

// validateInterface checks what the CRD's pattern cannot: the kernel counts
// bytes, not letters, and has two names that it never gives (dev_valid_name).
func validateInterface(name v1.InterfaceName, path *field.Path) field.ErrorList {
	if len(name) > 15 || name == "." || name == ".." {
		return field.ErrorList{
			field.Invalid(path, string(name), "cannot be the name of a network interface: at most 15 bytes, not . or .."),
		}
	}
	return nil
}

// validateLifetimes compares with the valid lifetime that holds where none is
// given, which the CRD cannot: the API server fills in only the whole of c.
func validateLifetimes(c *v1.InterfaceAddressConfig, valid int32, path *field.Path) field.ErrorList {
	if c == nil || c.PreferredLifetime == nil {
		return nil
	}
	if c.ValidLifetime != nil {
		valid = *c.ValidLifetime
	}
	if valid != 0 && *c.PreferredLifetime > valid {
		return field.ErrorList{field.Invalid(path.Child("preferredLifetime"), *c.PreferredLifetime,
			fmt.Sprintf("must not be longer than validLifetime, which is %d", valid))}
	}
	return nil
}

// VirtualInterface returns the interface on which the agents of an LBNodeAgent put Virtual addresses.
func VirtualInterface(a *v1.LBNodeAgent) string {
	if a.Spec.Local == nil {
		return v1.DefaultDummyInterface
	}
	return cmp.Or(string(a.Spec.Local.DummyInterface), v1.DefaultDummyInterface)
}

// CheckVirtualInterface finds out that the virtual interface of LBNodeAgent after, which replaces before or is new, is
// one that holds Local addresses: the agents would take them off it. What nodes report of their interfaces
// only counts where the LBNodeAgent names another virtual interface than before, and never for the default
// name: so no node can refuse other changes.
func CheckVirtualInterface(
	before, after *v1.LBNodeAgent, nodes []corev1.Node, announcements []v1.Announcement,
) field.ErrorList {
	path, name := field.NewPath("spec", "local", "dummyInterface"), VirtualInterface(after)
	if after.Spec.Local != nil && slices.Contains(after.Spec.Local.Interfaces, v1.InterfaceName(name)) {
		return field.ErrorList{field.Invalid(path, name,
			"is one of spec.local.interfaces: an interface is for Local addresses or for Virtual ones")}
	}
	if name == v1.DefaultDummyInterface || before != nil && VirtualInterface(before) == name {
		return nil
	}
	having := map[string]bool{}
	for i := range announcements {
		a := &announcements[i]
		having[a.Spec.NodeName] = having[a.Spec.NodeName] || slices.ContainsFunc(
			a.Status.Interfaces, func(nic v1.NodeInterface) bool { return string(nic.Name) == name },
		)
	}
	var names []string
	for i := range nodes {
		if n := &nodes[i]; having[n.Name] && selects(after, n.Labels) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, fmt.Sprintf(
		"is for Local addresses on %s: name an interface that the agents make, such as %s",
		listNodes(names), v1.DefaultDummyInterface))}
}

// StrandingField returns the field by which a change of an LBNodeAgent may leave addresses
// without a node that could announce them, or nil if the change cannot. It is the whole spec if
// both fields change that decide about that. A new LBNodeAgent, without before, can only take
// nodes from another one that names other subnets.
func StrandingField(before, after *v1.LBNodeAgent) *field.Path {
	spec := field.NewPath("spec")
	selector, subnets := spec.Child("nodeSelector"), spec.Child("local", "subnets")
	if before == nil {
		return subnets
	}
	isSameSelector := maps.Equal(before.Spec.NodeSelector, after.Spec.NodeSelector)
	areSameSubnets := slices.Equal(subnetsOf(before), subnetsOf(after))
	switch {
	case isSameSelector && areSameSubnets:
		return nil
	case isSameSelector:
		return subnets
	case areSameSubnets:
		return selector
	}
	return spec
}

func subnetsOf(a *v1.LBNodeAgent) []string {
	if a.Spec.Local == nil {
		return nil
	}
	return a.Spec.Local.Subnets
}

// AdmitWithdrawal is the answer to a change of LBNodeAgent a, or to its deletion, that
// leaves addresses without a node that could announce them; stranded says which. It is a
// refusal, unless the LBNodeAgent has the annotation by which its author means it.
func AdmitWithdrawal(a *v1.LBNodeAgent, stranded string) (warning, refusal string) {
	leaves := fmt.Sprintf("leaves %s without a node to announce them: ", stranded)
	if a.Annotations[v1.AnnotationAllowWithdrawal] == "true" {
		return leaves + "their agents withdraw them", ""
	}
	return "", leaves + fmt.Sprintf(
		"let another LBNodeAgent select nodes that can, or annotate the LBNodeAgent with %s=true, and their agents "+
			"withdraw them",
		v1.AnnotationAllowWithdrawal,
	)
}

// SelectionWarnings says on which nodes LBNodeAgent a, about to be written beside all
// others, takes nodes from another, or loses them to another, or that it selects none.
func SelectionWarnings(a *v1.LBNodeAgent, all []v1.LBNodeAgent, nodes []corev1.Node) []string {
	others := slices.DeleteFunc(slices.Clone(all), func(o v1.LBNodeAgent) bool { return o.Name == a.Name })
	withIt := append(slices.Clone(others), *a)
	taken, lost := map[string][]string{}, map[string][]string{} // nodes by the other's name
	selectsAny := false
	for i := range nodes {
		n := &nodes[i]
		if !selects(a, n.Labels) {
			continue
		}
		selectsAny = true
		other := LBNodeAgentFor(others, n.Labels)
		if other == "" {
			continue
		}
		byOther := lost
		if LBNodeAgentFor(withIt, n.Labels) == a.Name {
			byOther = taken
		}
		byOther[other] = append(byOther[other], n.Name)
	}
	var warnings []string
	if !selectsAny {
		warnings = append(warnings, "spec.nodeSelector: selects none of the cluster's nodes, now")
	}
	const rule = "(a selector comes before none, then the first by name)"
	for _, other := range slices.Sorted(maps.Keys(taken)) {
		warnings = append(
			warnings,
			fmt.Sprintf("spec.nodeSelector: this LBNodeAgent comes before %s on %s %s", other, listNodes(taken[other]), rule),
		)
	}
	for _, other := range slices.Sorted(maps.Keys(lost)) {
		warnings = append(
			warnings,
			fmt.Sprintf("spec.nodeSelector: LBNodeAgent %s comes before this one on %s %s", other, listNodes(lost[other]), rule),
		)
	}
	return warnings
}

func listNodes(names []string) string {
	if len(names) == 1 {
		return "node " + names[0]
	}
	slices.Sort(names)
	return "nodes " + textlimit.List(names, 5, ", ")
}
