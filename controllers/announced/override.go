package announced

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// Override is what is to become of externalTrafficPolicy Local of a Service.
type Override struct {
	// Annotation is the value that v1.AnnotationLocalOverride is to have; empty
	// for none.
	Annotation string
	// ToCluster is that the policy is to be set to Cluster.
	ToCluster bool
	// Event and Message tell the Service's author, if there is news.
	Event, Message string
}

const rejectedPrefix = "rejected/"

// OverrideRejected reports whether somebody has set policy Local again after it
// was set to Cluster: then it stays.
func OverrideRejected(svc *corev1.Service) bool {
	return strings.HasPrefix(svc.Annotations[v1.AnnotationLocalOverride], rejectedPrefix)
}

// OverrideOf decides on the policy of a Service whose addresses are in places.
// Policy Local sends
// what a node gets to endpoints on that node only: on an address that one node
// holds, or that is shared, it would lose traffic. It is set to Cluster, once for
// each spec that somebody writes: if it is set back while the rest stays, then
// by a tool that would do so for ever.
func OverrideOf(svc *corev1.Service, places []Place) Override {
	was := svc.Annotations[v1.AnnotationLocalOverride]
	if len(places) == 0 || svc.Annotations[v1.AnnotationAllowLocal] == "true" {
		return Override{}
	}
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return Override{Annotation: strings.TrimPrefix(was, rejectedPrefix)}
	}
	why := unfitForLocal(places)
	print := fingerprint(&svc.Spec)
	switch {
	case why == "":
		return Override{Annotation: was}
	case was == rejectedPrefix+print:
		return Override{Annotation: was}
	case was == print:
		return Override{
			Annotation: rejectedPrefix + print, Event: v1.EventLocalRejected,
			Message: fmt.Sprintf("externalTrafficPolicy is Local again after it was set to Cluster: it stays, although %s. "+
				"To say that this is meant, set annotation %s to \"true\"", why, v1.AnnotationAllowLocal),
		}
	}
	return Override{
		Annotation: print, ToCluster: true, Event: v1.EventLocalOverride,
		Message: fmt.Sprintf("Set externalTrafficPolicy to Cluster: %s, and Local would lose what arrives where no endpoint is. "+
			"Annotation %s: \"true\" keeps Local", why, v1.AnnotationAllowLocal),
	}
}

// unfitForLocal says why policy Local does not go with the addresses, or
// nothing.
func unfitForLocal(places []Place) string {
	for _, p := range places {
		switch {
		case p.Type == v1.AnnounceLocal:
			return p.Address + " is Local, so one node gets all of its traffic"
		case p.Shared:
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
