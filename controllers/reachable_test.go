package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/purelb/purelb-operator/api/v1"
)

// TestReachable follows what a Service with a Local address says of whether it can be reached: from an
// LBNodeAgent that does not have its nodes ask, over askers that get answers, and then none, to one that does not
// any more. The address stays where it is.
func TestReachable(t *testing.T) {
	g, ctx := begin(t), context.Background()
	rack := map[string]string{"reachable": "yes"}
	la := lbNodeAgent(t, "reachable", rack)
	agents := map[string]*agent{}
	for name, own := range map[string]string{
		"reach1": "10.52.0.1/24", "reach2": "10.52.0.2/24", "reach3": "10.52.0.3/24",
	} {
		node(t, name, rack)
		agents[name] = runAgent(t, name, eth("eth0", own))
	}
	sg := serviceGroup(t, "reachable", "local: {pool: 10.52.0.100-10.52.0.109, subnet: 10.52.0.0/24}")
	svc := service(t, "reachable", ofGroup(sg.Name))
	says := condition(svc, v1.ConditionServiceReachable)
	askings := func(g Gomega) (askers []string) {
		var list v1.AnnouncementList
		g.Expect(api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
		for i := range list.Items {
			if list.Items[i].Spec.Asking != nil {
				askers = append(askers, list.Items[i].Spec.NodeName)
			}
		}
		return askers
	}
	g.Eventually(condition(svc, v1.ConditionAnnounced)).Should(HavePrefix("True"))
	g.Expect(says(g)).To(BeEmpty(), "it is off")
	g.Expect(askings(g)).To(BeEmpty(), "it is off")

	enable := func(yes bool) {
		t.Helper()
		g.Eventually(func(g Gomega) error {
			fetch(g, la).Spec.Local = &v1.LBNodeAgentLocal{Reachability: &v1.ReachabilityConfig{Enabled: yes}}
			return api.Update(ctx, la)
		}).Should(Succeed())
	}
	report := func(status metav1.ConditionStatus, reason string) {
		for _, a := range agents {
			a.reaches.Store(&v1.Reachability{Reachable: status, Reason: reason})
		}
	}
	enable(true)
	g.Eventually(askings).Should(HaveLen(2))
	g.Eventually(says).Should(HavePrefix("Unknown NotAsked: no node has found out yet whether reach"))
	report(metav1.ConditionTrue, v1.ReasonAnswered)
	g.Eventually(says).Should(MatchRegexp("^True Reachable: reach. answers for 10.52.0.100$"))
	placed := fetch(g, svc).Annotations[v1.AnnotationAddedTo]
	report(metav1.ConditionFalse, v1.ReasonNoAnswer)
	g.Eventually(says).Should(MatchRegexp("^False Unreachable: reach. announces 10.52.0.100, and reach. and reach."))
	g.Eventually(eventsOf(svc, v1.EventAddressUnreachable)).Should(HaveLen(1))
	report(metav1.ConditionTrue, v1.ReasonAnswered)
	g.Eventually(says).Should(HavePrefix("True Reachable"))
	g.Eventually(eventsOf(svc, v1.EventAddressReachable)).Should(HaveLen(1))
	g.Expect(fetch(g, svc).Annotations[v1.AnnotationAddedTo]).To(Equal(placed), "it moves nothing")

	enable(false)
	g.Eventually(askings).Should(BeEmpty())
	g.Eventually(says).Should(BeEmpty())
}
