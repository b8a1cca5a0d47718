package announced_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
	"github.com/purelb/purelb-operator/controllers/announced"
)

func TestDecideOverride(t *testing.T) {
	local := []announced.Place{
		{Address: "10.0.0.1", Type: v1.AnnounceVirtual}, {Address: "fd00::1", Type: v1.AnnounceLocal},
	}
	virtual := []announced.Place{{Address: "10.0.0.1", Type: v1.AnnounceVirtual}}
	shared := []announced.Place{{Address: "10.0.0.1", Type: v1.AnnounceVirtual, HasSharers: true}}
	svc := func(change ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{
			Spec: corev1.ServiceSpec{
				ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				Ports:                 []corev1.ServicePort{{Port: 80, NodePort: 30000}},
			},
		}
		for _, c := range change {
			c(s)
		}
		return s
	}
	annotated := func(name, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{name: value} }
	}
	cluster := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }
	first := announced.DecideOverride(svc(), true, v1.PolicyLocalOverride, local).AnnotationValue
	for _, row := range []struct {
		name       string
		svc        *corev1.Service
		places     []announced.Place
		annotation string
		toCluster  bool
		event      string
		says       string
	}{
		{"Local", svc(), local, first, true, v1.EventLocalOverride, "fd00::1 is Local"},
		{"shared", svc(), shared, first, true, v1.EventLocalOverride, "10.0.0.1 is shared"},
		{"Virtual", svc(), virtual, "", false, "", ""},
		{"nothing announced yet", svc(), nil, "", false, "", ""},
		{"policy Cluster", svc(cluster), local, "", false, "", ""},
		{"allowed", svc(), local, "", false, "", ""},
		{"allowed, and shared", svc(), shared, "", false, "", ""},
		{
			"allowed after it was set back", svc(annotated(v1.AnnotationLocalOverride, "rejected/"+first)), local, "", false, "",
			"",
		},
		{"allowed after it was done", svc(cluster, annotated(v1.AnnotationLocalOverride, first)), local, "", false, "", ""},
		{"nobody says", svc(), local, "", false, "", ""},
		{
			"nobody says after it was set back", svc(annotated(v1.AnnotationLocalOverride, "rejected/"+first)), local,
			"rejected/" + first, false, "", "",
		},
		{
			"nobody says after it was done", svc(cluster, annotated(v1.AnnotationLocalOverride, first)), local, first, false, "",
			"",
		},
		{"done", svc(cluster, annotated(v1.AnnotationLocalOverride, first)), local, first, false, "", ""},
		{
			"set back", svc(annotated(v1.AnnotationLocalOverride, first)), local, "rejected/" + first, false,
			v1.EventLocalOverrideRejected, "fd00::1 is Local",
		},
		{"set back, with what the API server adds",
			svc(annotated(v1.AnnotationLocalOverride, first), func(s *corev1.Service) {
				s.Spec.HealthCheckNodePort, s.Spec.Ports[0].NodePort, s.Spec.ClusterIP = 31000, 30001, "10.96.0.9"
			}), local, "rejected/" + first, false, v1.EventLocalOverrideRejected, ""},
		{
			"set back, and the event was recorded", svc(annotated(v1.AnnotationLocalOverride, "rejected/"+first)), local,
			"rejected/" + first, false, "", "",
		},
		{
			"Cluster after all", svc(cluster, annotated(v1.AnnotationLocalOverride, "rejected/"+first)), local, first, false, "",
			"",
		},
		{
			"set back, but nowhere for a moment", svc(annotated(v1.AnnotationLocalOverride, "rejected/"+first)), nil,
			"rejected/" + first, false, "", "",
		},
		{
			"done, and nowhere for a moment", svc(cluster, annotated(v1.AnnotationLocalOverride, first)), nil, first, false, "",
			"",
		},
		{"no longer ours", svc(annotated(v1.AnnotationLocalOverride, first)), nil, "", false, "", ""},
		{"set back, but Virtual by now", svc(annotated(v1.AnnotationLocalOverride, first)), virtual, first, false, "", ""},
	} {
		policyLocal := v1.PolicyLocalOverride
		if strings.HasPrefix(row.name, "allowed") {
			policyLocal = v1.PolicyLocalAllow
		} else if strings.HasPrefix(row.name, "nobody says") {
			policyLocal = ""
		}
		got := announced.DecideOverride(row.svc, row.name != "no longer ours", policyLocal, row.places)
		if got.AnnotationValue != row.annotation || got.SetsCluster != row.toCluster || got.EventReason != row.event ||
			!strings.Contains(got.Message, row.says) {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
	edited := svc(
		annotated(v1.AnnotationLocalOverride, "rejected/"+first), func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 },
	)
	if got := announced.DecideOverride(edited, true, v1.PolicyLocalOverride, local); !got.SetsCluster ||
		got.AnnotationValue == first {
		t.Errorf("a new spec: %+v", got)
	}
}
