package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestRoutingPace edits a BGPPeer: the second node keeps its session until that of the first is up again.
func TestRoutingPace(t *testing.T) {
	g, ctx := begin(t), context.Background()
	rack := map[string]string{"paced": "yes"}
	lbNodeAgent(t, "paced", rack)
	p := bgpPeer(t, "paced", "peerASN: 65000\nmyASN: 65001\npeerAddress: 192.0.2.1\n"+
		"nodeSelector: {matchLabels: {paced: 'yes'}}")
	routings := map[string]*v1.NodeRouting{}
	for _, name := range []string{"paced1", "paced2"} {
		node(t, name, rack)
		routings[name] = &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		g.Eventually(func(g Gomega) []v1.RoutingPeer { return fetch(g, routings[name]).Spec.Peers }).Should(HaveLen(1))
	}
	report := func(name string) {
		t.Helper()
		g.Eventually(func(g Gomega) error {
			routing := fetch(g, routings[name])
			routing.Status = v1.NodeRoutingStatus{
				ObservedGeneration: routing.Generation,
				Sessions:           []v1.RoutingSession{{Peer: "paced", Neighbor: "192.0.2.1", State: v1.SessionEstablished}},
			}
			return api.Status().Update(ctx, routing)
		}).Should(Succeed())
	}
	report("paced1")
	report("paced2")
	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("2/2 True Established"))

	g.Eventually(func(g Gomega) error {
		fetch(g, p).Spec.HoldTime = &metav1.Duration{Duration: 90e9}
		return api.Update(ctx, p)
	}).Should(Succeed())
	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("2/2 False Degraded"))
	g.Expect(p.Status.Conditions[0].Message).To(ContainSubstring("one at a time: 1 have the former settings yet"))
	holdTime := func(name string) func(Gomega) int32 {
		return func(g Gomega) int32 { return fetch(g, routings[name]).Spec.Peers[0].HoldSeconds }
	}
	g.Eventually(holdTime("paced1")).Should(BeEquivalentTo(90))
	g.Expect(holdTime("paced2")(g)).To(BeEquivalentTo(9))
	report("paced1")
	g.Eventually(holdTime("paced2")).Should(BeEquivalentTo(90))
	report("paced2")
	g.Eventually(func(g Gomega) string { return verdict(fetch(g, p)) }).Should(Equal("2/2 True Established"))
}
