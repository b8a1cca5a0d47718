package controllers_test

import (
	"context"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestAdvertised follows what a Service with a Virtual address says of its routes, from a cluster without routers, over
// a session that comes up and goes down, to routing software of the cluster's owner.
func TestAdvertised(t *testing.T) {
	g, ctx := begin(t), context.Background()
	rack := map[string]string{"advertised": "yes"}
	lbNodeAgent(t, "advertised", rack)
	for _, name := range []string{"adv1", "adv2"} {
		node(t, name, rack)
		runAgent(t, name, eth("eth0", "10.51.0.1/24"))
	}
	sg := serviceGroup(t, "advertised", "remote: {pool: 198.18.51.0/28, subnet: 198.18.51.0/24}")
	near := serviceGroup(t, "near", "local: {pool: 10.51.0.100-10.51.0.109, subnet: 10.51.0.0/24}")
	t.Cleanup(func() { // between the Services and the groups: what has no group any more is withheld, at all BGPPeers
		g.Eventually(func(g Gomega) (entries []v1.AnnouncedAddress) {
			var own v1.AnnouncementList
			var shared v1.CommonAnnouncementList
			g.Expect(api.List(ctx, &own)).To(Succeed())
			g.Expect(api.List(ctx, &shared)).To(Succeed())
			for i := range own.Items {
				entries = append(entries, own.Items[i].Spec.Addresses...)
			}
			for i := range shared.Items {
				entries = append(entries, shared.Items[i].Spec.Addresses...)
			}
			return slices.DeleteFunc(entries, func(e v1.AnnouncedAddress) bool { return e.ServiceGroup != sg.Name })
		}).Should(BeEmpty())
	})
	svc, local := service(t, "advertised", ofGroup(sg.Name)), service(t, "near", ofGroup(near.Name))
	says := condition(svc, v1.ConditionAdvertised)
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Eventually(condition(local, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Eventually(says).Should(HavePrefix("False NoRouter: no BGPPeer gives one of the 2 nodes that announce 198.18.51.1"))

	bgpPeer(t, "advertised", "{peerASN: 65000, myASN: 65001, peerAddress: 192.0.2.51, "+
		"nodeSelector: {matchLabels: {advertised: 'yes'}}}")
	report := func(name string, state v1.SessionState, routes int32) {
		t.Helper()
		routing := &v1.NodeRouting{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		g.Eventually(func(g Gomega) error {
			fetch(g, routing)
			routing.Status = v1.NodeRoutingStatus{
				ObservedGeneration: routing.Generation,
				Sessions: []v1.RoutingSession{{
					Peer: "advertised", Neighbor: "192.0.2.51", State: state, Families: []v1.IPFamily{"IPv4"}, Advertised: routes,
				}},
			}
			return api.Status().Update(ctx, routing)
		}).Should(Succeed())
	}
	report("adv1", v1.SessionEstablished, 1)
	g.Eventually(says).Should(Equal("True Advertised: 198.18.51.1 is advertised by 1 of 2 nodes, in 1 of 2 sessions"))
	report("adv1", "Idle", 0)
	g.Eventually(says).Should(HavePrefix("False NoSession: 198.18.51.1 is advertised by 0 of 2 nodes: 0 of 2 sessions"))

	g.Eventually(eventsOf(svc, v1.EventSessionDown)).Should(ConsistOf(
		"purelb-routing: The session of node adv1 with 192.0.2.51 is down: the session is gone"))
	g.Expect(eventsOf(local, v1.EventSessionDown)(g)).To(BeEmpty(), "it has a Local address only")

	g.Eventually(func(g Gomega) error {
		fetch(g, sg).Spec.AdvertisedBy = v1.AdvertisedByExternal
		return api.Update(ctx, sg)
	}).Should(Succeed())
	g.Eventually(says).Should(HavePrefix("Unknown External: spec.advertisedBy of ServiceGroup advertised says"))
	g.Expect(condition(local, v1.ConditionAdvertised)(g)).To(BeEmpty(), "it has a Local address only")
}
