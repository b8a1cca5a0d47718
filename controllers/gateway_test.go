package controllers_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// gatewayObjects makes the objects of a file, as an implementation of the Gateway API makes them,
// and returns the Service.
func gatewayObjects(t *testing.T, g Gomega, implementation string) *corev1.Service {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "gateways", implementation+".yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	documents := bytes.Split(text, []byte("\n---\n"))
	svc := &corev1.Service{}
	g.Expect(yaml.UnmarshalStrict(documents[0], svc)).To(Succeed())
	create(t, svc)
	for _, document := range documents[1:] {
		slice := &discoveryv1.EndpointSlice{}
		g.Expect(yaml.UnmarshalStrict(document, slice)).To(Succeed())
		create(t, slice)
	}
	return svc
}

// TestGateways serves Services as implementations of the Gateway API make them: each gets the
// static address of its Gateway, and one node announces it.
func TestGateways(t *testing.T) {
	g := begin(t)
	nodes := []string{"node1", "node2"}
	startNodes(t, g, "10.147.0", nodes...)
	serviceGroup(
		t, "gateways",
		"local: {v4pool: {pool: 10.147.0.10-10.147.0.19, subnet: 10.147.0.0/24}, v6pool: {pool: "+
			"'fd00:147::10-fd00:147::19', subnet: 'fd00:147::/64'}}",
	)
	for _, row := range []struct {
		implementation string
		addresses      []string
		policy         corev1.ServiceExternalTrafficPolicy
	}{
		{"istio", []string{"10.147.0.11", "fd00:147::10"}, corev1.ServiceExternalTrafficPolicyCluster},
		{"kgateway", []string{"10.147.0.12"}, corev1.ServiceExternalTrafficPolicyCluster},
		{"envoy", []string{"10.147.0.13"}, corev1.ServiceExternalTrafficPolicyCluster}, // overridden
		{"cilium", []string{"10.147.0.14"}, corev1.ServiceExternalTrafficPolicyLocal},
	} {
		t.Run(row.implementation, func(t *testing.T) {
			g := NewWithT(t)
			svc := gatewayObjects(t, g, row.implementation)
			g.Eventually(ingress(svc)).Should(Equal(row.addresses))
			g.Eventually(holders(row.addresses[0], nodes...)).Should(HaveLen(1))
			g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
			g.Eventually(func(g Gomega) corev1.ServiceExternalTrafficPolicy { return fetch(g, svc).Spec.ExternalTrafficPolicy }).
				Should(Equal(row.policy))
		})
	}
}
