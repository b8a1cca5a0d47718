package controllers_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestPreferredNodes gives addresses to the nodes that their ServiceGroup prefers, one in each zone,
// and lets the group prefer another node: that moves nothing until somebody asks for it.
func TestPreferredNodes(t *testing.T) {
	g := begin(t)
	lbNodeAgent(t, "default", nil)
	nodes := []string{"near", "fast1", "fast2"}
	for i, name := range nodes {
		set := map[string]string{corev1.LabelTopologyZone: fmt.Sprint(i)}
		if name != "near" {
			set["link"] = "fast"
		}
		node(t, name, set)
		runAgent(t, name, eth("eth0", fmt.Sprintf("10.53.0.%d/24", 101+i)))
	}
	sg := serviceGroup(t, "preferring", "{local: {pool: 10.53.0.1-10.53.0.9, subnet: 10.53.0.0/24}, "+
		"preferredNodes: [{weight: 10, nodeSelector: {matchLabels: {link: fast}}}], "+
		"topologyKey: topology.kubernetes.io/zone}")
	g.Eventually(func(g Gomega) v1.AnnouncedAs { return fetch(g, sg).Status.AnnouncedAs }).
		Should(BeEquivalentTo(v1.AnnounceLocal))
	g.Eventually(func(g Gomega) {
		for _, name := range nodes {
			g.Expect(announcement(g, name)).To(HaveField("Status.Interfaces", HaveLen(1)))
		}
	}).Should(Succeed())

	first := service(t, "preferring1", ofGroup("preferring"))
	g.Eventually(ingress(first)).Should(Equal([]string{"10.53.0.1"}))
	g.Eventually(condition(first, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	second := service(t, "preferring2", ofGroup("preferring"))
	g.Eventually(condition(second, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Eventually(entries(nodes...)).Should(Or(
		Equal([]string{"fast1 10.53.0.1/32 eth0 Local 1", "fast2 10.53.0.2/32 eth0 Local 1"}),
		Equal([]string{"fast1 10.53.0.2/32 eth0 Local 1", "fast2 10.53.0.1/32 eth0 Local 1"}),
	))
	before := entries(nodes...)(g)

	patch(t, sg, `{"spec":{"preferredNodes":[{"weight":1,"nodeSelector":{"matchExpressions":[`+
		`{"key":"link","operator":"DoesNotExist"}]}}]}}`)
	g.Eventually(func(g Gomega) int64 { return fetch(g, sg).Status.ObservedGeneration }).Should(BeEquivalentTo(2))
	third := service(t, "preferring3", ofGroup("preferring"))
	g.Eventually(entries("near")).Should(Equal([]string{"near 10.53.0.3/32 eth0 Local 1"}))
	g.Eventually(condition(third, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	waitUntilPlaced(t)
	g.Expect(entries("fast1", "fast2")(g)).To(Equal(before))

	asked := announcement(g, "fast1").Spec.Addresses[0].Address
	waitUntilFollowed(t, asked, 2)
	patch(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fast1"}},
		`{"metadata":{"annotations":{"`+v1.AnnotationHandover+`":"`+asked+`"}}}`)
	g.Eventually(entries("near")).Should(ConsistOf(
		"near 10.53.0.3/32 eth0 Local 1", "near "+asked+"/32 eth0 Local 4",
	))
}
