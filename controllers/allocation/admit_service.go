package allocation

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Annotations of Services: those that users write, and those that the manager writes. The
// manager reads no others.
var (
	UserAnnotations = []string{
		v1.AnnotationServiceGroup, v1.AnnotationAddresses, v1.AnnotationAllowSharedIP, v1.AnnotationMultiPool,
		v1.AnnotationAllowLocal, v1.AnnotationBGPCommunities,
	}
	ManagerAnnotations = []string{
		v1.AnnotationAllocatedBy, v1.AnnotationAllocatedFrom, v1.AnnotationAllocatedKey, v1.AnnotationPoolType,
		v1.AnnotationAnnouncingIPv4, v1.AnnotationAnnouncingIPv6, v1.AnnotationAddedTo, v1.AnnotationLocalOverride,
	}
)

// annotationPrefix begins the names of all annotations of PureLB.
const annotationPrefix = "purelb.io/"

// maxUnknownAnnotations is how many unknown annotations of one Service get a warning each. The
// others are counted.
const maxUnknownAnnotations = 10

// RequestsAlike reports whether two versions of a Service ask PureLB for the same.
func RequestsAlike(before, after *corev1.Service) bool {
	return equality.Semantic.DeepEqual(before.Spec, after.Spec) &&
		equality.Semantic.DeepEqual(annotationsOfUser(before), annotationsOfUser(after))
}

// annotationsOfUser returns the annotations of a Service that have PureLB's prefix and
// that the manager does not write.
func annotationsOfUser(svc *corev1.Service) map[string]string {
	annotations := map[string]string{}
	for name, value := range svc.Annotations {
		if strings.HasPrefix(name, annotationPrefix) && !slices.Contains(ManagerAnnotations, name) {
			annotations[name] = value
		}
	}
	return annotations
}

// DependsOnOtherServices reports whether Advise needs InUse for a Service: the Service
// asks for particular addresses, or to share.
func DependsOnOtherServices(svc *corev1.Service) bool {
	return svc.Annotations[v1.AnnotationAddresses] != "" || svc.Annotations[v1.AnnotationAllowSharedIP] != "" ||
		svc.Spec.LoadBalancerIP != ""
}

// Advise returns warnings for the author of a Service that PureLB serves. A Service is
// never refused: it waits, and its condition says why.
//
// Advise makes the decision that the allocator would make now, and returns why the
// Service would have to wait. That all addresses are in use is no warning, because
// that may change before the allocator decides: the condition says so. Advise adds
// what is no matter of allocation: unknown annotations, a deprecated field, and a traffic
// policy that is going to be changed. The API server has set spec.ipFamilies before it
// asks.
func (a *Admission) Advise(svc *corev1.Service) []string {
	req := RequestOf(svc)
	if req.TooLongMessage != "" {
		return []string{req.TooLongMessage}
	}
	warnings := append(adviseOnRequestFields(svc), a.adviseOnExternalIPs(svc)...)
	inputs := a.Inputs
	if inputs.InUse == nil {
		inputs.InUse = NewInUse()
	}
	d := newDecision(req, &inputs)
	switch result := d.allocate(); {
	case result.IsAwaitingIPAM: // an external system is asked later
		warnings = append(warnings, d.adviseOnKeyInOtherNamespaces()...)
	case result.Reason == v1.ReasonNoSuchGroup:
		warnings = append(warnings, result.Message+a.groupSuggestionText(d.groupName))
	case result.Reason == v1.ReasonAllocated, result.Reason == v1.ReasonExhausted:
		warnings = append(warnings, d.adviseOnKeyInOtherNamespaces()...)
	default:
		warnings = append(warnings, result.Message)
	}
	if d.warning != "" {
		warnings = append(warnings, d.warning)
	}
	return append(warnings, d.adviseOnTrafficPolicy(svc)...)
}

// AdviseWithoutGroups returns the warnings of Advise that hold whatever ServiceGroups there are.
func AdviseWithoutGroups(svc *corev1.Service) []string {
	req := RequestOf(svc)
	if req.TooLongMessage != "" {
		return []string{req.TooLongMessage}
	}
	warnings := adviseOnRequestFields(svc)
	if _, why := req.AddressesByFamily(); why != "" {
		warnings = append(warnings, why)
	}
	return warnings
}

// adviseOnRequestFields looks at the annotations and fields by which a Service asks for something.
func adviseOnRequestFields(svc *corev1.Service) []string {
	warnings := adviseOnAnnotations(svc)
	if svc.Spec.LoadBalancerIP != "" {
		warnings = append(
			warnings, fmt.Sprintf("spec.loadBalancerIP is deprecated; use annotation %s", v1.AnnotationAddresses),
		)
	}
	return warnings
}

// adviseOnAnnotations looks at the names of annotations, and at values that have to be
// true or false.
func adviseOnAnnotations(svc *corev1.Service) (warnings []string) {
	annotations := annotationsOfUser(svc)
	unknown := slices.DeleteFunc(
		slices.Sorted(maps.Keys(annotations)), func(name string) bool { return slices.Contains(UserAnnotations, name) },
	)
	if len(unknown) > maxUnknownAnnotations {
		warnings = append(
			warnings, fmt.Sprintf("%d more annotations %s… are not known", len(unknown)-maxUnknownAnnotations, annotationPrefix),
		)
		unknown = unknown[:maxUnknownAnnotations]
	}
	known := make([]string, len(UserAnnotations))
	for i, name := range UserAnnotations {
		known[i] = strings.TrimPrefix(name, annotationPrefix)
	}
	for _, name := range unknown {
		if guess, ok := nearestWord(strings.TrimPrefix(name, annotationPrefix), known); ok {
			warnings = append(
				warnings, fmt.Sprintf("annotation %s is not known; did you mean %s%s?", name, annotationPrefix, guess),
			)
		} else {
			warnings = append(
				warnings, fmt.Sprintf("annotation %s is not known; known are %s", name, strings.Join(UserAnnotations, ", ")),
			)
		}
	}
	for _, name := range []string{v1.AnnotationMultiPool, v1.AnnotationAllowLocal} {
		if value, isSet := annotations[name]; isSet && value != "true" && value != "false" {
			warnings = append(
				warnings,
				fmt.Sprintf(`annotation %s is %q: it must be "true" or "false"`, name, value[:min(len(value), maxGroupName)]),
			)
		}
	}
	return warnings
}

// adviseOnExternalIPs warns of the first of a Service's externalIPs that is in a pool and that the
// Service does not ask for. Those who write the field, some implementations of the Gateway API
// among them, may expect to get the address.
func (a *Admission) adviseOnExternalIPs(svc *corev1.Service) []string {
	list, _ := requestedAddresses(svc)
	requested := strings.FieldsFunc(
		emptyIfLonger(list, maxAddressList), func(r rune) bool { return r == ',' || unicode.IsSpace(r) },
	)
	for _, text := range svc.Spec.ExternalIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || slices.Contains(requested, text) {
			continue
		}
		if group, _, found := a.Catalog.GroupContaining(addr); found {
			return []string{fmt.Sprintf("spec.externalIPs: %s is in ServiceGroup %s, which does not give or announce it "+
				"because of this field; "+
				"use annotation %s", text, group.Name, v1.AnnotationAddresses)}
		}
	}
	return nil
}

// groupSuggestionText ends the sentence that there is no ServiceGroup of a name.
func (a *Admission) groupSuggestionText(name string) string {
	if guess, ok := nearestWord(name, slices.Sorted(maps.Keys(a.Catalog))); ok {
		return fmt.Sprintf("; did you mean %s?", guess)
	}
	return fmt.Sprintf(" in namespace %s: the Service waits until there is", a.Namespace)
}

// adviseOnKeyInOtherNamespaces warns of Services of other namespaces that have the same sharing
// key, if the group does not share across namespaces: each gets an address of its own,
// and the author may have meant otherwise.
func (d *decision) adviseOnKeyInOtherNamespaces() []string {
	if d.SharingKey == "" || d.group == nil {
		return nil
	}
	for _, other := range d.InUse.servicesByKey[d.SharingKey] {
		if !d.isSelf(other) && !d.canShareByNamespace(d.group, other) && d.hasAddressOfFamilies(other) {
			return []string{fmt.Sprintf("annotation %s: ServiceGroup %s does not share across namespaces, and the key is used "+
				"in another namespace",
				v1.AnnotationAllowSharedIP, d.groupName)}
		}
	}
	return nil
}

// hasAddressOfFamilies reports whether another Service has an address of the group, of a
// family that the request is for.
func (d *decision) hasAddressOfFamilies(other *Service) bool {
	for _, a := range other.Addresses {
		if _, isInGroup := d.group.RangeContaining(a); isInGroup && slices.Contains(d.Families, FamilyOf(a)) {
			return true
		}
	}
	return false
}

// adviseOnTrafficPolicy warns of externalTrafficPolicy Local if the group has Local
// addresses, of which one node gets all traffic.
func (d *decision) adviseOnTrafficPolicy(svc *corev1.Service) []string {
	if !HasPolicyLocal(svc) || d.group == nil {
		return nil
	}
	if d.group.Type == v1.PoolTypeRemote {
		return d.adviseOnSharedRoutes()
	}
	if d.AnnounceType == nil {
		return nil
	}
	if DecidePolicyLocal(svc, d.group.PolicyLocal) == v1.PolicyLocalAllow {
		return nil
	}
	for _, r := range d.group.Ranges {
		if slices.Contains(d.Families, r.Family()) && d.AnnounceType(r) == v1.AnnounceLocal {
			return []string{fmt.Sprintf("spec.externalTrafficPolicy: Local is not supported on a Local address, such as those "+
				"of range %s of ServiceGroup %s: "+
				"one node gets all traffic. It is set to Cluster; to keep Local, and the address on a node with an endpoint, "+
				"set annotation %s to \"true\"", r, d.groupName, v1.AnnotationAllowLocal)}
		}
	}
	return nil
}

// adviseOnSharedRoutes warns of routes that lead to more addresses than one: nodes that have another of
// these addresses attract traffic for this one, whether or not they have an endpoint.
func (d *decision) adviseOnSharedRoutes() []string {
	for _, r := range d.group.Ranges {
		if slices.Contains(d.Families, r.Family()) && r.Mask < r.Addrs.From().BitLen() {
			return []string{fmt.Sprintf(
				"spec.externalTrafficPolicy: Local on an address of ServiceGroup %s, whose routes lead to more addresses than one "+
					"(/%d): nodes without an endpoint attract traffic, too, and drop it, unless routers follow the routes to single "+
					"addresses that a BGPPeer adds; a group with aggregation /%d has only such routes",
				d.groupName, r.Mask, r.Addrs.From().BitLen(),
			)}
		}
	}
	return nil
}
