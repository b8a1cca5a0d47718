package announced

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/allocation"
)

// Override is what the manager does about externalTrafficPolicy Local of a Service.
type Override struct {
	// AnnotationValue is what v1.AnnotationLocalOverride is to have; empty for none.
	AnnotationValue string
	// SetsCluster is that the policy is to be set to Cluster.
	SetsCluster bool
	// EventReason is that of the event that is due, and Message its note; both are
	// empty if none is.
	EventReason, Message string
}

const rejectedPrefix = "rejected/"

// cureToKeepLocal ends the sentences that tell how to keep policy Local.
const cureToKeepLocal = "set annotation " + v1.AnnotationAllowLocal +
	" to \"true\" or, for all Services of the ServiceGroup, its spec.policyLocal to Allow"

// IsOverrideRejected reports whether a user has set policy Local again after the manager
// set it to Cluster: then it stays.
func IsOverrideRejected(svc *corev1.Service) bool {
	return strings.HasPrefix(svc.Annotations[v1.AnnotationLocalOverride], rejectedPrefix)
}

// DecideOverride decides on the policy of a Service whose addresses are in places.
// policyLocal is what is to become of policy Local: if it is empty, nobody says, and the
// Service stays as it is. Policy
// Local sends what a node gets to endpoints on that node only: on an address that one
// node holds, or that Services share, traffic would be lost. The manager sets the policy
// to Cluster once for each spec that a user writes: if the policy is set back while the
// rest of the spec stays, then by a tool that would do so for ever. The annotation, which
// records what was done, stays for as long as the Service is ours and its policy is not
// allowed, also while its addresses have no place.
func DecideOverride(svc *corev1.Service, isOurs bool, policyLocal v1.PolicyLocal, places []Place) Override {
	annotation := svc.Annotations[v1.AnnotationLocalOverride]
	if !isOurs || policyLocal == v1.PolicyLocalAllow {
		return Override{}
	}
	if policyLocal == "" {
		return Override{AnnotationValue: annotation}
	}
	if !allocation.HasPolicyLocal(svc) {
		return Override{AnnotationValue: strings.TrimPrefix(annotation, rejectedPrefix)}
	}
	reason := reasonAgainstLocal(places)
	print := fingerprint(&svc.Spec)
	switch {
	case reason == "":
		return Override{AnnotationValue: annotation}
	case annotation == rejectedPrefix+print:
		return Override{AnnotationValue: annotation}
	case annotation == print:
		return Override{
			AnnotationValue: rejectedPrefix + print, EventReason: v1.EventLocalOverrideRejected,
			Message: fmt.Sprintf("externalTrafficPolicy is Local again after it was set to Cluster: it stays, although %s. "+
				"To say that this is meant, %s", reason, cureToKeepLocal),
		}
	}
	return Override{
		AnnotationValue: print, SetsCluster: true, EventReason: v1.EventLocalOverride,
		Message: fmt.Sprintf("Set externalTrafficPolicy to Cluster: %s, and Local would lose what arrives where no "+
			"endpoint is. "+
			"To keep Local, %s", reason, cureToKeepLocal),
	}
}

// reasonAgainstLocal says why policy Local would lose traffic to one of the addresses, or
// nothing.
func reasonAgainstLocal(places []Place) string {
	for _, p := range places {
		switch {
		case p.Type == v1.AnnounceLocal:
			return p.Address + " is Local, so one node gets all of its traffic"
		case p.HasSharers:
			return p.Address + " is shared"
		}
	}
	return ""
}

// fingerprint tells specs apart by what their author writes, but for the policy.
func fingerprint(spec *corev1.ServiceSpec) string {
	s := spec.DeepCopy()
	s.ExternalTrafficPolicy, s.HealthCheckNodePort, s.ClusterIP, s.ClusterIPs = "", 0, "", nil
	for i := range s.Ports {
		s.Ports[i].NodePort = 0
	}
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode(s); err != nil {
		return "unknown" // a Service can always be encoded: it came that way
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
