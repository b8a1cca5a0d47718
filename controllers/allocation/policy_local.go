package allocation

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// HasPolicyLocal reports whether a Service has externalTrafficPolicy Local: what a node gets for the Service does not
// leave the node.
func HasPolicyLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// DecidePolicyLocal says what is to become of externalTrafficPolicy Local of a Service
// where its addresses are Local or shared. The Service's annotation decides or, without
// one, the policyLocal of the ServiceGroup of its addresses, which ofGroup is. The result is
// empty if nobody says: the Service has no annotation, and ofGroup is empty because the
// group does not exist. Then the manager leaves the policy as the manager finds it.
//
// Everything that asks whether policy Local stays asks this function.
func DecidePolicyLocal(svc *corev1.Service, ofGroup v1.PolicyLocal) v1.PolicyLocal {
	switch svc.Annotations[v1.AnnotationAllowLocal] {
	case "true":
		return v1.PolicyLocalAllow
	case "false":
		return v1.PolicyLocalOverride
	}
	return ofGroup
}

// PolicyLocalOf returns the policyLocal of a ServiceGroup, whether or not the group is
// valid.
func PolicyLocalOf(sg *v1.ServiceGroup) v1.PolicyLocal {
	return cmp.Or(sg.Spec.PolicyLocal, v1.PolicyLocalOverride)
}

// PolicyLocalFor returns what is to become of externalTrafficPolicy Local of a Service, by
// the ServiceGroup that its addresses are allocated from.
func (c Catalog) PolicyLocalFor(svc *corev1.Service) v1.PolicyLocal {
	var ofGroup v1.PolicyLocal
	if verdict, exists := c[RecordOf(svc).Group]; exists {
		ofGroup = verdict.Group.PolicyLocal
	}
	return DecidePolicyLocal(svc, ofGroup)
}

// hasPolicyLocalByGroup reports whether a Service has externalTrafficPolicy Local, and
// leaves it to its ServiceGroup whether the policy stays.
func hasPolicyLocalByGroup(svc *corev1.Service) bool {
	return HasPolicyLocal(svc) && DecidePolicyLocal(svc, "") == ""
}
